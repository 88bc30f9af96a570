import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { api } from "../../api/calls.ts";
import { told } from "../../api/failure.ts";
import type { Comparison, Evaluation } from "../../api/types.ts";
import { useTitle } from "../../app/useTitle.ts";
import { useUrlState } from "../../lib/useUrlState.ts";
import { Button, LinkButton } from "../../parts/Button.tsx";
import { Empty, Failure, Loading, Warnings } from "../../parts/Notice.tsx";
import { toast } from "../../parts/toast.tsx";
import { compareRuns } from "./calls.ts";
import { CaseChanges } from "./CaseChanges.tsx";
import { CaseDrawer } from "./CaseDrawer.tsx";
import { shownCases } from "./changes.ts";
import { Comparability } from "./Comparability.tsx";
import { GraderDifferences } from "./GraderDifferences.tsx";
import { asMarkdown } from "./markdown.ts";
import { RunChooser, titleOf } from "./RunChooser.tsx";
import { COMPARE_STATE, type ChangeState, type CompareState } from "./state.ts";

const LATEST = 100;

/** Two runs, case by case: is the candidate better, and how sure is that? */
export function ComparePage() {
  useTitle("Compare");
  const [state, change] = useUrlState(COMPARE_STATE);
  const runs = useQuery({
    queryKey: ["runs", "latest", LATEST],
    queryFn: ({ signal }) => api.runs({ limit: LATEST }, signal),
    // whoever comes here may just have started one elsewhere
    staleTime: 0,
  });
  const baseline = useOne(state.baseline);
  const candidate = useOne(state.candidate);
  const both = state.baseline !== "" && state.candidate !== "";
  const listed = runs.data?.evaluations ?? [];
  const other = { force: "off", show: "", grader: "", row: "", repeat: 0 } as const;
  return (
    <div className="flex flex-col gap-4">
      <h1 className="text-xl font-semibold">Compare</h1>
      {runs.error && <Failure error={runs.error} onRetry={() => void runs.refetch()} />}
      <div className="grid items-start gap-3 sm:grid-cols-[1fr_auto_1fr]">
        <RunChooser
          label="Baseline"
          help="What you have now"
          runs={listed}
          chosen={state.baseline}
          current={baseline.data}
          onChoose={(id) => change({ ...other, baseline: id })}
        />
        <Button
          className="sm:mt-6"
          disabled={!both}
          onClick={() => change({ ...other, baseline: state.candidate, candidate: state.baseline })}
          aria-label="Swap baseline and candidate"
        >
          ⇄ Swap
        </Button>
        <RunChooser
          label="Candidate"
          help="What may be better or worse"
          runs={listed}
          chosen={state.candidate}
          current={candidate.data}
          onChoose={(id) => change({ ...other, candidate: id })}
        />
      </div>
      {both ? (
        <Compared state={state} onChange={change} baseline={baseline.data} candidate={candidate.data} />
      ) : (
        <ChooseTwo runs={runs.data?.evaluations} state={state} onChange={change} />
      )}
    </div>
  );
}

function useOne(id: string) {
  return useQuery({ queryKey: ["run", id], queryFn: ({ signal }) => api.run(id, signal), enabled: id !== "" });
}

/** Says what is missing, and offers the likeliest. */
function ChooseTwo({
  runs,
  state,
  onChange,
}: {
  runs: readonly Evaluation[] | undefined;
  state: CompareState;
  onChange: ChangeState;
}) {
  if (runs === undefined) return null;
  const chosen = state.candidate || state.baseline;
  const [latest, before] = runs.filter((run) => run.status === "completed" && run.id !== chosen);
  const missing = chosen === "" ? before : latest;
  if (latest === undefined || missing === undefined) {
    return (
      <Empty
        title="It takes two finished runs"
        actions={
          <LinkButton look="main" to={chosen === "" ? "/new" : `/new?from=${encodeURIComponent(chosen)}`}>
            {chosen === "" ? "Start an evaluation" : "Run the same cases again"}
          </LinkButton>
        }
      >
        Run the same cases against two versions of your agent, then compare them here, case by case.
      </Empty>
    );
  }
  const offer =
    chosen === ""
      ? { baseline: missing.id, candidate: latest.id }
      : state.baseline === ""
        ? { baseline: latest.id }
        : { candidate: latest.id };
  return (
    <Empty
      title={
        chosen === ""
          ? "Choose two runs of the same cases"
          : `Now choose the ${state.baseline === "" ? "baseline" : "candidate"}`
      }
      actions={
        <Button look="main" onClick={() => onChange(offer)}>
          {chosen === "" ? "Compare the latest two" : `Compare with ${titleOf(latest)}`}
        </Button>
      }
    >
      The baseline is what you have now, the candidate what you may ship.
    </Empty>
  );
}

interface Props {
  state: CompareState;
  onChange: ChangeState;
  baseline: Evaluation | undefined;
  candidate: Evaluation | undefined;
}

function Compared({ state, onChange, baseline, candidate }: Props) {
  const forced = state.force === "on";
  const found = useQuery({
    queryKey: ["comparison", state.baseline, state.candidate, forced],
    queryFn: ({ signal }) => compareRuns(state.baseline, state.candidate, forced, signal),
  });
  const cases = useMemo(
    () => shownCases(found.data?.cases ?? [], state.grader, state.show),
    [found.data, state.grader, state.show],
  );
  if (found.error) return <Failure error={found.error} onRetry={() => void found.refetch()} />;
  if (found.isPending) return <Loading what="Comparing" />;
  const comparison = found.data;
  const names = { baseline: titleOf(baseline), candidate: titleOf(candidate) };
  const repeats = Math.max(baseline?.repeats ?? 1, candidate?.repeats ?? 1);
  return (
    <>
      <Comparability comparison={comparison} runs={[baseline, candidate]} forced={forced} onChange={onChange} />
      <Warnings warnings={comparison.warnings} />
      {Object.keys(comparison.graders).length > 0 && (
        <>
          <div className="flex flex-wrap gap-2">
            <Button onClick={() => void copyMarkdown(comparison, names)}>Copy as Markdown</Button>
            <LinkButton to={`/runs/${encodeURIComponent(state.baseline)}`}>Open baseline</LinkButton>
            <LinkButton to={`/runs/${encodeURIComponent(state.candidate)}`}>Open candidate</LinkButton>
          </div>
          <GraderDifferences comparison={comparison} state={state} onChange={onChange} />
          <CaseChanges comparison={comparison} cases={cases} state={state} onChange={onChange} />
        </>
      )}
      {state.row !== "" && (
        <CaseDrawer comparison={comparison} cases={cases} repeats={repeats} state={state} onChange={onChange} />
      )}
    </>
  );
}

async function copyMarkdown(comparison: Comparison, names: { baseline: string; candidate: string }): Promise<void> {
  try {
    await navigator.clipboard.writeText(asMarkdown(comparison, names, window.location.href));
    toast("Copied as Markdown");
  } catch (error) {
    toast(`Not copied: ${told(error).message}`);
  }
}
