import { parseDocument } from "yaml";
import type { Grader, JsonObject } from "../../api/types.ts";
import { asObject } from "../../lib/jsonSchema.ts";
import type { ChosenGrader } from "./draft.ts";

const MAX_ALIASES = 100;

type ParsedSuite = { suite: JsonObject; problem: null } | { suite: null; problem: string };

/** Parses YAML 1.2 or JSON; duplicate keys are errors, as in the service. */
export function parseSuite(text: string): ParsedSuite {
  const document = parseDocument(text, { uniqueKeys: true, version: "1.2", logLevel: "silent" });
  const [error] = document.errors;
  if (error) return { suite: null, problem: error.message };
  const value: unknown = document.toJS({ maxAliasCount: MAX_ALIASES });
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return { suite: null, problem: "A suite is a mapping with name, dataset, target and graders." };
  }
  return { suite: value as JsonObject, problem: null };
}

/**
 * The graders of a suite with their options, for the form; null if there are none. The dataset is not parsed, as it may
 * be very large.
 */
export function gradersInSuite(suite: string, known: readonly Grader[]): ChosenGrader[] | null {
  const head = suite.split(/^dataset:/m)[0] ?? "";
  const graders = asObject(parseSuite(head).suite?.["graders"]);
  if (graders === null) return null;
  return Object.entries(graders).map(([key, value]) => {
    const { kind, config } = asObject(value) ?? {};
    const named = known.find((grader) => grader.id === key && grader.type === kind);
    return { key, id: named?.id ?? (typeof kind === "string" ? kind : key), config: asObject(config) ?? {} };
  });
}
