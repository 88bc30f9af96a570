import type { Comparison } from "../../api/types.ts";
import { Badge } from "../../components/Badge.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { formatCount, formatScore, inClusters, pluralize } from "../../lib/format.ts";
import { visibleText } from "../../lib/visibleText.ts";
import {
  type Change,
  CHANGE_HELP,
  CHANGE_LABELS,
  type ChangeState,
  type CompareState,
  comparisonSentence,
  countsFor,
  DECISION_LABELS,
  type Difference,
  formatSignedInterval,
  graderNotes,
} from "./comparison.ts";
import { ScoreDistribution } from "./ScoreDistribution.tsx";

const FILTERS = ["improved", "worse", "same", "missing", "not_applicable"] as const;

interface Props {
  comparison: Comparison;
  state: CompareState;
  onChange: ChangeState;
}

/** The difference by grader with its interval and decision; the counts are filters. */
export function GraderDifferences({ comparison, state, onChange }: Props) {
  const graders = Object.entries(comparison.graders);
  if (graders.length === 0) return null;
  const limit = axisLimit(graders.map(([, result]) => result));
  return (
    <section aria-label="Graders" className="flex flex-col gap-2">
      <p className="flex flex-wrap items-center gap-2">
        {comparison.decision && (
          <Badge tone={DECISION_LABELS[comparison.decision].tone}>{DECISION_LABELS[comparison.decision].label}</Badge>
        )}
        <span className="font-medium">{comparisonSentence(comparison)}</span>
      </p>
      <div className="grid gap-2 lg:grid-cols-2">
        {graders.map(([grader, result]) => (
          <GraderDifferenceCard
            key={grader}
            grader={grader}
            result={result}
            limit={limit}
            comparison={comparison}
            state={state}
            onChange={onChange}
          />
        ))}
      </div>
      <p className="text-xs text-muted">
        Candidate minus baseline over the same cases. Whisker: 95 % interval. Dashed line: a loss of{" "}
        {formatScore(comparison.margin)} still counts as not worse.
      </p>
    </section>
  );
}

function GraderDifferenceCard({
  grader,
  result,
  limit,
  comparison,
  state,
  onChange,
}: Props & { grader: string; result: Difference; limit: number }) {
  const counts = countsFor(comparison, grader);
  const { tone, label: decision } = DECISION_LABELS[result.decision];
  const chosen = (change: Change) => state.grader === grader && state.show === change;
  return (
    <article className="card flex flex-col gap-2 p-3" aria-label={`Grader ${visibleText(grader)}`}>
      <header className="flex flex-wrap items-center gap-2">
        <h2 className="font-medium">
          <SafeText text={grader} />
        </h2>
        <Badge tone={tone}>{decision}</Badge>
        <span className="num ml-auto text-sm text-muted">
          {formatScore(result.baseline)} → {formatScore(result.candidate)}
        </span>
      </header>
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
        <DifferenceBar result={result} limit={limit} margin={comparison.margin} label={visibleText(grader)} />
        <span className="num text-sm">{formatSignedInterval(result)}</span>
      </div>
      {result.corrected && (
        <p className="num text-xs font-medium" title="The difference corrected by labels of both runs" data-corrected>
          <SafeText text={result.corrected.sentence ?? ""} />
        </p>
      )}
      {comparison.cases_omitted === 0 && (
        <ScoreDistribution cases={comparison.cases} grader={grader} label={visibleText(grader)} />
      )}
      <p className="num text-xs text-muted">
        {pluralize(result.n, "paired case")}
        {inClusters(result.clusters)}
        {result.p_adjusted !== null && `, p = ${result.p_adjusted.toPrecision(2)} adjusted for all graders`}
        {result.noise_threshold !== null && `, noise ±${formatScore(result.noise_threshold)}`}. {graderNotes(result)}
      </p>
      <LargestDrops result={result} />
      <div className="flex flex-wrap gap-1">
        {FILTERS.filter((change) => change !== "not_applicable" || counts[change] > 0).map((change) => (
          <FilterButton
            key={change}
            change={change}
            number={counts[change]}
            of={`by ${visibleText(grader)}`}
            chosen={chosen(change)}
            onClick={() => onChange(chosen(change) ? { grader: "", show: "" } : { grader, show: change })}
          />
        ))}
      </div>
    </article>
  );
}

