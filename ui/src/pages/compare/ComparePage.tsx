import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { api, compareRuns } from "../../api/client.ts";
import { describeError } from "../../api/error.ts";
import type { Comparison, Evaluation } from "../../api/types.ts";
import { Button, LinkButton } from "../../components/Button.tsx";
import { Field } from "../../components/Field.tsx";
import { EmptyState, ErrorNotice, Loading, Warnings } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { toast } from "../../components/toast.tsx";
import { formatAgo, formatCount } from "../../lib/format.ts";
import { usePageTitle } from "../../lib/hooks.ts";
import { baselineSuffix, isInProgress, runTitle } from "../../lib/run.ts";
import { useUrlState } from "../../lib/urlState.ts";
import { visibleText } from "../../lib/visibleText.ts";
import { CaseChanges } from "./CaseChanges.tsx";
import { CaseDrawer } from "./CaseDrawer.tsx";
import { type ChangeState, COMPARE_STATE, type CompareState, filterCases } from "./comparison.ts";
import { GraderDifferences } from "./GraderDifferences.tsx";
import { toMarkdown } from "./markdown.ts";

const MAX_RUNS = 100;

/** Compares two runs case by case. */
export function ComparePage() {
  usePageTitle("Compare");
  const [state, change] = useUrlState(COMPARE_STATE);
  const runs = useQuery({
    queryKey: ["runs", "latest", MAX_RUNS],
    queryFn: ({ signal }) => api.runs({ limit: MAX_RUNS }, signal),
    // a run may just have been started elsewhere
    staleTime: 0,
  });
  const baseline = useOptionalRun(state.baseline);
  const candidate = useOptionalRun(state.candidate);
  const both = state.baseline !== "" && state.candidate !== "";
  const listed = runs.data?.evaluations ?? [];
  const other = { force: "off", show: "", grader: "", row: "", repeat: 0 } as const;
  return (
    <div className="flex flex-col gap-4">
      <h1 className="text-xl font-semibold">Compare</h1>
      {runs.error && <ErrorNotice error={runs.error} onRetry={() => void runs.refetch()} />}
      <div className="grid items-start gap-3 sm:grid-cols-[1fr_auto_1fr]">
        <RunChooser
          label="Baseline"
          help="The run to compare against"
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
          help="The run that may be better or worse"
          runs={listed}
          chosen={state.candidate}
          current={candidate.data}
          onChoose={(id) => change({ ...other, candidate: id })}
        />
      </div>
      {both ? (
        <ComparisonResult state={state} onChange={change} baseline={baseline.data} candidate={candidate.data} />
      ) : (
        <ChooseRuns runs={runs.data?.evaluations} state={state} onChange={change} />
      )}
    </div>
  );
}

function useOptionalRun(id: string) {
  return useQuery({ queryKey: ["run", id], queryFn: ({ signal }) => api.run(id, signal), enabled: id !== "" });
}

/** Asks for the missing runs and offers the most likely ones. */
function ChooseRuns({
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
      <EmptyState
        title="A comparison requires two finished runs"
        actions={
          <LinkButton variant="primary" to={chosen === "" ? "/new" : `/new?from=${encodeURIComponent(chosen)}`}>
            {chosen === "" ? "Start an evaluation" : "Run the same cases again"}
          </LinkButton>
        }
      >
        Run the same cases with two versions of your agent, then compare the runs here case by case.
      </EmptyState>
    );
  }
  const offer =
    chosen === ""
      ? { baseline: missing.id, candidate: latest.id }
      : state.baseline === ""
        ? { baseline: latest.id }
        : { candidate: latest.id };
  return (
    <EmptyState
      title={
        chosen === ""
          ? "Choose two runs of the same cases"
          : `Choose the ${state.baseline === "" ? "baseline" : "candidate"}`
      }
      actions={
        <Button variant="primary" onClick={() => onChange(offer)}>
          {chosen === "" ? "Compare the latest two" : `Compare with ${runTitle(latest)}`}
        </Button>
      }
    >
      The baseline is the current version of your agent, the candidate the new one.
    </EmptyState>
  );
}

interface ComparisonResultProps {
  state: CompareState;
  onChange: ChangeState;
  baseline: Evaluation | undefined;
  candidate: Evaluation | undefined;
}

