import type { Json, JsonObject, Schema } from "../api/types.ts";

/** A form field generated from a property of a JSON Schema. */
export type FormField = {
  key: string;
  label: string;
  help: string;
  required: boolean;
  initial: Json | undefined;
} & FieldInput;

type FieldInput =
  | { kind: "switch" }
  | { kind: "choice"; choices: string[] }
  | { kind: "number"; whole: boolean; min?: number; max?: number }
  | { kind: "text"; long: boolean }
  | { kind: "strings" }
  | { kind: "object"; fields: FormField[] }
  | { kind: "list"; variants: Variant[] }
  /** Anything else: edited as JSON. */
  | { kind: "json" };

/** One type of item in a list. */
export interface Variant {
  title: string;
  help: string;
  fields: FormField[];
  /** Constant properties that identify the variant, such as `condition: contains`. */
  fixed: JsonObject;
}

const LONG_TEXT_KEY = /prompt|rubric|text|template/;
const MAX_DEPTH = 4;

/** The fields of an object schema, required ones first. */
export function fieldsFromSchema(schema: Schema, root: Schema = schema, depth = 0): FormField[] {
  const required = new Set(asStrings(schema["required"]));
  const fields = Object.entries(asObject(schema["properties"]) ?? {}).flatMap(([key, property]) => {
    const declared = asObject(property);
    return declared ? [fieldFromSchema(key, declared, required.has(key), root, depth)] : [];
  });
  return [...fields.filter((field) => field.required), ...fields.filter((field) => !field.required)];
}

function fieldFromSchema(key: string, declared: Schema, required: boolean, root: Schema, depth: number): FormField {
  const schema = withoutNull(resolveRef(declared, root), root);
  return {
    key,
    label: sentenceCase(key),
    help: asString(declared["description"]) ?? asString(schema["description"]) ?? "",
    required,
    initial: declared["default"],
    ...inputFromSchema(key, schema, root, depth),
  };
}

function inputFromSchema(key: string, schema: Schema, root: Schema, depth: number): FieldInput {
  const choices = asStrings(schema["enum"]);
  if (choices.length > 0) return { kind: "choice", choices };
  switch (schema["type"]) {
    case "boolean":
      return { kind: "switch" };
    case "integer":
    case "number":
      return { kind: "number", whole: schema["type"] === "integer", ...bounds(schema) };
    case "string":
      return { kind: "text", long: LONG_TEXT_KEY.test(key) };
    case "array":
      return listFromSchema(schema, root, depth);
    case "object": {
      const fields = depth < MAX_DEPTH ? fieldsFromSchema(schema, root, depth + 1) : [];
      return fields.length > 0 ? { kind: "object", fields } : { kind: "json" };
    }
    default:
      return { kind: "json" };
  }
}

function listFromSchema(schema: Schema, root: Schema, depth: number): FieldInput {
  const items = resolveRef(asObject(schema["items"]) ?? {}, root);
  if (items["type"] === "string") return { kind: "strings" };
  if (depth >= MAX_DEPTH) return { kind: "json" };
  const shapes = asSchemas(items["anyOf"] ?? items["oneOf"] ?? [items]).map((shape) => resolveRef(shape, root));
  if (shapes.length === 0 || shapes.some((shape) => shape["type"] !== "object")) return { kind: "json" };
  return { kind: "list", variants: shapes.map((shape) => variantFromSchema(shape, root, depth)) };
}

function variantFromSchema(shape: Schema, root: Schema, depth: number): Variant {
  const fixed: JsonObject = {};
  for (const [key, property] of Object.entries(asObject(shape["properties"]) ?? {})) {
    const declared = asObject(property) ?? {};
    const only = asStrings(declared["enum"]);
    if (only.length === 1 && only[0] !== undefined) fixed[key] = only[0];
    if (declared["const"] !== undefined) fixed[key] = declared["const"];
  }
  const named = Object.values(fixed).find((value) => typeof value === "string");
  return {
    title: typeof named === "string" ? named : (asString(shape["title"]) ?? "Item"),
    help: asString(shape["description"]) ?? "",
    fields: fieldsFromSchema(shape, root, depth + 1).filter((field) => !(field.key in fixed)),
    fixed,
  };
}

