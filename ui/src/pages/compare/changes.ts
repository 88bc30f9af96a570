import type { Comparison } from "../../api/types.ts";
import { CHANGES, type Change } from "./state.ts";

export type CaseChange = Comparison["cases"][number];
export type Counts = Record<Change, number>;

/** How much a grader's score of a case moved; null where a run has none. */
export function difference(one: CaseChange, grader: string): number | null {
  const before = one.baseline[grader] ?? null;
  const after = one.candidate[grader] ?? null;
  // 0.1 + 0.2 is no change from 0.3
  return before === null || after === null ? null : Number((after - before).toFixed(12));
}

/** What became of a case by one grader's word; by that of all where none is named. */
export function changeBy(one: CaseChange, grader: string): Change {
  return grader === "" ? one.change : (one.changes[grader] ?? "missing");
}

/** The largest loss, or else the largest gain, among the graders asked. */
export function tellingDifference(one: CaseChange, grader: string): number | null {
  const graders = grader === "" ? Object.keys({ ...one.baseline, ...one.candidate }) : [grader];
  const moved = graders.map((key) => difference(one, key)).filter((value) => value !== null);
  if (moved.length === 0) return null;
  const least = Math.min(...moved);
  return least < 0 ? least : Math.max(...moved);
}

/** The cases to show: the largest loss first, what stayed the same last. */
export function shownCases(cases: readonly CaseChange[], grader: string, show: Change | ""): CaseChange[] {
  const rows = cases.map((one) => ({ one, change: changeBy(one, grader), moved: tellingDifference(one, grader) ?? 0 }));
  return rows
    .filter((row) => show === "" || row.change === show)
    .sort(
      (a, b) =>
        CHANGES.indexOf(a.change) - CHANGES.indexOf(b.change) ||
        (a.change === "improved" ? b.moved - a.moved : a.moved - b.moved),
    )
    .map((row) => row.one);
}

/** How many cases there are of each kind, also of those that the service did not list. */
export function countsFor(comparison: Comparison, grader: string): Counts {
  const counts = Object.fromEntries(CHANGES.map((change) => [change, 0])) as Counts;
  if (comparison.cases_omitted === 0) {
    for (const one of comparison.cases) counts[changeBy(one, grader)] += 1;
    return counts;
  }
  const told = grader === "" ? undefined : comparison.graders[grader];
  if (told) return { ...counts, improved: told.improved, worse: told.worse, same: told.same, missing: told.missing };
  return { ...counts, ...comparison.case_counts };
}
