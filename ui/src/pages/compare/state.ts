import { integer, oneOf, text, type StateOf } from "../../lib/urlState.ts";

/** What may have become of a case, the most telling first. */
export const CHANGES = ["worse", "mixed", "missing", "edited", "improved", "same"] as const;
export type Change = (typeof CHANGES)[number];

/** All that the comparison shows, as its address says it. */
export const COMPARE_STATE = {
  baseline: text(),
  candidate: text(),
  /** Compare although the runs are not alike. */
  force: oneOf(["on", "off"] as const, "off"),
  show: oneOf<Change | "">(["", ...CHANGES], ""),
  /** The grader whose word decides what is improved or worse; all of them where none is named. */
  grader: text(),
  /** The open case. */
  row: text(),
  repeat: integer(0),
  view: oneOf(["diff", "sides"] as const, "diff"),
};

export type CompareState = StateOf<typeof COMPARE_STATE>;
export type ChangeState = (change: Partial<CompareState>, options?: { replace?: boolean }) => void;
