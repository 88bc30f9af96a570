import { useParams } from "react-router";
import { ApiError } from "../../api/error.ts";
import type { Evaluation } from "../../api/types.ts";
import { LinkButton } from "../../components/Button.tsx";
import { EmptyState, ErrorNotice, Loading } from "../../components/Notice.tsx";
import { usePageTitle } from "../../lib/hooks.ts";
import { isInProgress } from "../../lib/run.ts";
import { useUrlState } from "../../lib/urlState.ts";
import { visibleText } from "../../lib/visibleText.ts";
import { Distributions } from "./Distributions.tsx";
import { Filters } from "./Filters.tsx";
import { GraderTable } from "./GraderTable.tsx";
import { ResultDrawer } from "./ResultDrawer.tsx";
import { ResultsGrid } from "./ResultsGrid.tsx";
import { RunHeader } from "./RunHeader.tsx";
import { type ChangeRun, RUN_STATE, type RunState } from "./state.ts";
import { type ResultRows, useHistograms, useLiveUpdates, useResults, useRun, useSummary } from "./useRun.ts";

export function RunPage() {
  const { id = "" } = useParams();
  return <Run key={id} id={id} />;
}

function Run({ id }: { id: string }) {
  const [state, change] = useUrlState(RUN_STATE);
  // requested in parallel
  const run = useRun(id);
  const summary = useSummary(id);
  const rows = useResults(id, state);
  const missing = run.error instanceof ApiError && run.error.code === "NOT_FOUND";
  usePageTitle(run.data ? visibleText(run.data.name ?? "Run") : "Run");
  if (missing) {
    return (
      <EmptyState title="Run not found" actions={<LinkButton to="/runs">Go to runs</LinkButton>}>
        It may have been deleted, or it is in another store.
      </EmptyState>
    );
  }
  if (run.error && !run.data) return <ErrorNotice error={run.error} onRetry={() => void run.refetch()} />;
  if (!run.data) return <Loading what="Loading the run" />;
  return <LoadedRun run={run.data} summary={summary} rows={rows} state={state} change={change} />;
}

interface LoadedRunProps {
  run: Evaluation;
  summary: ReturnType<typeof useSummary>;
  rows: ResultRows;
  state: RunState;
  change: ChangeRun;
}

function LoadedRun({ run, summary, rows, state, change }: LoadedRunProps) {
  const connection = useLiveUpdates(run);
  const histograms = useHistograms(run.id, isInProgress(run.status));
  const graders = Object.keys(summary.data?.pass_rates ?? {});
  return (
    <div className="flex flex-col gap-4">
      <RunHeader run={run} summary={summary.data ?? null} connection={connection} />
      {summary.error && <ErrorNotice error={summary.error} />}
      {summary.data && (
        <>
          <GraderTable summary={summary.data} state={state} onChange={change} />
          {histograms.data && <Distributions histograms={histograms.data} state={state} onChange={change} />}
        </>
      )}
      <section aria-labelledby="results" className="flex flex-col gap-2">
        <h2 id="results" className="text-lg font-semibold">
          Results
        </h2>
        <Filters
          graders={graders}
          state={state}
          onChange={change}
          rows={rows}
          total={summary.data?.total_results ?? null}
        />
        {rows.error && <ErrorNotice error={rows.error} />}
        <ResultsGrid run={run} graders={graders} rows={rows} state={state} onChange={change} />
      </section>
      {state.row !== "" && <ResultDrawer run={run} rows={rows} state={state} onChange={change} />}
    </div>
  );
}