function ComparisonResult({ state, onChange, baseline, candidate }: ComparisonResultProps) {
  const forced = state.force === "on";
  const comparisonQuery = useQuery({
    queryKey: ["comparison", state.baseline, state.candidate, forced],
    queryFn: ({ signal }) => compareRuns(state.baseline, state.candidate, forced, signal),
  });
  const cases = useMemo(
    () => filterCases(comparisonQuery.data?.cases ?? [], state.grader, state.show),
    [comparisonQuery.data, state.grader, state.show],
  );
  if (comparisonQuery.error)
    return <ErrorNotice error={comparisonQuery.error} onRetry={() => void comparisonQuery.refetch()} />;
  if (comparisonQuery.isPending) return <Loading what="Comparing" />;
  const comparison = comparisonQuery.data;
  const names = {
    baseline: baseline ? runTitle(baseline) : "baseline",
    candidate: candidate ? runTitle(candidate) : "candidate",
  };
  const repeats = Math.max(baseline?.repeats ?? 1, candidate?.repeats ?? 1);
  return (
    <>
      <ComparabilityNotice comparison={comparison} runs={[baseline, candidate]} forced={forced} onChange={onChange} />
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
    await navigator.clipboard.writeText(toMarkdown(comparison, names, window.location.href));
    toast("Copied as Markdown");
  } catch (error) {
    toast(`Copying failed: ${describeError(error).message}`);
  }
}

interface RunChooserProps {
  label: string;
  help: string;
  /** Runs to choose from; the chosen one may be older than all of these. */
  runs: readonly Evaluation[];
  chosen: string;
  current: Evaluation | undefined;
  onChoose: (id: string) => void;
}

function RunChooser({ label, help, runs, chosen, current, onChoose }: RunChooserProps) {
  const listed = current && !runs.some((run) => run.id === current.id) ? [current, ...runs] : runs;
  const unknown = chosen !== "" && !listed.some((run) => run.id === chosen);
  return (
    <Field label={label} help={help}>
      <select className="field" value={chosen} onChange={(event) => onChoose(event.target.value)}>
        <option value="">Choose a run…</option>
        {unknown && <option value={chosen}>{visibleText(chosen)}</option>}
        {listed.map((run) => (
          <option key={run.id} value={run.id}>
            {runTitle(run)} · {run.status} · {formatCount(run.result_count)} results · {formatAgo(run.started_at)}
            {baselineSuffix(run)}
          </option>
        ))}
      </select>
    </Field>
  );
}

interface ComparabilityNoticeProps {
  comparison: Comparison;
  runs: readonly (Evaluation | undefined)[];
  forced: boolean;
  onChange: ChangeState;
}

/** Shows if the runs are comparable; if not, the comparison is hidden until the user forces it. */
function ComparabilityNotice({ comparison, runs, forced, onChange }: ComparabilityNoticeProps) {
  const { comparable, reasons } = comparison.comparability;
  const unfinished = runs.some((run) => run !== undefined && isInProgress(run.status));
  return (
    <section aria-label="Comparability" className={`card p-3 text-sm ${comparable ? "" : "border-fail bg-fail-soft"}`}>
      <p className={`font-semibold ${comparable ? "text-pass" : "text-fail"}`}>
        {comparable
          ? "✓ These runs are comparable"
          : forced
            ? "✗ These runs are not comparable; you chose to compare them anyway"
            : "✗ These runs are not comparable"}
      </p>
      {unfinished && (
        <p className="mt-1 font-medium text-warn">A run is still in progress: all numbers are provisional.</p>
      )}
      {reasons.length > 0 && (
        <details className="mt-1" open={!comparable}>
          <summary>{comparable ? "Other differences" : "Reasons"}</summary>
          <ul className="mt-1 list-disc ps-5">
            {reasons.map((reason) => (
              <li key={reason}>
                <SafeText text={reason} />
              </li>
            ))}
          </ul>
        </details>
      )}
      {!comparable && (
        <div className="mt-2">
          <Button onClick={() => onChange({ force: forced ? "off" : "on" })}>
            {forced ? "Hide comparison" : "Compare anyway"}
          </Button>
        </div>
      )}
    </section>
  );
}
