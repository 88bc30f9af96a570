import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/calls.ts";
import { useTitle } from "../../app/useTitle.ts";
import { list, oneOf, text } from "../../lib/urlState.ts";
import { useUrlState } from "../../lib/useUrlState.ts";
import { Failure, Loading } from "../../parts/Notice.tsx";
import { Tabs } from "../../parts/Tabs.tsx";
import { chosenFrom, draftFrom, PLAIN_MAPPING, type Draft } from "./draft.ts";
import { EvaluateForm } from "./EvaluateForm.tsx";
import { SuiteForm } from "./SuiteForm.tsx";
import { useRunGraders } from "./useRunGraders.ts";

/** What a link can fill in; the rest of the form is only the form's. */
export const STATE = {
  mode: oneOf(["form", "suite"] as const, "form"),
  tag: text(),
  cases: list(),
  url: text(),
  graders: list(),
  name: text(),
  baseline: text(),
  early: oneOf(["off", "on"] as const, "off"),
  /** A run to do again. */
  from: text(),
};

export function EvaluatePage() {
  useTitle("New evaluation");
  const [state, change] = useUrlState(STATE);
  const again = useQuery({
    queryKey: ["run", state.from],
    queryFn: ({ signal }) => api.run(state.from, signal),
    enabled: state.from !== "",
  });
  const { chosen } = useRunGraders(again.data);
  if (state.from !== "" && (again.isPending || (again.data && chosen === null))) return <Loading />;
  const linked: Draft = {
    by: state.cases.length > 0 ? "ids" : state.tag ? "tag" : "all",
    tag: state.tag,
    ids: state.cases,
    url: state.url,
    mapping: PLAIN_MAPPING,
    graders: chosenFrom(state.graders),
    name: state.name,
    repeats: null,
    concurrency: null,
    timeout: null,
    baseline: state.baseline,
    stopEarly: state.early === "on",
  };
  const initial = again.data ? { ...linked, ...draftFrom(again.data), graders: chosen ?? [] } : linked;
  return (
    <div className="mx-auto flex max-w-4xl flex-col gap-3">
      <h1 className="text-xl font-semibold">New evaluation</h1>
      {again.error && <Failure error={again.error} />}
      <Tabs
        label="How to describe it"
        value={state.mode}
        onChange={(mode) => change({ mode })}
        tabs={[
          {
            value: "form",
            label: "Cases, agent, graders",
            content: <EvaluateForm initial={initial} onLink={(next) => change(next, { replace: true })} />,
          },
          { value: "suite", label: "Paste a suite", content: <SuiteForm /> },
        ]}
      />
    </div>
  );
}
