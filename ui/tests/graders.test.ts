import { expect, test } from "vitest";
import { ApiFailure } from "../src/api/failure.ts";
import type { Grader } from "../src/api/types.ts";
import { fieldsOf } from "../src/lib/schemaForm.ts";
import { readObject } from "../src/pages/graders/ConfigEditor.tsx";
import {
  canonical,
  changeOf,
  configFaults,
  copyOf,
  definitionOf,
  draftFaults,
  draftOf,
  EMPTY_DRAFT,
  serverFaults,
} from "../src/pages/graders/draft.ts";
import { asksModel, familyOf, kindsOf } from "../src/pages/graders/kinds.ts";
import { inTurns, tally } from "../src/pages/graders/ManyPreviews.tsx";

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

const FIELDS = fieldsOf(SCHEMA);

test("what is sent leaves out the options that are as they are anyway", () => {
  const draft = { ...draftOf(grader()), name: " Mine ", config: { rules: [{ value: "x" }], mode: "all" } };
  expect(definitionOf(draft, FIELDS)).toEqual({
    name: "Mine",
    description: null,
    type: "custom-rules",
    config: { rules: [{ value: "x" }] },
  });
});

test("other words keep the meaning, other options do not", () => {
  const same = definitionOf(draftOf(grader()), FIELDS);
  expect(changeOf(grader(), same, FIELDS)).toEqual({ changed: false, meaning: false });
  expect(changeOf(grader(), { ...same, name: "Other" }, FIELDS)).toEqual({ changed: true, meaning: false });
  expect(changeOf(grader(), { ...same, config: { rules: [{ value: "y" }] } }, FIELDS)).toEqual({
    changed: true,
    meaning: true,
  });
  expect(canonical({ b: [{ d: 1, c: 2 }], a: null })).toBe('{"a":null,"b":[{"c":2,"d":1}]}');
});

test("a copy has no id and says that it is one", () => {
  expect(copyOf(grader({ source: "built-in", config: {} }))).toEqual({
    id: "",
    name: "Mine (copy)",
    description: "",
    type: "custom-rules",
    config: {},
  });
});

test("what is missing is told by its path, before and after it was sent", () => {
  expect(draftFaults({ ...EMPTY_DRAFT, id: "no spaces" }, FIELDS, true)).toEqual({
    name: "is required",
    id: "may have letters, digits, - _ and . alone, and is not new",
    "config.rules": "is required",
  });
  const refused = new ApiFailure("INVALID_GRADER", "wrong", 400, {
    errors: [
      { field: "config.rules[0].value", message: "is required" },
      { field: "name", message: "taken" },
    ],
  });
  expect(serverFaults(refused)).toEqual({ "config.rules.0.value": "is required", name: "taken" });
  expect(configFaults(serverFaults(refused))).toEqual({ "rules.0.value": "is required" });
  expect(serverFaults(new Error("other"))).toEqual({});
});

test("options are read as an object, or it is said what is wrong", () => {
  expect(readObject(' {"a": 1} ')).toEqual([{ a: 1 }, null]);
  expect(readObject("")).toEqual([{}, null]);
  expect(readObject("[1]")).toEqual([null, "must be an object, in braces"]);
  expect(readObject("{")[0]).toBeNull();
});

test("rules and judges are offered first; a judge is known by the key it needs", () => {
  const judge = grader({
    id: "judge",
    type: "judge",
    source: "built-in",
    config_schema: { properties: { judges: { items: { properties: { api_key_env: {} } } } } },
  });
  const check = grader({ id: "check", type: "check", source: "built-in", config_schema: {} });
  const rules = grader({ id: "custom-rules", source: "built-in" });
  expect(asksModel(judge)).toBe(true);
  expect([judge, check, rules, grader({ source: "python" })].map(familyOf)).toEqual([
    "judges",
    "texts",
    "rules",
    "python",
  ]);
  expect(
    kindsOf([check, judge, rules, grader(), grader({ source: "built-in", status: "error" })]).map((one) => one.id),
  ).toEqual(["custom-rules", "judge", "check"]);
});

test("many previews keep their order, a few at a time", async () => {
  let going = 0;
  let most = 0;
  const done = await inTurns([1, 2, 3, 4, 5, 6], async (item) => {
    most = Math.max(most, (going += 1));
    await Promise.resolve();
    going -= 1;
    return item * 2;
  });
  expect([done, most]).toEqual([[2, 4, 6, 8, 10, 12], 4]);
  expect(tally([{ score_status: "pass" }, { score_status: "error" }, { score_status: "pass" }])).toBe(
    "2 pass, 1 error",
  );
});
