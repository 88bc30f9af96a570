import { Link } from "react-router";
import type { Connection } from "../../api/events.ts";
import type { Evaluation, RunComparison, Summary } from "../../api/types.ts";
import { ago, between, bytes, count, duration, moment } from "../../lib/format.ts";
import { isGoing, remaining } from "../../lib/progress.ts";
import { agentOf, earlyEndOf, gradersOf } from "../../lib/runFacts.ts";
import { verdictOf, type Verdict } from "../../lib/verdict.ts";
import { Badge, RunBadge } from "../../parts/Badge.tsx";
import { Warnings } from "../../parts/Notice.tsx";
import { ProgressBar } from "../../parts/ProgressBar.tsx";
import { SafeText } from "../../parts/SafeText.tsx";
import { RunActions } from "./RunActions.tsx";
import { useStorage } from "./useRun.ts";

const TONES: Record<Verdict["tone"], string> = {
  good: "border-pass",
  bad: "border-fail",
  open: "border-warn",
  none: "border-muted",
};

const CONNECTIONS: Record<Connection, string> = {
  connecting: "connecting…",
  live: "live",
  polling: "no stream: asking every few seconds",
  ended: "",
};

/** The verdict first; then what ran, and how far it is. */
export function RunHeader({
  run,
  summary,
  connection,
}: {
  run: Evaluation;
  summary: Summary | null;
  connection: Connection;
}) {
  const verdict = summary ? verdictOf(run, summary) : null;
  const eta = remaining(run);
  const storage = useStorage(run);
  return (
    <header className="flex flex-col gap-3">
      <div className="flex flex-wrap items-start gap-2">
        <div className="mr-auto min-w-0">
          <h1 className="text-xl font-semibold">
            <SafeText text={run.name || `Run ${run.id.slice(0, 8)}`} />
          </h1>
          <p className="flex flex-wrap items-center gap-2 text-sm text-muted">
            <RunBadge status={run.status} reason={run.error_message} />
            {connection !== "ended" && (
              <Badge tone={connection === "live" ? "accent" : "open"}>{CONNECTIONS[connection]}</Badge>
            )}
            <span title={moment(run.started_at)}>started {ago(run.started_at)}</span>
            {run.started_at && run.completed_at && <span>took {between(run.started_at, run.completed_at)}</span>}
          </p>
        </div>
        <RunActions run={run} failed={summary ? failuresIn(summary) : 0} />
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
            {isGoing(run.status) && "; provisional until the run is done"}
          </p>
          {run.comparison && <Against comparison={run.comparison} />}
        </div>
      )}
      <Warnings warnings={run.warnings} />
      {run.progress && (isGoing(run.status) || run.status === "cancelled" || run.status === "interrupted") && (
        <div>
          <ProgressBar progress={run.progress} />
          {eta !== null && <p className="text-sm text-muted">about {duration(Math.max(1000, eta))} to go</p>}
        </div>
      )}
      <dl className="flex flex-wrap gap-x-6 gap-y-1 text-sm">
        <Fact term="Agent" text={agentOf(run)} />
        <Fact term="Graders" text={gradersOf(run)} />
        <Fact term="Ended early" text={earlyEndOf(run)} />
        {run.tag && <Fact term="Tag" text={run.tag} />}
        {(run.repeats ?? 1) > 1 && <Fact term="Repeats" text={count(run.repeats)} />}
        {run.parent && (
          <div className="flex gap-1">
            <dt className="text-muted">Regrades</dt>
            <dd>
              <Link className="text-accent underline" to={`/runs/${encodeURIComponent(run.parent)}`}>
                {run.parent.slice(0, 8)}
              </Link>
            </dd>
          </div>
        )}
        {storage.data && <Fact term="Stored" text={`about ${bytes(storage.data.estimated_bytes)}`} />}
        <Fact term="Id" text={run.id} />
      </dl>
    </header>
  );
}

/** What "retry failed" would do again. */
function failuresIn(summary: Summary): number {
  const graders = Object.values(summary.grader_error_counts).reduce((sum, errors) => sum + errors, 0);
  return summary.failed_responses + summary.timeout_responses + graders;
}

function Against({ comparison }: { comparison: RunComparison }) {
  const { comparable, reasons, sentence } = comparison;
  return (
    <p className="text-sm">
      Against its baseline:{" "}
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
