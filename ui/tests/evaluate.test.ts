import { expect, test } from "vitest";
import type { Evaluation, Grader, JsonObject } from "../src/api/types.ts";
import {
  agentKey,
  DEFAULT_MAPPING,
  type Draft,
  draftFromRun,
  graderChoices,
  runRequest,
  targetFromDraft,
  tryRequest,
  uniqueKey,
  validateDraft,
} from "../src/pages/evaluate/draft.ts";
import { gradersInSuite, parseSuite } from "../src/pages/evaluate/parseSuite.ts";
import { judgeCallsPerGrade } from "../src/pages/evaluate/RunPlan.tsx";

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
  mapping: DEFAULT_MAPPING,
  graders: [{ key: "similarity", id: "similarity", config: {} }],
  name: "",
  repeats: null,
  concurrency: null,
  timeout: null,
  baseline: "",
  stopEarly: false,
};

test("a default draft is the shortest request", () => {
  expect(runRequest(DRAFT, GRADERS, [])).toEqual({
    tag: "smoke",
    agent_endpoint_url: "http://127.0.0.1:9000/ask",
    grader_ids: ["similarity"],
  });
});

test("every option is sent, and a request format becomes a target", () => {
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
  expect(runRequest(draft, GRADERS, ["a", "b"])).toEqual({
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

test("early stopping is sent only with a baseline", () => {
  expect(runRequest({ ...DRAFT, stopEarly: true }, GRADERS, [])).toEqual(runRequest(DRAFT, GRADERS, []));
});

test("a repeated run keeps its baseline and early stopping", () => {
  const run = { id: "b", target: {}, baseline_id: "a", stop_early: true } as unknown as Evaluation;
  expect(draftFromRun(run)).toMatchObject({ baseline: "a", stopEarly: true });
  expect(draftFromRun({ ...run, baseline_id: null, stop_early: false })).toMatchObject({
    baseline: "",
    stopEarly: false,
  });
});

test("a default request format needs no target", () => {
  expect(targetFromDraft(DRAFT)).toBeNull();
});

test("problems are reported by part of the form", () => {
  const draft: Draft = {
    ...DRAFT,
    tag: " ",
    url: "ftp://x",
    mapping: { ...DEFAULT_MAPPING, request: "{" },
    graders: [{ key: "s", id: "similarity", config: { threshold: 2 } }],
  };
  expect(Object.keys(validateDraft(draft, GRADERS))).toEqual(["cases", "url", "request", "grader s"]);
  expect(validateDraft(DRAFT, GRADERS)).toEqual({});
});

test("the same grader twice gets two names", () => {
  const once = [{ key: "a", id: "a", config: {} }];
  expect([
    uniqueKey("a", []),
    uniqueKey("a", once),
    uniqueKey("a", [...once, { key: "a-2", id: "a", config: {} }]),
  ]).toEqual(["a", "a-2", "a-3"]);
  expect(graderChoices([{ key: "gone", id: "gone", config: { x: 1 } }], [])).toEqual([
    { id: "gone", config: { x: 1 } },
  ]);
});

test("a test call sends the agent part of the draft, with the timeout capped", () => {
  expect(tryRequest({ ...DRAFT, timeout: 300 }, "q")).toEqual({
    agent_endpoint_url: "http://127.0.0.1:9000/ask",
    input: "q",
    timeout_s: 60,
  });
  expect(tryRequest({ ...DRAFT, mapping: { ...DEFAULT_MAPPING, output: "text" } }, "q")).toEqual({
    target: { kind: "http", url: "http://127.0.0.1:9000/ask", response: { output: "text" } },
    input: "q",
  });
});

test("the agent key depends only on the agent and its request format", () => {
  expect(agentKey({ ...DRAFT, url: ` ${DRAFT.url} ` })).toBe(agentKey(DRAFT));
  expect(agentKey({ ...DRAFT, mapping: { ...DEFAULT_MAPPING, output: "x" } })).not.toBe(agentKey(DRAFT));
});

test("judge calls are counted by a grader's kind, not its name", () => {
  const [plain] = GRADERS;
  const judge: Grader = { ...plain!, id: "mine", type: "model_judge", config: { scoring: "samples" } };
  const chosen = (id: string, config: JsonObject = {}) => ({ key: id, id, config });
  expect([
    judgeCallsPerGrade(chosen("similarity"), plain),
    judgeCallsPerGrade(chosen("model_judge"), undefined),
    judgeCallsPerGrade(chosen("mine"), judge),
    judgeCallsPerGrade(chosen("mine", { samples: 3 }), judge),
    judgeCallsPerGrade(chosen("panel", { judges: [{}, {}, {}] }), undefined),
    judgeCallsPerGrade(chosen("pairwise"), undefined),
    judgeCallsPerGrade(chosen("baseline"), undefined),
    judgeCallsPerGrade(chosen("baseline", { judge: "llm" }), undefined),
    judgeCallsPerGrade(chosen("embedding"), undefined),
    judgeCallsPerGrade(chosen("embedding", { provider: "openai" }), undefined),
  ]).toEqual([0, 1, 5, 3, 3, 2, 0, 1, 0, 1]);
});

test("a suite is parsed as YAML 1.2 or JSON, else there is an error", () => {
  expect(parseSuite("name: x\nok: no\n")).toEqual({ suite: { name: "x", ok: "no" }, problem: null });
  expect(parseSuite('{"name": "x"}')).toEqual({ suite: { name: "x" }, problem: null });
  expect(parseSuite("- a").problem).toBe("A suite is a mapping with name, dataset, target and graders.");
  expect(parseSuite("a: 1\na: 2").problem).toContain("Map keys must be unique");
});

test("a suite's graders are parsed with their options, without its cases", () => {
  const suite =
    "name: x\ngraders:\n  similarity:\n    kind: similarity\n    config: {}\n  loose:\n    kind: similarity\n    config:\n      threshold: 0.5\ndataset:\n- [not: {yaml\n";
  expect(gradersInSuite(suite, GRADERS)).toEqual([
    { key: "similarity", id: "similarity", config: {} },
    { key: "loose", id: "similarity", config: { threshold: 0.5 } },
  ]);
  expect(gradersInSuite("name: x\n", GRADERS)).toBeNull();
});
