import type { Comparison } from "../../api/types.ts";
import { count, counted, score } from "../../lib/format.ts";
import type { Tone } from "../../parts/Badge.tsx";
import type { Change } from "./state.ts";

export type Difference = Comparison["graders"][string];
export type Decision = Difference["decision"];

export const DECISIONS: Record<Decision, { told: string; tone: Tone }> = {
  better: { told: "Better", tone: "good" },
  not_worse: { told: "Not worse", tone: "good" },
  worse: { told: "Worse", tone: "bad" },
  undecided: { told: "Undecided", tone: "open" },
};

export const CHANGE_WORDS: Record<Change, { sign: string; told: string; tone: Tone }> = {
  improved: { sign: "▲", told: "improved", tone: "good" },
  worse: { sign: "▼", told: "worse", tone: "bad" },
  mixed: { sign: "◆", told: "mixed", tone: "open" },
  same: { sign: "=", told: "same", tone: "none" },
  missing: { sign: "∅", told: "missing", tone: "none" },
  edited: { sign: "✎", told: "edited", tone: "accent" },
};

export const CHANGE_HELP: Record<Change, string> = {
  improved: "the candidate scores higher",
  worse: "the candidate scores lower",
  mixed: "some graders say better, some say worse",
  same: "the scores are the same, or differ by less than the grader's noise",
  missing: "no score in one of the runs, so nothing is compared",
  edited: "the case itself was changed between the runs, so nothing is compared",
};

/** "+0.16", "−0.03", "0". */
export function signed(value: number | null): string {
  if (value === null) return "–";
  const text = score(Math.abs(value));
  if (Number(text) === 0) return value === 0 ? "0" : `${value > 0 ? "+" : "−"}${Math.abs(value).toPrecision(1)}`;
  return `${value > 0 ? "+" : "−"}${text}`;
}

/** "+0.16 (−0.03 to +0.35)". */
export function signedInterval({ difference, low, high }: Pick<Difference, "difference" | "low" | "high">): string {
  if (difference === null || low === null || high === null) return signed(difference);
  return `${signed(difference)} (${signed(low)} to ${signed(high)})`;
}

/** Why a grader is undecided, what is certain all the same, and how many cases would settle it. */
export function outlook({ decision, reasons }: Pick<Difference, "decision" | "reasons">): string {
  if (decision !== "undecided" || reasons.length === 0) return "";
  const text = reasons.join("; ");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

/** Which changes the suite calls noise, and what that does to the difference; "" where every change counts. */
export function noiseRule({ noise, within_noise, n, difference, baseline, candidate }: Difference): string {
  if (noise === 0 || difference === null || baseline === null || candidate === null) return "";
  const rule = `Changes below ${noise} count as same (${count(within_noise)} of ${counted(n, "case")})`;
  const ofMeans = Number((candidate - baseline).toFixed(9));
  return ofMeans === Number(difference.toFixed(9))
    ? `${rule}.`
    : `${rule}; with them the difference is ${signed(ofMeans)}.`;
}

/** What a reader of a grader's difference must know with it. */
export function notes(told: Difference): string {
  return [outlook(told), noiseRule(told)].filter(Boolean).join(" ");
}

/** The comparison in a sentence: "Worse on 1 of 4 graders; 3 undecided; 120 cases." */
export function sentenceOf(comparison: Comparison): string {
  const graders = Object.values(comparison.graders);
  const of = (decision: Decision) => graders.filter((one) => one.decision === decision).length;
  const parts = (["worse", "better", "not_worse", "undecided"] as const)
    .filter((decision) => of(decision) > 0)
    .map((decision) => `${DECISIONS[decision].told.toLowerCase()} on ${of(decision)}`);
  const most = Math.max(0, ...graders.map((one) => one.n));
  return `The candidate is ${parts.join(", ")} of ${counted(graders.length, "grader")}, over ${counted(most, "case")} that both runs have.`;
}
