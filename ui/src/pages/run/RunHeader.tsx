import { Link } from "react-router";
import type { Connection } from "../../api/events.ts";
import type { Evaluation, Progress, RunComparison, Summary } from "../../api/types.ts";
import { Badge, RunBadge } from "../../components/Badge.tsx";
import { Warnings } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import {
  formatAgo,
  formatBytes,
  formatCount,
  formatDateTime,
  formatDuration,
  formatElapsed,
  formatPercent,
  pluralize,
} from "../../lib/format.ts";
import {
  earlyStopText,
  graderNames,
  type Headline,
  isInProgress,
  remainingMs,
  runHeadline,
  targetName,
  variantName,
} from "../../lib/run.ts";
import { RunBaselines } from "./Baselines.tsx";
import { RunActions } from "./RunActions.tsx";
import { useRunStorage } from "./useRun.ts";

const TONES: Record<Headline["tone"], string> = {
  good: "border-pass",
  bad: "border-fail",
  open: "border-warn",
  none: "border-muted",
};

const CONNECTIONS: Record<Connection, string> = {
  connecting: "connecting…",
  live: "live",
  polling: "offline: polling every few seconds",
  ended: "",
};

/** Status, actions, verdict, warnings, progress and facts of a run. */
export function RunHeader({
  run,
  summary,
  connection,
}: {
  run: Evaluation;
  summary: Summary | null;
  connection: Connection;
}) {
  const verdict = summary ? runHeadline(run, summary) : null;
  const eta = remainingMs(run);
  const storage = useRunStorage(run);
  return (
    <header className="flex flex-col gap-3">
      <div className="flex flex-wrap items-start gap-2">
        <div className="mr-auto min-w-0">
          <h1 className="text-xl font-semibold">
            <SafeText text={run.name || `Run ${run.id.slice(0, 8)}`} />
            {variantName(run) && <SafeText text={`, variant ${variantName(run)}`} />}
          </h1>
          <p className="flex flex-wrap items-center gap-2 text-sm text-muted">
            <RunBadge status={run.status} reason={run.error_message} />
            {connection !== "ended" && (
              <Badge tone={connection === "live" ? "accent" : "open"}>{CONNECTIONS[connection]}</Badge>
            )}
            <span title={formatDateTime(run.started_at)}>started {formatAgo(run.started_at)}</span>
            {run.started_at && run.completed_at && <span>took {formatElapsed(run.started_at, run.completed_at)}</span>}
          </p>
        </div>
        <RunActions run={run} failed={summary ? countFailures(summary) : 0} />
      </div>
      {run.error_message && (
        <p className="card border-l-4! border-fail p-3" data-reason>
          <SafeText text={run.error_message} />
        </p>
      )}
      {verdict && (
        <div className={`card border-l-4! p-3 ${TONES[verdict.tone]}`}>
          <p className="text-base font-medium" data-verdict>
            <SafeText text={verdict.sentence} />
          </p>
          <p className="text-sm text-muted">
            {summary?.sentence}
            {isInProgress(run.status) && "; provisional until the run is finished"}
          </p>
          {run.comparison && <BaselineComparison comparison={run.comparison} />}
        </div>
      )}
      <Warnings warnings={run.warnings} />
      {run.progress && (isInProgress(run.status) || run.status === "cancelled" || run.status === "interrupted") && (
        <div>
          <ProgressBar progress={run.progress} />
          {eta !== null && <p className="text-sm text-muted">about {formatDuration(Math.max(1000, eta))} remaining</p>}
        </div>
      )}
      <dl className="flex flex-wrap gap-x-6 gap-y-1 text-sm">
        <RunBaselines run={run} />
        <Fact term="Agent" text={targetName(run)} />
        <Fact term="Graders" text={graderNames(run)} />
        <Fact term="Stopped early" text={earlyStopText(run)} />
        {run.tag && <Fact term="Tag" text={run.tag} />}
        {(run.repeats ?? 1) > 1 && <Fact term="Repeats" text={formatCount(run.repeats)} />}
        {run.parent && (
          <div className="flex gap-1">
            <dt className="text-muted">Regrade of</dt>
            <dd>
              <Link className="text-accent underline" to={`/runs/${encodeURIComponent(run.parent)}`}>
                {run.parent.slice(0, 8)}
              </Link>
            </dd>
          </div>
        )}
        {storage.data && <Fact term="Size" text={`about ${formatBytes(storage.data.estimated_bytes)}`} />}
        <Fact term="Id" text={run.id} />
      </dl>
    </header>
  );
}

/** Number of results that "retry failed" repeats. */
function countFailures(summary: Summary): number {
  const graders = Object.values(summary.grader_error_counts).reduce((sum, errors) => sum + errors, 0);
  return summary.failed_responses + summary.timeout_responses + graders;
}

function BaselineComparison({ comparison }: { comparison: RunComparison }) {
  const { comparable, reasons, sentence } = comparison;
  return (
    <p className="text-sm">
      Compared with its baseline:{" "}
      <SafeText text={comparable && sentence !== null ? sentence : `not comparable (${reasons.join("; ")})`} />
    </p>
  );
}

function Fact({ term, text }: { term: string; text: string }) {
  if (text === "") return null;
  return (
    <div className="flex min-w-0 gap-1">
      <dt className="text-muted">{term}</dt>
      <dd className="min-w-0">
        <SafeText text={text} />
      </dd>
    </div>
  );
}

/** Shows responses and, within them, grades. */
function ProgressBar({ progress }: { progress: Progress }) {
  const total = progress.total ?? 0;
  const answered = share(progress.answered, total);
  const graded = share(progress.graded, total);
  const description = `${formatCount(progress.answered)} of ${formatCount(progress.total)} responses, ${formatCount(progress.graded)} graded`;
  return (
    <div>
      <div
        role="progressbar"
        aria-label="Progress"
        aria-valuenow={Math.round(graded * 100)}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuetext={description}
        title={description}
        className="relative h-2.5 overflow-hidden rounded-full bg-raised"
      >
        <div
          className="absolute inset-y-0 left-0 bg-accent/35 transition-[width]"
          style={{ width: `${answered * 100}%` }}
        />
        <div className="absolute inset-y-0 left-0 bg-accent transition-[width]" style={{ width: `${graded * 100}%` }} />
      </div>
      <p className="num mt-1 text-sm text-muted">
        {description} ({formatPercent(graded)}){progress.errors > 0 && `, ${pluralize(progress.errors, "agent error")}`}
      </p>
    </div>
  );
}

function share(part: number, total: number): number {
  return total > 0 ? Math.min(1, part / total) : 0;
}
