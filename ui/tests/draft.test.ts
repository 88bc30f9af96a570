import { expect, test } from "vitest";
import type { Evaluation, Grader, JsonObject } from "../src/api/types.ts";
import {
  agentKey,
  bodyOf,
  choicesOf,
  draftFrom,
  faultsOf,
  freshKey,
  PLAIN_MAPPING,
  targetOf,
  tryBody,
  type Draft,
} from "../src/pages/evaluate/draft.ts";
import { judgeCalls } from "../src/pages/evaluate/judgeCalls.ts";
import { gradersFrom, suiteFrom } from "../src/pages/evaluate/suiteText.ts";

const GRADERS: Grader[] = [
  {
    id: "similarity",
    name: "Similarity",
    description: null,
    type: "similarity",
    config_schema: {
      type: "object",
      properties: { threshold: { type: "number", minimum: 0, maximum: 1, default: 0.8 } },
    },
    scoring_guide: "",
    default_extractor: "last_assistant",
    version: 1,
    fingerprint: "f",
    status: "active",
    source: "built-in",
  },
];

const DRAFT: Draft = {
  by: "tag",
  tag: "smoke",
  ids: [],
  url: "http://127.0.0.1:9000/ask",
  mapping: PLAIN_MAPPING,
  graders: [{ key: "similarity", id: "similarity", config: {} }],
  name: "",
  repeats: null,
  concurrency: null,
  timeout: null,
  baseline: "",
  stopEarly: false,
};

test("a plain draft is the shortest request", () => {
  expect(bodyOf(DRAFT, GRADERS, [])).toEqual({
    tag: "smoke",
    agent_endpoint_url: "http://127.0.0.1:9000/ask",
    grader_ids: ["similarity"],
  });
});

test("everything that was set is sent, and a mapping makes a target", () => {
  const draft: Draft = {
    ...DRAFT,
    by: "ids",
    mapping: {
      method: "PUT",
      headers: '{"X-A": "b"}',
      request: '{"q": "{{input}}"}',
      output: " data.text ",
      toolCalls: "calls",
    },
    graders: [
      { key: "similarity", id: "similarity", config: { threshold: 0.8 } },
      { key: "similarity-2", id: "similarity", config: { threshold: 0.5 } },
    ],
    name: " mine ",
    repeats: 3,
    concurrency: 5,
    timeout: 12,
    baseline: "r1",
    stopEarly: true,
  };
  expect(bodyOf(draft, GRADERS, ["a", "b"])).toEqual({
    test_case_ids: ["a", "b"],
    target: {
      kind: "http",
      url: "http://127.0.0.1:9000/ask",
      method: "PUT",
      headers: { "X-A": "b" },
      request: { q: "{{input}}" },
      response: { output: "data.text", tool_calls: "calls" },
      timeout: 12,
    },
    grader_ids: ["similarity", { id: "similarity", name: "similarity-2", config: { threshold: 0.5 } }],
    name: "mine",
    repeats: 3,
    concurrency: 5,
    baseline_id: "r1",
    stop_early: true,
  });
});

test("early stopping is asked for only with a run to compare with", () => {
  expect(bodyOf({ ...DRAFT, stopEarly: true }, GRADERS, [])).toEqual(bodyOf(DRAFT, GRADERS, []));
});

test("a run is done again with its baseline and its early stopping", () => {
  const run = { id: "b", target: {}, baseline_id: "a", stop_early: true } as unknown as Evaluation;
  expect(draftFrom(run)).toMatchObject({ baseline: "a", stopEarly: true });
  expect(draftFrom({ ...run, baseline_id: null, stop_early: false })).toMatchObject({ baseline: "", stopEarly: false });
});

test("a plain mapping is no target", () => {
  expect(targetOf(DRAFT)).toBeNull();
});

