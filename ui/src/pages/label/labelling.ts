import type { BlindLabel, SampleItem } from "../../api/types.ts";
import { integer, type StateOf, text } from "../../lib/urlState.ts";

/** The state of the page in the URL. */
export const LABEL_STATE = {
  /** The sample that is labelled; empty: choose or draw one. */
  sample: text(),
  /** The place of the result in the sample; -1: the first one without a label. */
  place: integer(-1, -1),
};

export type LabelState = StateOf<typeof LABEL_STATE>;
export type ChangeLabelState = (change: Partial<LabelState>, options?: { replace?: boolean }) => void;

export const MAX_COMMENT = 2_000;

/** The label for a key, or null if the comment is too long. */
export function blindLabel(verdict: "pass" | "fail", comment: string): BlindLabel | null {
  const trimmed = comment.trim();
  if ([...trimmed].length > MAX_COMMENT) return null;
  return trimmed === "" ? { verdict } : { verdict, comment: trimmed };
}

/** Where to go after a result: the next one without a label, or where it is if all others have one. */
export function placeAfter(item: Pick<SampleItem, "place" | "next_place">): number {
  return item.next_place ?? item.place;
}

interface Draft {
  question: string;
  n: string;
  seed: string;
  method: string;
}

export type DrawProblems = Partial<Record<keyof Draft, string>>;

const MAX_SAMPLE = 10_000;

/** Messages by field for a sample that cannot be drawn. */
export function drawProblems(draft: Draft): DrawProblems {
  const problems: DrawProblems = {};
  if (draft.question.trim() === "") problems.question = "Choose a grader or enter a question";
  if (!isWhole(draft.n, 1, MAX_SAMPLE)) problems.n = "Enter a whole number from 1 to 10,000";
  if (!isWhole(draft.seed, 0, Number.MAX_SAFE_INTEGER)) problems.seed = "Enter a whole number from 0";
  return problems;
}

function isWhole(value: string, low: number, high: number): boolean {
  return /^\d+$/.test(value.trim()) && Number(value) >= low && Number(value) <= high;
}
