import { expect, test } from "vitest";
import { ApiError } from "../src/api/error.ts";
import type { Grader } from "../src/api/types.ts";
import { fieldsFromSchema } from "../src/lib/jsonSchema.ts";
import { mapInBatches, tally } from "../src/pages/graders/BatchPreview.tsx";
import {
  canonicalJson,
  configProblems,
  definitionOf,
  draftChange,
  draftFromCopy,
  draftFromGrader,
  EMPTY_DRAFT,
  serverProblems,
  validateGraderDraft,
} from "../src/pages/graders/draft.ts";
import { callsModel, familyOf, kindsOf } from "../src/pages/graders/families.ts";
import { parseObject } from "../src/pages/graders/OptionsEditor.tsx";

const SCHEMA = {
  type: "object",
  properties: {
    rules: { type: "array", items: { type: "object", properties: { value: { type: "string" } }, required: ["value"] } },
    mode: { enum: ["all", "any"], default: "all" },
  },
  required: ["rules"],
};

function grader(changes: Partial<Grader> = {}): Grader {
  return {
    id: "mine",
    name: "Mine",
    description: null,
    type: "custom-rules",
    config_schema: SCHEMA,
    scoring_guide: "",
    default_extractor: "last_assistant",
    version: 3,
    fingerprint: "f",
    status: "active",
    source: "stored",
    config: { rules: [{ value: "x" }] },
    ...changes,
  };
}

const FIELDS = fieldsFromSchema(SCHEMA);

test("a definition omits options equal to their defaults", () => {
  const draft = { ...draftFromGrader(grader()), name: " Mine ", config: { rules: [{ value: "x" }], mode: "all" } };
  expect(definitionOf(draft, FIELDS)).toEqual({
    name: "Mine",
    description: null,
    type: "custom-rules",
    config: { rules: [{ value: "x" }] },
  });
});

test("a new name keeps the meaning, new options do not", () => {
  const same = definitionOf(draftFromGrader(grader()), FIELDS);
  expect(draftChange(grader(), same, FIELDS)).toEqual({ changed: false, meaning: false });
  expect(draftChange(grader(), { ...same, name: "Other" }, FIELDS)).toEqual({ changed: true, meaning: false });
  expect(draftChange(grader(), { ...same, config: { rules: [{ value: "y" }] } }, FIELDS)).toEqual({
    changed: true,
    meaning: true,
  });
  expect(canonicalJson({ b: [{ d: 1, c: 2 }], a: null })).toBe('{"a":null,"b":[{"c":2,"d":1}]}');
});

test("a copy has no id and is named a copy", () => {
  expect(draftFromCopy(grader({ source: "built-in", config: {} }))).toEqual({
    id: "",
    name: "Mine (copy)",
    description: "",
    type: "custom-rules",
    config: {},
  });
});

test("problems are reported by path, before and after sending", () => {
  expect(validateGraderDraft({ ...EMPTY_DRAFT, id: "no spaces" }, FIELDS, true)).toEqual({
    name: "is required",
    id: "may contain only letters, digits, -, _ and .; new is reserved",
    "config.rules": "is required",
  });
  const refused = new ApiError("INVALID_GRADER", "wrong", 400, {
    errors: [
      { field: "config.rules[0].value", message: "is required" },
      { field: "name", message: "taken" },
    ],
  });
  expect(serverProblems(refused)).toEqual({ "config.rules.0.value": "is required", name: "taken" });
  expect(configProblems(serverProblems(refused))).toEqual({ "rules.0.value": "is required" });
  expect(serverProblems(new Error("other"))).toEqual({});
});

test("options are parsed as an object, else there is an error", () => {
  expect(parseObject(' {"a": 1} ')).toEqual([{ a: 1 }, null]);
  expect(parseObject("")).toEqual([{}, null]);
  expect(parseObject("[1]")).toEqual([null, "must be a JSON object"]);
  expect(parseObject("{")[0]).toBeNull();
});

test("rules and judges are listed first; a judge is recognised by its API key option", () => {
  const judge = grader({
    id: "judge",
    type: "judge",
    source: "built-in",
    config_schema: { properties: { judges: { items: { properties: { api_key_env: {} } } } } },
  });
  const check = grader({ id: "check", type: "check", source: "built-in", config_schema: {} });
  const rules = grader({ id: "custom-rules", source: "built-in" });
  expect(callsModel(judge)).toBe(true);
  expect([judge, check, rules, grader({ source: "python" })].map(familyOf)).toEqual([
    "judges",
    "checks",
    "rules",
    "python",
  ]);
  expect(
    kindsOf([check, judge, rules, grader(), grader({ source: "built-in", status: "error" })]).map((one) => one.id),
  ).toEqual(["custom-rules", "judge", "check"]);
});

test("previews keep their order and run in batches", async () => {
  let running = 0;
  let peak = 0;
  const done = await mapInBatches([1, 2, 3, 4, 5, 6], async (item) => {
    peak = Math.max(peak, (running += 1));
    await Promise.resolve();
    running -= 1;
    return item * 2;
  });
  expect([done, peak]).toEqual([[2, 4, 6, 8, 10, 12], 4]);
  expect(tally([{ score_status: "pass" }, { score_status: "error" }, { score_status: "pass" }])).toBe(
    "2 pass, 1 error",
  );
});
