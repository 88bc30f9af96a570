import { expect, test } from "vitest";
import type { Schema } from "../src/api/types.ts";
import { fieldsFromSchema, matchVariant, validateFields, withoutDefaults } from "../src/lib/jsonSchema.ts";

const SCHEMA: Schema = {
  type: "object",
  required: ["rules"],
  properties: {
    case_sensitive: { type: "boolean", default: false, description: "Tell A from a." },
    mode: { enum: ["all", "any"], default: "all" },
    threshold: { type: "number", minimum: 0, maximum: 1, default: 0.5 },
    seed: { anyOf: [{ type: "integer" }, { type: "null" }], default: null },
    rubric: { anyOf: [{ type: "string" }, { type: "null" }], default: null },
    tools: { type: "array", items: { type: "string" } },
    reply: { anyOf: [{ $ref: "#/$defs/Reply" }, { type: "null" }], default: null },
    extra: { type: "object" },
    rules: { type: "array", items: { $ref: "#/$defs/Rule" }, minItems: 1 },
  },
  $defs: {
    Reply: { type: "object", properties: { format: { enum: ["json", "text"] } } },
    Rule: { anyOf: [{ $ref: "#/$defs/Contains" }, { $ref: "#/$defs/Length" }] },
    Contains: {
      title: "Contains",
      type: "object",
      required: ["condition", "value"],
      properties: { condition: { enum: ["contains"] }, value: { type: "string" } },
    },
    Length: {
      title: "Length",
      type: "object",
      required: ["condition", "value"],
      properties: { condition: { enum: ["length_min"] }, value: { type: "integer", minimum: 0 } },
    },
  },
};

const FIELDS = fieldsFromSchema(SCHEMA);

test("every option has a suitable field, required ones first", () => {
  expect(FIELDS.map((field) => [field.key, field.kind])).toEqual([
    ["rules", "list"],
    ["case_sensitive", "switch"],
    ["mode", "choice"],
    ["threshold", "number"],
    ["seed", "number"],
    ["rubric", "text"],
    ["tools", "strings"],
    ["reply", "object"],
    ["extra", "json"],
  ]);
});

test("a field carries its label, help, bounds and default", () => {
  expect(FIELDS.find((field) => field.key === "threshold")).toEqual({
    key: "threshold",
    label: "Threshold",
    help: "",
    required: false,
    initial: 0.5,
    kind: "number",
    whole: false,
    min: 0,
    max: 1,
  });
  expect(FIELDS.find((field) => field.key === "case_sensitive")?.help).toBe("Tell A from a.");
});

test("item variants are identified by their constant properties", () => {
  const rules = FIELDS[0];
  if (rules?.kind !== "list") throw new Error("not a list");
  expect(
    rules.variants.map(({ title, fixed, fields }) => ({ title, fixed, fields: fields.map((field) => field.key) })),
  ).toEqual([
    { title: "contains", fixed: { condition: "contains" }, fields: ["value"] },
    { title: "length_min", fixed: { condition: "length_min" }, fields: ["value"] },
  ]);
  expect(matchVariant(rules.variants, { condition: "length_min", value: 3 })?.title).toBe("length_min");
});

test("missing and invalid values are reported by path", () => {
  expect(validateFields(FIELDS, { threshold: 2, seed: 1.5 })).toEqual({
    rules: "is required",
    threshold: "must be at most 1",
    seed: "must be a whole number",
  });
  expect(
    validateFields(FIELDS, { rules: [{ condition: "contains" }, { condition: "length_min", value: -1 }] }),
  ).toEqual({
    "rules.0.value": "is required",
    "rules.1.value": "must be at least 0",
  });
  expect(validateFields(FIELDS, { rules: [{ condition: "contains", value: "x" }] })).toEqual({});
});

test("default values are omitted", () => {
  expect(
    withoutDefaults(FIELDS, { case_sensitive: false, mode: "any", rubric: "", threshold: 0.5, rules: [] }),
  ).toEqual({
    mode: "any",
    rules: [],
  });
});

test("a recursive schema terminates", () => {
  const node: Schema = { type: "object", properties: { child: { $ref: "#/$defs/Node" } } };
  expect(fieldsFromSchema({ ...node, $defs: { Node: node } })).toHaveLength(1);
});
