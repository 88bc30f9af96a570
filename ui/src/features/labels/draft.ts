import type { HumanVerdictValue, Label, NewLabel } from "./calls.ts";

export interface LabelDraft {
  verdict: HumanVerdictValue | "";
  reason: string;
  /** As it was typed; empty for none. */
  score: string;
}

const LONGEST_REASON = 2_000;

export function labelDraftOf(label: Label | undefined): LabelDraft {
  if (label === undefined) return { verdict: "", reason: "", score: "" };
  return { verdict: label.verdict, reason: label.reason, score: label.score === null ? "" : String(label.score) };
}

export type LabelFaults = Partial<Record<keyof LabelDraft, string>>;

/** What to send, or what is wrong. */
export function labelOf(draft: LabelDraft): { label: NewLabel; faults: null } | { label: null; faults: LabelFaults } {
  const faults: LabelFaults = {};
  const { verdict } = draft;
  const reason = draft.reason.trim();
  const score = draft.score.trim() === "" ? null : Number(draft.score);
  if (verdict === "") faults.verdict = "Choose one";
  if (reason === "") faults.reason = "Say why: others read it, and judges are calibrated by it";
  else if ([...reason].length > LONGEST_REASON) faults.reason = "At most 2,000 characters";
  if (score !== null && !(score >= 0 && score <= 1)) faults.score = "From 0 to 1";
  if (verdict === "" || Object.keys(faults).length > 0) return { label: null, faults };
  return { label: { verdict, reason, ...(score === null ? {} : { score }) }, faults: null };
}
