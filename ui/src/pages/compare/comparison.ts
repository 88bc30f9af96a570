import type { Comparison } from "../../api/types.ts";
import type { Tone } from "../../components/Badge.tsx";
import { formatCount, formatScore, pluralize } from "../../lib/format.ts";
import { integer, oneOf, type StateOf, text } from "../../lib/urlState.ts";

/** How a case may have changed, most important first. */
export const CHANGES = ["worse", "mixed", "missing", "edited", "improved", "same", "not_applicable"] as const;
export type Change = (typeof CHANGES)[number];

/** The state of the page in the URL. */
export const COMPARE_STATE = {
  baseline: text(),
  candidate: text(),
  /** Compare runs that are not comparable. */
  force: oneOf(["on", "off"] as const, "off"),
  show: oneOf<Change | "">(["", ...CHANGES], ""),
  /** The grader that decides what improved or got worse; empty for all graders. */
  grader: text(),
  /** The open case. */
  row: text(),
  repeat: integer(0),
  view: oneOf(["diff", "sides"] as const, "diff"),
};

export type CompareState = StateOf<typeof COMPARE_STATE>;
export type ChangeState = (change: Partial<CompareState>, options?: { replace?: boolean }) => void;

export type CaseChange = Comparison["cases"][number];
export type Counts = Record<Change, number>;

/** Difference of a grader's scores for a case; null if a run has no score. */
export function scoreDifference(one: CaseChange, grader: string): number | null {
  const before = one.baseline[grader] ?? null;
  const after = one.candidate[grader] ?? null;
  // 0.1 + 0.2 equals 0.3 here
  return before === null || after === null ? null : Number((after - before).toFixed(12));
}

/** How a case changed according to one grader, or to all if `grader` is empty. */
export function changeFor(one: CaseChange, grader: string): Change {
  return grader === "" ? one.change : (one.changes[grader] ?? "missing");
}

/** The largest loss, or else the largest gain, over the chosen graders. */
export function largestDifference(one: CaseChange, grader: string): number | null {
  const graders = grader === "" ? Object.keys({ ...one.baseline, ...one.candidate }) : [grader];
  const differences = graders.map((key) => scoreDifference(one, key)).filter((value) => value !== null);
  if (differences.length === 0) return null;
  const least = Math.min(...differences);
  return least < 0 ? least : Math.max(...differences);
}

/** The cases to show: largest loss first, unchanged ones last. */
export function filterCases(cases: readonly CaseChange[], grader: string, show: Change | ""): CaseChange[] {
  const rows = cases.map((one) => ({
    one,
    change: changeFor(one, grader),
    difference: largestDifference(one, grader) ?? 0,
  }));
  return rows
    .filter((row) => show === "" || row.change === show)
    .sort(
      (a, b) =>
        CHANGES.indexOf(a.change) - CHANGES.indexOf(b.change) ||
        (a.change === "improved" ? b.difference - a.difference : a.difference - b.difference),
    )
    .map((row) => row.one);
}

/** Number of cases for each kind of change, including cases that the service did not list. */
export function countsFor(comparison: Comparison, grader: string): Counts {
  const counts = Object.fromEntries(CHANGES.map((change) => [change, 0])) as Counts;
  if (comparison.cases_omitted === 0) {
    for (const one of comparison.cases) counts[changeFor(one, grader)] += 1;
    return counts;
  }
  const result = grader === "" ? undefined : comparison.graders[grader];
  if (result)
    return { ...counts, improved: result.improved, worse: result.worse, same: result.same, missing: result.missing };
  return { ...counts, ...comparison.case_counts };
}

export type Difference = Comparison["graders"][string];
type Decision = Difference["decision"];

export const DECISION_LABELS: Record<Decision, { label: string; tone: Tone }> = {
  better: { label: "Better", tone: "good" },
  not_worse: { label: "Not worse", tone: "good" },
  worse: { label: "Worse", tone: "bad" },
  undecided: { label: "Undecided", tone: "open" },
};

export const CHANGE_LABELS: Record<Change, { icon: string; label: string; tone: Tone }> = {
  improved: { icon: "▲", label: "improved", tone: "good" },
  worse: { icon: "▼", label: "worse", tone: "bad" },
  mixed: { icon: "◆", label: "mixed", tone: "open" },
  same: { icon: "=", label: "same", tone: "none" },
  missing: { icon: "∅", label: "missing", tone: "none" },
  edited: { icon: "✎", label: "edited", tone: "accent" },
  not_applicable: { icon: "–", label: "not applicable", tone: "none" },
};

export const CHANGE_HELP: Record<Change, string> = {
  improved: "the candidate scores higher",
  worse: "the candidate scores lower",
  mixed: "better by some graders, worse by others",
  same: "the scores are equal or differ by less than the grader's noise",
  missing: "no score in one of the runs, so not compared",
  edited: "the case was edited between the runs, so not compared",
  not_applicable: "the grader does not apply to the case",
};

/** "+0.16", "−0.03", "0". */
export function formatSigned(value: number | null): string {
  if (value === null) return "–";
  const text = formatScore(Math.abs(value));
  if (Number(text) === 0) return value === 0 ? "0" : `${value > 0 ? "+" : "−"}${Math.abs(value).toPrecision(1)}`;
  return `${value > 0 ? "+" : "−"}${text}`;
}

/** "+0.16 (−0.03 to +0.35)". */
export function formatSignedInterval({
  difference,
  low,
  high,
}: Pick<Difference, "difference" | "low" | "high">): string {
  if (difference === null || low === null || high === null) return formatSigned(difference);
  return `${formatSigned(difference)} (${formatSigned(low)} to ${formatSigned(high)})`;
}

/** Why a grader is undecided and how many cases would decide it. */
export function undecidedNote({ decision, reasons }: Pick<Difference, "decision" | "reasons">): string {
  if (decision !== "undecided" || reasons.length === 0) return "";
  const text = reasons.join("; ");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

/** The suite's noise threshold and its effect on the difference; "" if there is none. */
export function noiseNote({ noise, within_noise, n, difference, baseline, candidate }: Difference): string {
  if (noise === 0 || difference === null || baseline === null || candidate === null) return "";
  const rule = `Changes below ${noise} count as same (${formatCount(within_noise)} of ${pluralize(n, "case")})`;
  const ofMeans = Number((candidate - baseline).toFixed(9));
  return ofMeans === Number(difference.toFixed(9))
    ? `${rule}.`
    : `${rule}; with these changes the difference is ${formatSigned(ofMeans)}.`;
}

/** Notes shown with a grader's difference. */
export function graderNotes(result: Difference): string {
  return [undecidedNote(result), noiseNote(result)].filter(Boolean).join(" ");
}

/** "Worse by 1, undecided by 3 of 4 graders, over 120 paired cases." */
export function comparisonSentence(comparison: Comparison): string {
  const graders = Object.values(comparison.graders);
  const of = (decision: Decision) => graders.filter((one) => one.decision === decision).length;
  const parts = (["worse", "better", "not_worse", "undecided"] as const)
    .filter((decision) => of(decision) > 0)
    .map((decision) => `${DECISION_LABELS[decision].label.toLowerCase()} by ${of(decision)}`);
  const most = Math.max(0, ...graders.map((one) => one.n));
  const sentence = `${parts.join(", ")} of ${pluralize(graders.length, "grader")}, over ${pluralize(most, "paired case")}.`;
  return sentence.charAt(0).toUpperCase() + sentence.slice(1);
}