test("what is wrong is told by the part it is in", () => {
  const draft: Draft = {
    ...DRAFT,
    tag: " ",
    url: "ftp://x",
    mapping: { ...PLAIN_MAPPING, request: "{" },
    graders: [{ key: "s", id: "similarity", config: { threshold: 2 } }],
  };
  expect(Object.keys(faultsOf(draft, GRADERS))).toEqual(["cases", "url", "request", "grader s"]);
  expect(faultsOf(DRAFT, GRADERS)).toEqual({});
});

test("the same grader twice has two names", () => {
  const once = [{ key: "a", id: "a", config: {} }];
  expect([
    freshKey("a", []),
    freshKey("a", once),
    freshKey("a", [...once, { key: "a-2", id: "a", config: {} }]),
  ]).toEqual(["a", "a-2", "a-3"]);
  expect(choicesOf([{ key: "gone", id: "gone", config: { x: 1 } }], [])).toEqual([{ id: "gone", config: { x: 1 } }]);
});

test("a try sends the agent part of the draft, and no more time than the service gives", () => {
  expect(tryBody({ ...DRAFT, timeout: 300 }, "q")).toEqual({
    agent_endpoint_url: "http://127.0.0.1:9000/ask",
    input: "q",
    timeout_s: 60,
  });
  expect(tryBody({ ...DRAFT, mapping: { ...PLAIN_MAPPING, output: "text" } }, "q")).toEqual({
    target: { kind: "http", url: "http://127.0.0.1:9000/ask", response: { output: "text" } },
    input: "q",
  });
});

test("a try is of the agent as it is asked, whatever else changes", () => {
  expect(agentKey({ ...DRAFT, url: ` ${DRAFT.url} ` })).toBe(agentKey(DRAFT));
  expect(agentKey({ ...DRAFT, mapping: { ...PLAIN_MAPPING, output: "x" } })).not.toBe(agentKey(DRAFT));
});

test("judge calls are counted by what a grader is, not by its name", () => {
  const [plain] = GRADERS;
  const judge: Grader = { ...plain!, id: "mine", type: "model_judge", config: { scoring: "samples" } };
  const chosen = (id: string, config: JsonObject = {}) => ({ key: id, id, config });
  expect([
    judgeCalls(chosen("similarity"), plain),
    judgeCalls(chosen("model_judge"), undefined),
    judgeCalls(chosen("mine"), judge),
    judgeCalls(chosen("mine", { samples: 3 }), judge),
    judgeCalls(chosen("panel", { judges: [{}, {}, {}] }), undefined),
    judgeCalls(chosen("pairwise"), undefined),
    judgeCalls(chosen("baseline"), undefined),
    judgeCalls(chosen("baseline", { judge: "llm" }), undefined),
    judgeCalls(chosen("embedding"), undefined),
    judgeCalls(chosen("embedding", { provider: "openai" }), undefined),
  ]).toEqual([0, 1, 5, 3, 3, 2, 0, 1, 0, 1]);
});

test("a suite is read as YAML 1.2 or JSON; what is none is told", () => {
  expect(suiteFrom("name: x\nok: no\n")).toEqual({ suite: { name: "x", ok: "no" }, fault: null });
  expect(suiteFrom('{"name": "x"}')).toEqual({ suite: { name: "x" }, fault: null });
  expect(suiteFrom("- a").fault).toBe("A suite is a mapping with name, dataset, target and graders.");
  expect(suiteFrom("a: 1\na: 2").fault).toContain("Map keys must be unique");
});

test("a run's graders come back with their options, its cases are not read", () => {
  const suite =
    "name: x\ngraders:\n  similarity:\n    kind: similarity\n    config: {}\n  loose:\n    kind: similarity\n    config:\n      threshold: 0.5\ndataset:\n- [not: {yaml\n";
  expect(gradersFrom(suite, GRADERS)).toEqual([
    { key: "similarity", id: "similarity", config: {} },
    { key: "loose", id: "similarity", config: { threshold: 0.5 } },
  ]);
  expect(gradersFrom("name: x\n", GRADERS)).toBeNull();
});
