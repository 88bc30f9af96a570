import type { CorrectedRate, Outcome, Summary } from "../../api/types.ts";
import { JudgeBadge, OUTCOMES } from "../../components/Badge.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import {
  type Estimate,
  formatCount,
  formatDuration,
  formatMean,
  formatPercent,
  formatRate,
  pluralize,
} from "../../lib/format.ts";
import { type ChangeRun, NO_FILTER, type RunState } from "./state.ts";

interface Props {
  summary: Summary;
  state: RunState;
  onChange: ChangeRun;
}

const COUNTED = ["pass", "fail", "error", "skipped"] as const;

/** Pass rate with interval, coverage and outcome counts by grader; the counts are filters. */
export function GraderTable({ summary, state, onChange }: Props) {
  const graders = Object.keys(summary.pass_rates);
  if (graders.length === 0) return null;
  const limited = Object.values(summary.grader_not_applicable_counts).some((count) => count > 0);
  const outcomes = limited ? ([...COUNTED, "not_applicable"] as const) : COUNTED;
  return (
    <section aria-label="Graders" className="card overflow-x-auto">
      <table className="w-full text-sm">
        <thead className="border-b border-line text-muted">
          <tr>
            <th className="p-2">Grader</th>
            <th className="p-2">Pass rate, 95 % interval</th>
            <th className="hidden p-2 md:table-cell">Mean score</th>
            <th className="hidden p-2 lg:table-cell">Coverage</th>
            {outcomes.map((outcome) => (
              <th key={outcome} className="p-2 text-end">
                {outcome.replace("_", " ")}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {graders.map((grader) => (
            <GraderRow
              key={grader}
              grader={grader}
              outcomes={outcomes}
              summary={summary}
              state={state}
              onChange={onChange}
            />
          ))}
        </tbody>
      </table>
      <ResponseCounts summary={summary} state={state} onChange={onChange} />
    </section>
  );
}

type RowProps = Props & { grader: string; outcomes: readonly Outcome[] };

function GraderRow({ grader, outcomes, summary, state, onChange }: RowProps) {
  const passes = summary.pass_rates[grader];
  const scores = summary.average_scores[grader];
  const coverage = summary.coverage[grader];
  const orders = summary.orders[grader];
  const judge = summary.calibration?.[grader];
  const counts: Record<Outcome, number> = {
    pass: summary.grader_pass_counts[grader] ?? 0,
    fail: summary.grader_fail_counts[grader] ?? 0,
    error: summary.grader_error_counts[grader] ?? 0,
    skipped: summary.grader_skipped_counts[grader] ?? 0,
    not_applicable: summary.grader_not_applicable_counts[grader] ?? 0,
  };
  return (
    <tr className="border-b border-line last:border-0">
      <td className="min-w-28 p-2 font-medium">
        <SafeText text={grader} />
        {orders && <span className="block font-normal text-muted">{orders.sentence}</span>}
        {judge && (
          <span className="block max-w-md">
            <JudgeBadge judge={judge} explained />
          </span>
        )}
        {judgeNotes(summary, grader).map((note) => (
          <span key={note} className="block max-w-md text-xs font-normal text-muted">
            <SafeText text={note} />
          </span>
        ))}
      </td>
      <td className="p-2">
        {passes && (
          <span className="flex flex-wrap items-center gap-x-3">
            <IntervalBar figure={passes} label={`Pass rate of ${grader}`} />
            <span className="num whitespace-nowrap">{formatRate(passes)}</span>
          </span>
        )}
        <Corrected rate={summary.corrected?.[grader]} of="pass rate" />
      </td>
      <td className="num hidden p-2 md:table-cell">
        <span className="whitespace-nowrap">{scores && formatMean(scores)}</span>
        <Corrected rate={summary.corrected_means?.[grader]} of="mean score" />
      </td>
      <td className="num hidden p-2 whitespace-nowrap lg:table-cell">
        {coverage &&
          `${formatPercent(coverage.share)} (${formatCount(coverage.scored)} of ${formatCount(coverage.total)})`}
      </td>
      {outcomes.map((outcome) => {
        const on = state.grader === grader && state.outcome === outcome;
        return (
          <td key={outcome} className="p-1 text-end">
            <CountButton
              on={on}
              value={counts[outcome]}
              label={`${grader}: ${OUTCOMES[outcome].label}`}
              tone={outcome === "pass" ? "text-pass" : outcome === "fail" ? "text-fail" : "text-none"}
              onClick={() => onChange(on ? { grader: "", outcome: "" } : { ...NO_FILTER, grader, outcome })}
            />
          </td>
        );
      })}
    </tr>
  );
}

/** What a grader's number is by people's labels, or why it is not corrected. */
function Corrected({ rate, of }: { rate: CorrectedRate | undefined; of: string }) {
  if (rate === undefined) return null;
  const corrected = rate.estimate !== null && rate.estimate !== undefined;
  return (
    <span
      className={`num block max-w-md text-xs ${corrected ? "font-medium" : "text-muted"}`}
      title={`The ${of} corrected by labels, with its 95 % interval`}
      data-corrected
    >
      <SafeText text={rate.sentence ?? ""} />
    </span>
  );
}

/** What a judge that decides only what it is sure of has decided, and the biases that probes found. */
function judgeNotes(summary: Summary, grader: string): string[] {
  const selective = summary.selective?.[grader];
  const flagged = (summary.probes?.[grader] ?? []).filter((probe) => probe.verdict === "flagged");
  return [
    ...(selective ? [selective.sentence] : []),
    ...flagged.map((probe) => `probe ${probe.probe}: ${probe.sentence}`),
  ];
}

/** Counts of responses by status, and latencies. */
function ResponseCounts({ summary, state, onChange }: Props) {
  const kinds = [
    ["success", "successful responses", summary.successful_responses, "text-ink"],
    ["error", "agent errors", summary.failed_responses, "text-warn"],
    ["timeout", "timeouts", summary.timeout_responses, "text-warn"],
  ] as const;
  return (
    <div className="flex flex-wrap items-center gap-x-5 gap-y-1 border-t border-line px-2 py-1.5 text-sm">
      <span className="font-medium">Agent</span>
      {kinds.map(([status, label, value, tone]) => {
        const on = state.status === status;
        return (
          <span key={status} className="flex items-center gap-1 text-muted">
            <CountButton
              on={on}
              value={value}
              label={label}
              tone={tone}
              onClick={() => onChange(on ? { status: "" } : { ...NO_FILTER, status })}
            />
            {label}
          </span>
        );
      })}
      <span className="num text-muted">
        latency p50 {formatDuration(summary.p50_latency_ms)} · p95 {formatDuration(summary.p95_latency_ms)} · p99{" "}
        {formatDuration(summary.p99_latency_ms)}
      </span>
      {typeof summary.clusters === "number" && (
        <span
          className="num text-muted"
          title="Cases in a cluster are not independent, so intervals are computed over clusters"
        >
          {pluralize(summary.clusters, "cluster")}
        </span>
      )}
    </div>
  );
}

function CountButton({
  on,
  value,
  label,
  tone,
  onClick,
}: {
  on: boolean;
  value: number;
  label: string;
  tone: string;
  onClick: () => void;
}) {
  return (
    <button
      type="button"
      aria-pressed={on}
      aria-label={`${label}: ${formatCount(value)}; filter results`}
      disabled={value === 0 && !on}
      onClick={onClick}
      className={`num rounded-md px-2 py-1 font-semibold ${value === 0 ? "text-muted" : tone} ${on ? "bg-accent-soft ring-1 ring-accent" : "enabled:hover:bg-raised"}`}
    >
      {formatCount(value)}
    </button>
  );
}

const WIDTH = 120;
const HEIGHT = 14;

/** A rate as a bar with its interval as a whisker. */
function IntervalBar({ figure, label }: { figure: Estimate; label: string }) {
  const { value, low, high } = figure;
  const description = `${label}: ${formatRate(figure)}`;
  if (value === null) return <span className="text-muted">–</span>;
  return (
    <svg
      role="img"
      aria-label={description}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      width={WIDTH}
      height={HEIGHT}
      className="max-w-full"
    >
      <rect x="0" y="4" width={WIDTH} height="6" rx="3" fill="var(--raised)" />
      <rect x="0" y="4" width={Math.max(1, value * WIDTH)} height="6" rx="3" fill="var(--accent)" opacity="0.55" />
      {low !== null && high !== null && (
        <g stroke="var(--text)" strokeWidth="1.5">
          <line x1={at(low)} x2={at(high)} y1={HEIGHT / 2} y2={HEIGHT / 2} />
          <line x1={at(low)} x2={at(low)} y1="3" y2="11" />
          <line x1={at(high)} x2={at(high)} y1="3" y2="11" />
        </g>
      )}
      <circle cx={at(value)} cy={HEIGHT / 2} r="2.6" fill="var(--text)" />
    </svg>
  );
}

function at(share: number): number {
  return Math.min(WIDTH - 1, Math.max(1, share * WIDTH));
}
