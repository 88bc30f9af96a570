import { useMemo } from "react";
import { formatCount, formatScore } from "../../lib/format.ts";
import type { CaseChange } from "./comparison.ts";

const WIDTH = 180;
const HEIGHT = 34;

/** Score distributions of both runs in the same bins: the candidate as columns, the baseline as a line. */
export function ScoreDistribution({
  cases,
  grader,
  label,
}: {
  cases: readonly CaseChange[];
  grader: string;
  label: string;
}) {
  const bins = useMemo(() => binPairedScores(cases, grader), [cases, grader]);
  if (bins === null) return null;
  const most = Math.max(1, ...bins.flatMap((bin) => [bin.baseline, bin.candidate]));
  const width = WIDTH / bins.length;
  const top = (number: number) => HEIGHT - 1 - (number / most) * (HEIGHT - 3);
  const outline = bins
    .map((bin, index) => `${index === 0 ? "M0" : ""}V${top(bin.baseline)}H${(index + 1) * width}`)
    .join("");
  return (
    <figure className="flex flex-wrap items-end gap-x-3">
      <svg
        role="img"
        aria-label={`Scores by ${label}: ${describeBins(bins)}`}
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        width={WIDTH}
        height={HEIGHT}
        className="max-w-full"
      >
        {bins.map((bin, index) => (
          <rect
            key={bin.low}
            x={index * width + 1}
            y={top(bin.candidate)}
            width={width - 2}
            height={HEIGHT - 1 - top(bin.candidate)}
            fill="var(--accent)"
            opacity="0.5"
          />
        ))}
        <path d={outline.replace(/^M0V/, "M0 ")} fill="none" stroke="var(--text)" strokeWidth="1.2" />
      </svg>
      <figcaption className="text-xs text-muted">Scores from 0 to 1. Columns: candidate. Line: baseline.</figcaption>
    </figure>
  );
}

function describeBins(bins: readonly PairedBin[]): string {
  return bins
    .filter((bin) => bin.baseline > 0 || bin.candidate > 0)
    .map(
      (bin) =>
        `${formatScore(bin.low)} to ${formatScore(bin.high)}, baseline ${formatCount(bin.baseline)}, candidate ${formatCount(bin.candidate)}`,
    )
    .join("; ");
}

interface PairedBin {
  low: number;
  high: number;
  baseline: number;
  candidate: number;
}

const BINS = 10;

/** Scores of both runs in the same bins; null if all scores are 0 or 1, where the means are enough. */
export function binPairedScores(cases: readonly CaseChange[], grader: string): PairedBin[] | null {
  const of = (side: "baseline" | "candidate") =>
    cases.map((one) => one[side][grader] ?? null).filter((value) => value !== null);
  const before = of("baseline");
  const after = of("candidate");
  if ([...before, ...after].every((value) => value === 0 || value === 1)) return null;
  const now = countIntoBins(after, 0, 1, BINS);
  return countIntoBins(before, 0, 1, BINS).map(({ low, high, count }, index) => ({
    low,
    high,
    baseline: count,
    candidate: now[index]?.count ?? 0,
  }));
}

interface ScoreBin {
  low: number;
  /** Exclusive, except in the last bin. */
  high: number;
  count: number;
}

/** Counts values in bins of equal width from `low` to `high`; values outside go to the outermost bins. */
export function countIntoBins(values: readonly number[], low: number, high: number, bins: number): ScoreBin[] {
  const width = (high - low) / bins;
  const result = Array.from({ length: bins }, (_, index) => ({
    low: rounded(low + index * width),
    high: rounded(low + (index + 1) * width),
    count: 0,
  }));
  for (const value of values) {
    const index = Math.min(bins - 1, Math.max(0, Math.floor(rounded((value - low) / width))));
    const bin = result[index];
    if (bin) bin.count += 1;
  }
  return result;
}

// so that 0.1 + 0.2 falls into the bin of 0.3
function rounded(value: number): number {
  return Number(value.toPrecision(12));
}
