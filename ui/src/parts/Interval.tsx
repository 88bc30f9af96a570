import { rate, type Estimate } from "../lib/format.ts";

const WIDTH = 120;
const HEIGHT = 14;

/** A rate from 0 to 1 as a bar, its interval as a whisker. */
export function IntervalBar({ figure, label }: { figure: Estimate; label: string }) {
  const { value, low, high } = figure;
  const told = `${label}: ${rate(figure)}`;
  if (value === null) return <span className="text-muted">–</span>;
  return (
    <svg
      role="img"
      aria-label={told}
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
