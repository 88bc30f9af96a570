import { ApiError } from "../../api/error.ts";
import type { Grader, GraderDefinition, Json, JsonObject } from "../../api/types.ts";
import { asObject, type FormField, validateFields, withoutDefaults } from "../../lib/jsonSchema.ts";

/** A grader as edited in the form. */
export interface GraderDraft {
  /** Only for a new grader; if empty, the service creates one. */
  id: string;
  name: string;
  description: string;
  type: string;
  config: JsonObject;
}

export const EMPTY_DRAFT: GraderDraft = { id: "", name: "", description: "", type: "custom-rules", config: {} };

export function draftFromGrader(grader: Grader): GraderDraft {
  return {
    id: grader.id,
    name: grader.name,
    description: grader.description ?? "",
    type: grader.type,
    config: configOf(grader),
  };
}

/** A copy of a grader as the start of a new one. */
export function draftFromCopy(grader: Grader): GraderDraft {
  return { ...draftFromGrader(grader), id: "", name: `${grader.name} (copy)` };
}

export function configOf(grader: Grader): JsonObject {
  return asObject((grader.config ?? {}) as Json) ?? {};
}

/** The definition to save, without options equal to their defaults. */
export function definitionOf(draft: GraderDraft, fields: readonly FormField[]): GraderDefinition {
  return {
    name: draft.name.trim(),
    description: draft.description.trim() || null,
    type: draft.type,
    config: withoutDefaults(fields, draft.config),
  };
}

const MAX_NAME = 100;
const MAX_DESCRIPTION = 500;
const ID = /^[A-Za-z0-9_.-]{0,100}$/;

/** Messages by field path, before anything is sent. */
export function validateGraderDraft(
  draft: GraderDraft,
  fields: readonly FormField[],
  isNew: boolean,
): Record<string, string> {
  const problems = Object.fromEntries(
    Object.entries(validateFields(fields, draft.config)).map(([path, problem]) => [`config.${path}`, problem]),
  );
  if (draft.name.trim() === "") problems["name"] = "is required";
  else if ([...draft.name].length > MAX_NAME) problems["name"] = "has more than 100 characters";
  if ([...draft.description].length > MAX_DESCRIPTION) problems["description"] = "has more than 500 characters";
  if (isNew && (!ID.test(draft.id) || draft.id === "new"))
    problems["id"] = "may contain only letters, digits, -, _ and .; new is reserved";
  return problems;
}

/** The service's messages by the same paths: `config.rules[0].value` becomes `config.rules.0.value`. */
export function serverProblems(error: unknown): Record<string, string> {
  const errors = error instanceof ApiError ? error.details?.["errors"] : undefined;
  if (!Array.isArray(errors)) return {};
  return Object.fromEntries(
    errors.flatMap((one) => {
      const { field, message } = asObject(one) ?? {};
      return typeof field === "string" && typeof message === "string"
        ? [[field.replace(/\[(\d+)\]/g, ".$1"), message]]
        : [];
    }),
  );
}

/** Only the problems of the options, by the paths of their form. */
export function configProblems(problems: Readonly<Record<string, string>>): Record<string, string> {
  const mine = Object.entries(problems).filter(([path]) => path.startsWith("config."));
  return Object.fromEntries(mine.map(([path, problem]) => [path.slice("config.".length), problem]));
}

interface DraftChange {
  changed: boolean;
  /** It measures something else, so earlier grades are no longer comparable. */
  meaning: boolean;
}

export function draftChange(before: Grader, after: GraderDefinition, fields: readonly FormField[]): DraftChange {
  const old = definitionOf(draftFromGrader(before), fields);
  const meaning = old.type !== after.type || canonicalJson(old.config) !== canonicalJson(after.config);
  return { changed: meaning || old.name !== after.name || old.description !== after.description, meaning };
}

/** JSON with sorted keys. */
export function canonicalJson(value: Json): string {
  return JSON.stringify(value, (_, inner: Json) => {
    const object = asObject(inner);
    return object === null ? inner : Object.fromEntries(Object.entries(object).sort(([a], [b]) => (a < b ? -1 : 1)));
  });
}