/** Not shown for pass/fail grades, where all drops are equal. */
function LargestDrops({ result }: { result: Difference }) {
  if (result.test === "mcnemar_mid_p" || result.largest_drops.length === 0) return null;
  return (
    <p className="num text-xs text-muted">
      Largest drops:{" "}
      {result.largest_drops.map((drop, index) => (
        <span key={drop.case}>
          {index > 0 && ", "}
          <SafeText text={drop.case} /> {formatScore(drop.baseline)} → {formatScore(drop.candidate)}
        </span>
      ))}
    </p>
  );
}

interface FilterProps {
  change: Change;
  number: number;
  of: string;
  chosen: boolean;
  onClick: () => void;
}

export function FilterButton({ change, number, of, chosen, onClick }: FilterProps) {
  const { icon, label } = CHANGE_LABELS[change];
  return (
    <button
      type="button"
      aria-pressed={chosen}
      title={CHANGE_HELP[change]}
      disabled={number === 0 && !chosen}
      onClick={onClick}
      className={`num rounded-full border px-2.5 py-1 text-xs font-medium disabled:text-muted ${chosen ? "border-accent bg-accent-soft text-accent" : "border-line bg-surface enabled:hover:bg-raised"}`}
    >
      <span aria-hidden>{icon}</span> {formatCount(number)} {label}
      <span className="sr-only"> {of}</span>
    </button>
  );
}

const WIDTH = 180;
const HEIGHT = 18;
const COLOURS = {
  better: "var(--pass)",
  not_worse: "var(--pass)",
  worse: "var(--fail)",
  undecided: "var(--warn)",
} as const;

interface DifferenceBarProps {
  result: Difference;
  /** The axis goes from −limit to +limit and is the same for all graders. */
  limit: number;
  margin: number;
  label: string;
}

/** A paired difference with its interval; left of the dashed line the loss exceeds the margin. */
function DifferenceBar({ result, limit, margin, label }: DifferenceBarProps) {
  const { difference, low, high, decision } = result;
  if (difference === null) return <span className="text-muted">no paired cases</span>;
  const at = (value: number) => Math.min(WIDTH - 1, Math.max(1, ((value + limit) / (2 * limit)) * WIDTH));
  const colour = COLOURS[decision];
  const middle = HEIGHT / 2;
  return (
    <svg
      role="img"
      aria-label={`${label}: difference ${formatSignedInterval(result)}`}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      width={WIDTH}
      height={HEIGHT}
      className="max-w-full"
    >
      <rect x="0" y={middle - 2} width={WIDTH} height="4" rx="2" fill="var(--raised)" />
      <line x1={at(0)} x2={at(0)} y1="0" y2={HEIGHT} stroke="var(--muted)" />
      {margin > 0 && margin < limit && (
        <line x1={at(-margin)} x2={at(-margin)} y1="0" y2={HEIGHT} stroke="var(--muted)" strokeDasharray="2 2" />
      )}
      {low !== null && high !== null && (
        <g stroke={colour} strokeWidth="2">
          <line x1={at(low)} x2={at(high)} y1={middle} y2={middle} />
          <line x1={at(low)} x2={at(low)} y1={middle - 5} y2={middle + 5} />
          <line x1={at(high)} x2={at(high)} y1={middle - 5} y2={middle + 5} />
        </g>
      )}
      <circle cx={at(difference)} cy={middle} r="3.5" fill={colour} />
    </svg>
  );
}

/** The limit of an axis that contains all intervals. */
function axisLimit(differences: readonly Difference[]): number {
  const ends = differences.flatMap((one) => [one.low, one.high, one.difference]).filter((end) => end !== null);
  const most = Math.max(0.05, ...ends.map(Math.abs));
  return Math.min(1, most * 1.08);
}
