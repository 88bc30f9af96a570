import type { Grader } from "../../api/types.ts";

export const RULES = "custom-rules";

/** Whether grading by it calls a model: that takes time and may cost money. */
export function asksModel(grader: Pick<Grader, "config_schema">): boolean {
  return JSON.stringify(grader.config_schema).includes('"api_key_env"');
}

export type Family = "rules" | "judges" | "python" | "texts";

export const FAMILIES: Record<Family, string> = {
  rules: "JSON rules",
  judges: "Model judges",
  python: "Python",
  texts: "Built-in checks",
};

export function familyOf(grader: Pick<Grader, "config_schema" | "type" | "source">): Family {
  if (grader.source === "python") return "python";
  if (grader.type === RULES) return "rules";
  return asksModel(grader) ? "judges" : "texts";
}

/** The built-ins that a grader of one's own can be made of, rules and judges first. */
export function kindsOf(graders: readonly Grader[]): Grader[] {
  const order: Family[] = ["rules", "judges", "texts"];
  return graders
    .filter((grader) => grader.source === "built-in" && grader.status === "active")
    .toSorted((a, b) => order.indexOf(familyOf(a)) - order.indexOf(familyOf(b)));
}
