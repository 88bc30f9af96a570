import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/client.ts";
import { ErrorNotice, Loading } from "../../components/Notice.tsx";
import { Tabs } from "../../components/Tabs.tsx";
import { usePageTitle } from "../../lib/hooks.ts";
import { list, oneOf, text, useUrlState } from "../../lib/urlState.ts";
import { chosenGraders, DEFAULT_MAPPING, type Draft, draftFromRun } from "./draft.ts";
import { EvaluateForm } from "./EvaluateForm.tsx";
import { useRunGraders } from "./GraderChooser.tsx";
import { SuiteForm } from "./SuiteForm.tsx";

/** The part of the form that a link can fill in. */
export const STATE = {
  mode: oneOf(["form", "suite"] as const, "form"),
  tag: text(),
  cases: list(),
  url: text(),
  graders: list(),
  name: text(),
  baseline: text(),
  early: oneOf(["off", "on"] as const, "off"),
  /** The run to repeat. */
  from: text(),
};

export function EvaluatePage() {
  usePageTitle("New evaluation");
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
    mapping: DEFAULT_MAPPING,
    graders: chosenGraders(state.graders),
    name: state.name,
    repeats: null,
    concurrency: null,
    timeout: null,
    baseline: state.baseline,
    stopEarly: state.early === "on",
  };
  const initial = again.data ? { ...linked, ...draftFromRun(again.data), graders: chosen ?? [] } : linked;
  return (
    <div className="mx-auto flex max-w-4xl flex-col gap-3">
      <h1 className="text-xl font-semibold">New evaluation</h1>
      {again.error && <ErrorNotice error={again.error} />}
      <Tabs
        label="Form or suite"
        value={state.mode}
        onChange={(mode) => change({ mode })}
        tabs={[
          {
            value: "form",
            label: "Form",
            content: <EvaluateForm initial={initial} onLink={(next) => change(next, { replace: true })} />,
          },
          { value: "suite", label: "Suite file", content: <SuiteForm /> },
        ]}
      />
    </div>
  );
}