/** The variant whose constant properties the value has, else the first one. */
export function matchVariant(variants: readonly Variant[], value: JsonObject): Variant | undefined {
  const matches = (variant: Variant) => Object.entries(variant.fixed).every(([key, fixed]) => value[key] === fixed);
  return variants.find((variant) => Object.keys(variant.fixed).length > 0 && matches(variant)) ?? variants[0];
}

/** The values without those equal to the schema's defaults: short configurations with stable fingerprints. */
export function withoutDefaults(fields: readonly FormField[], values: JsonObject): JsonObject {
  const kept = Object.entries(values).filter(([key, value]) => {
    const field = fields.find((one) => one.key === key);
    if (value === "" || value === undefined) return false;
    return field === undefined || JSON.stringify(value) !== JSON.stringify(field.initial);
  });
  return Object.fromEntries(kept);
}

/** Missing or invalid values: messages by field path. */
export function validateFields(fields: readonly FormField[], values: JsonObject, path = ""): Record<string, string> {
  const problems: Record<string, string> = {};
  for (const field of fields) {
    const at = path + field.key;
    const value = values[field.key];
    const empty = value === undefined || value === null || value === "" || (Array.isArray(value) && value.length === 0);
    if (empty) {
      if (field.required && field.initial === undefined) problems[at] = "is required";
    } else if (field.kind === "number" && typeof value === "number") {
      const wrong = numberProblem(field, value);
      if (wrong) problems[at] = wrong;
    } else if (field.kind === "object") {
      Object.assign(problems, validateFields(field.fields, asObject(value) ?? {}, `${at}.`));
    } else if (field.kind === "list" && Array.isArray(value)) {
      value.forEach((item, index) => {
        const object = asObject(item) ?? {};
        const variant = matchVariant(field.variants, object);
        if (variant) Object.assign(problems, validateFields(variant.fields, object, `${at}.${index}.`));
      });
    }
  }
  return problems;
}

function numberProblem(field: { whole: boolean; min?: number; max?: number }, value: number): string | null {
  if (field.whole && !Number.isInteger(value)) return "must be a whole number";
  if (field.min !== undefined && value < field.min) return `must be at least ${field.min}`;
  if (field.max !== undefined && value > field.max) return `must be at most ${field.max}`;
  return null;
}

function bounds(schema: Schema): { min?: number; max?: number } {
  const min = schema["minimum"] ?? schema["exclusiveMinimum"];
  const max = schema["maximum"] ?? schema["exclusiveMaximum"];
  return {
    ...(typeof min === "number" ? { min } : {}),
    ...(typeof max === "number" && max < 1e300 ? { max } : {}),
  };
}

function resolveRef(schema: Schema, root: Schema): Schema {
  const reference = asString(schema["$ref"]);
  if (reference === null || !reference.startsWith("#/")) return schema;
  let found: Json | undefined = root;
  for (const step of reference.slice(2).split("/"))
    found = asObject(found)?.[step.replaceAll("~1", "/").replaceAll("~0", "~")];
  return asObject(found) ?? {};
}

/** "number or null" is an optional number. */
function withoutNull(schema: Schema, root: Schema): Schema {
  const choices = asSchemas(schema["anyOf"]).filter((choice) => choice["type"] !== "null");
  const only = choices.length === 1 ? choices[0] : undefined;
  return only === undefined ? schema : resolveRef(only, root);
}

function sentenceCase(key: string): string {
  const words = key.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

export function asObject(value: Json | undefined): JsonObject | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : null;
}

function asString(value: Json | undefined): string | null {
  return typeof value === "string" ? value : null;
}

function asStrings(value: Json | undefined): string[] {
  return Array.isArray(value) && value.every((one) => typeof one === "string") ? value : [];
}

function asSchemas(value: Json | undefined): Schema[] {
  if (!Array.isArray(value)) return [];
  return value.map(asObject).filter((one) => one !== null);
}
