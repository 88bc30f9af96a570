import { useParams } from "react-router";
import { ApiFailure } from "../../api/failure.ts";
import type { Evaluation } from "../../api/types.ts";
import { useTitle } from "../../app/useTitle.ts";
import { isGoing } from "../../lib/progress.ts";
import { useUrlState } from "../../lib/useUrlState.ts";
import { visibleText } from "../../lib/visible.ts";
import { LinkButton } from "../../parts/Button.tsx";
import { Empty, Failure, Loading } from "../../parts/Notice.tsx";
import { Distributions } from "./Distributions.tsx";
import { Filters } from "./Filters.tsx";
import { GraderTable } from "./GraderTable.tsx";
import { ResultDrawer } from "./ResultDrawer.tsx";
import { ResultsGrid } from "./ResultsGrid.tsx";
import { RunHeader } from "./RunHeader.tsx";
import { RUN_STATE, type ChangeRun, type RunState } from "./state.ts";
import { useHistograms, useLive, useRows, useRun, useSummary, type Rows } from "./useRun.ts";

export function RunPage() {
  const { id = "" } = useParams();
  return <Run key={id} id={id} />;
}

function Run({ id }: { id: string }) {
  const [state, change] = useUrlState(RUN_STATE);
  // asked for at the same time, not one after the other
  const run = useRun(id);
  const summary = useSummary(id);
  const rows = useRows(id, state);
  const missing = run.error instanceof ApiFailure && run.error.code === "NOT_FOUND";
  useTitle(run.data ? visibleText(run.data.name ?? "Run") : "Run");
  if (missing) {
    return <Empty title="There is no such run" actions={<LinkButton to="/runs">To the runs</LinkButton>} />;
  }
  if (run.error && !run.data) return <Failure error={run.error} onRetry={() => void run.refetch()} />;
  if (!run.data) return <Loading what="Loading the run" />;
  return <LoadedRun run={run.data} summary={summary} rows={rows} state={state} change={change} />;
}

interface Loaded {
  run: Evaluation;
  summary: ReturnType<typeof useSummary>;
  rows: Rows;
  state: RunState;
  change: ChangeRun;
}

function LoadedRun({ run, summary, rows, state, change }: Loaded) {
  const connection = useLive(run);
  const histograms = useHistograms(run.id, isGoing(run.status));
  const graders = Object.keys(summary.data?.pass_rates ?? {});
  return (
    <div className="flex flex-col gap-4">
      <RunHeader run={run} summary={summary.data ?? null} connection={connection} />
      {summary.error && <Failure error={summary.error} />}
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
        {rows.error && <Failure error={rows.error} />}
        <ResultsGrid run={run} graders={graders} rows={rows} state={state} onChange={change} />
      </section>
      {state.row !== "" && <ResultDrawer run={run} rows={rows} state={state} onChange={change} />}
    </div>
  );
}
