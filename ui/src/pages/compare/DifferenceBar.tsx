import type { Difference } from "./wording.ts";
import { signedInterval } from "./wording.ts";

const WIDTH = 180;
const HEIGHT = 18;
const COLOURS = {
  better: "var(--pass)",
  not_worse: "var(--pass)",
  worse: "var(--fail)",
  undecided: "var(--warn)",
} as const;

interface Props {
  told: Difference;
  /** The axis goes from −reach to +reach, the same for all bars beside each other. */
  reach: number;
  margin: number;
  label: string;
}

/** A paired difference around zero, its interval as a whisker; left of the dashed line is too much of a loss. */
export function DifferenceBar({ told, reach, margin, label }: Props) {
  const { difference, low, high, decision } = told;
  if (difference === null) return <span className="text-muted">nothing to compare</span>;
  const at = (value: number) => Math.min(WIDTH - 1, Math.max(1, ((value + reach) / (2 * reach)) * WIDTH));
  const colour = COLOURS[decision];
  const middle = HEIGHT / 2;
  return (
    <svg
      role="img"
      aria-label={`${label}: difference ${signedInterval(told)}`}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      width={WIDTH}
      height={HEIGHT}
      className="max-w-full"
    >
      <rect x="0" y={middle - 2} width={WIDTH} height="4" rx="2" fill="var(--raised)" />
      <line x1={at(0)} x2={at(0)} y1="0" y2={HEIGHT} stroke="var(--muted)" />
      {margin > 0 && margin < reach && (
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

/** An axis that holds all intervals. */
export function reachOf(differences: readonly Difference[]): number {
  const ends = differences.flatMap((one) => [one.low, one.high, one.difference]).filter((end) => end !== null);
  const most = Math.max(0.05, ...ends.map(Math.abs));
  return Math.min(1, most * 1.08);
}
