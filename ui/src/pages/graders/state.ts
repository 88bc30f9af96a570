import { integer, oneOf, text, type StateOf } from "../../lib/urlState.ts";
import type { Family } from "./kinds.ts";

export const LIST_STATE = {
  q: text(),
  family: oneOf<Family | "">(["", "rules", "judges", "python", "texts"], ""),
  own: oneOf(["on", "off"] as const, "off"),
};

/** What a preview looks at: the run, and which of its results; `texts` for words of one's own. */
export const PREVIEW_STATE = { run: text(), at: integer(0), from: oneOf(["run", "texts"] as const, "run") };

export const GRADER_STATE = {
  ...PREVIEW_STATE,
  tab: oneOf(["about", "try", "versions"] as const, "about"),
  version: integer(0),
  against: integer(0),
};

/** `copy` is the grader that a new one begins with, `type` the kind. */
export const EDITOR_STATE = { ...PREVIEW_STATE, copy: text(), type: text() };

export type PreviewState = StateOf<typeof PREVIEW_STATE>;
export type ChangePreview = (change: Partial<PreviewState>, options?: { replace?: boolean }) => void;
