import type { Grader } from "../../api/types.ts";
import { integer, oneOf, type StateOf, text } from "../../lib/urlState.ts";

const RULES = "custom-rules";

/** True if grading calls a model, which takes time and may cost money. */
export function callsModel(grader: Pick<Grader, "config_schema">): boolean {
  return JSON.stringify(grader.config_schema).includes('"api_key_env"');
}

export type Family = "rules" | "judges" | "python" | "checks";

export const FAMILIES: Record<Family, string> = {
  rules: "JSON rules",
  judges: "Model judges",
  python: "Python",
  checks: "Built-in checks",
};

export function familyOf(grader: Pick<Grader, "config_schema" | "type" | "source">): Family {
  if (grader.source === "python") return "python";
  if (grader.type === RULES) return "rules";
  return callsModel(grader) ? "judges" : "checks";
}

/** The built-in graders that a custom one can be based on, rules and judges first. */
export function kindsOf(graders: readonly Grader[]): Grader[] {
  const order: Family[] = ["rules", "judges", "checks"];
  return graders
    .filter((grader) => grader.source === "built-in" && grader.status === "active")
    .toSorted((a, b) => order.indexOf(familyOf(a)) - order.indexOf(familyOf(b)));
}

export const LIST_STATE = {
  q: text(),
  family: oneOf<Family | "">(["", "rules", "judges", "python", "checks"], ""),
  own: oneOf(["on", "off"] as const, "off"),
};

/** What a preview grades: a result of a run by its index `at`, or typed text. */
const PREVIEW_STATE = { run: text(), at: integer(0), from: oneOf(["run", "text"] as const, "run") };

export const GRADER_STATE = {
  ...PREVIEW_STATE,
  tab: oneOf(["about", "try", "versions"] as const, "about"),
  version: integer(0),
  against: integer(0),
};

/** `copy`: the grader to copy; `type`: the kind of a new grader. */
export const EDITOR_STATE = { ...PREVIEW_STATE, copy: text(), type: text() };

export type PreviewState = StateOf<typeof PREVIEW_STATE>;
export type ChangePreview = (change: Partial<PreviewState>, options?: { replace?: boolean }) => void;
