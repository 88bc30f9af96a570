import { ApiFailure } from "../../api/failure.ts";
import type { Grader, Json, JsonObject } from "../../api/types.ts";
import { asObject, faultsIn, pruned, type Field } from "../../lib/schemaForm.ts";

/** A grader while somebody writes it. */
export interface GraderDraft {
  /** For a new one alone; the service makes one where none is given. */
  id: string;
  name: string;
  description: string;
  type: string;
  config: JsonObject;
}

export interface Definition {
  name: string;
  description: string | null;
  type: string;
  config: JsonObject;
}

export const EMPTY_DRAFT: GraderDraft = { id: "", name: "", description: "", type: "custom-rules", config: {} };

export function draftOf(grader: Grader): GraderDraft {
  return {
    id: grader.id,
    name: grader.name,
    description: grader.description ?? "",
    type: grader.type,
    config: configOf(grader),
  };
}

/** A built-in, or somebody's grader, as the beginning of another one. */
export function copyOf(grader: Grader): GraderDraft {
  return { ...draftOf(grader), id: "", name: `${grader.name} (copy)` };
}

export function configOf(grader: Grader): JsonObject {
  return asObject((grader.config ?? {}) as Json) ?? {};
}

/** What is sent: without the options that are as they are anyway. */
export function definitionOf(draft: GraderDraft, fields: readonly Field[]): Definition {
  return {
    name: draft.name.trim(),
    description: draft.description.trim() || null,
    type: draft.type,
    config: pruned(fields, draft.config),
  };
}

const LONGEST_NAME = 100;
const LONGEST_DESCRIPTION = 500;
const ID = /^[A-Za-z0-9_.-]{0,100}$/;

/** What is wrong before anything is sent, by the path of the field. */
export function draftFaults(draft: GraderDraft, fields: readonly Field[], isNew: boolean): Record<string, string> {
  const faults = Object.fromEntries(
    Object.entries(faultsIn(fields, draft.config)).map(([path, fault]) => [`config.${path}`, fault]),
  );
  if (draft.name.trim() === "") faults["name"] = "is required";
  else if ([...draft.name].length > LONGEST_NAME) faults["name"] = "has more than 100 characters";
  if ([...draft.description].length > LONGEST_DESCRIPTION) faults["description"] = "has more than 500 characters";
  if (isNew && (!ID.test(draft.id) || draft.id === "new"))
    faults["id"] = "may have letters, digits, - _ and . alone, and is not new";
  return faults;
}

/** What the service found wrong, by the same paths: `config.rules[0].value` is `config.rules.0.value` here. */
export function serverFaults(error: unknown): Record<string, string> {
  const errors = error instanceof ApiFailure ? error.details?.["errors"] : undefined;
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

/** The faults of the options alone, by the paths that their form knows. */
export function configFaults(faults: Readonly<Record<string, string>>): Record<string, string> {
  const mine = Object.entries(faults).filter(([path]) => path.startsWith("config."));
  return Object.fromEntries(mine.map(([path, fault]) => [path.slice("config.".length), fault]));
}

export interface DraftChange {
  changed: boolean;
  /** It will measure something else: what it graded before is no longer comparable. */
  meaning: boolean;
}

export function changeOf(before: Grader, after: Definition, fields: readonly Field[]): DraftChange {
  const old = definitionOf(draftOf(before), fields);
  const meaning = old.type !== after.type || canonical(old.config) !== canonical(after.config);
  return { changed: meaning || old.name !== after.name || old.description !== after.description, meaning };
}

/** The same text for the same value, whatever the order of its keys. */
export function canonical(value: Json): string {
  return JSON.stringify(value, (_, inner: Json) => {
    const object = asObject(inner);
    return object === null ? inner : Object.fromEntries(Object.entries(object).sort(([a], [b]) => (a < b ? -1 : 1)));
  });
}
