import { binned } from "../../lib/histogram.ts";
import type { CaseChange } from "./changes.ts";

export interface PairedBin {
  low: number;
  high: number;
  baseline: number;
  candidate: number;
}

const BINS = 10;

/** Scores of both runs in the same bins; null where they are only 0 and 1, of which the means say all. */
export function scoreBins(cases: readonly CaseChange[], grader: string): PairedBin[] | null {
  const of = (side: "baseline" | "candidate") =>
    cases.map((one) => one[side][grader] ?? null).filter((value) => value !== null);
  const before = of("baseline");
  const after = of("candidate");
  if ([...before, ...after].every((value) => value === 0 || value === 1)) return null;
  const now = binned(after, 0, 1, BINS);
  return binned(before, 0, 1, BINS).map(({ low, high, count }, index) => ({
    low,
    high,
    baseline: count,
    candidate: now[index]?.count ?? 0,
  }));
}
