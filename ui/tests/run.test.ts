import { expect, test } from "vitest";
import type { Evaluation, Figure, Summary } from "../src/api/types.ts";
import { applyEvent, earlyStopText, remainingMs, remainingWork, runHeadline } from "../src/lib/run.ts";
import { readState } from "../src/lib/urlState.ts";
import { filterQuery, RUN_STATE } from "../src/pages/run/state.ts";

const RUN: Evaluation = {
  id: "r",
  name: "capitals",
  status: "completed",
  agent_endpoint_url: "http://127.0.0.1:1/ask",
  target: {},
  test_case_ids: null,
  tag: null,
  grader_ids: ["right"],
  repeats: 1,
  concurrency: null,
  timeout_s: null,
  baseline_id: null,
  started_at: "2026-01-15T12:00:00Z",
  completed_at: null,
  result_count: 0,
  error_message: null,
  group: null,
  parent: null,
};

function summary(passRates: Record<string, Figure>, total = 10): Summary {
  return {
    total_results: total,
    successful_responses: total,
    failed_responses: 0,
    timeout_responses: 0,
    grader_pass_counts: {},
    grader_fail_counts: {},
    grader_error_counts: {},
    grader_skipped_counts: {},
    grader_not_applicable_counts: {},
    average_scores: {},
    pass_rates: passRates,
    average_latency_ms: null,
    p50_latency_ms: null,
    p95_latency_ms: null,
    p99_latency_ms: null,
    coverage: {},
    orders: {},
    sentence: "",
  };
}

const figure = (value: number | null, scored: number, total: number): Figure => ({
  value,
  low: 0.5,
  high: 0.9,
  scored,
  total,
});

test("the headline names the grader with the lowest pass rate, its interval and coverage", () => {
  const verdict = runHeadline(RUN, summary({ a: figure(0.9, 10, 10), b: figure(0.75, 8, 10) }));
  expect(verdict).toEqual({
    tone: "none",
    sentence: "Lowest of 2 graders: b passes 75 % (50–90 %) of 8 scored responses; 80 % of 10 results have a score.",
  });
});

test("a run without scores is not a failed run", () => {
  expect(runHeadline(RUN, summary({ a: figure(null, 0, 10) }))).toEqual({
    tone: "none",
    sentence: "Nothing could be graded: no response has a score.",
  });
});

test("the headline of a run in progress is provisional", () => {
  expect(runHeadline({ ...RUN, status: "running" }, summary({ a: figure(1, 3, 3) }))).toEqual({
    tone: "open",
    sentence: "So far: a passes 100 % (50–90 %) of 3 scored responses.",
  });
});

test.each([
  [{ stopped: null, calls_saved: 0 }, ""],
  [{ stopped: { look: 8, n: 190, of: 492 }, calls_saved: 302 }, "after 190 of 492 cases; 302 calls saved"],
  [{ stopped: { look: 1, n: 6, of: 120 }, calls_saved: 1 }, "after 6 of 120 cases; 1 call saved"],
  // a regrade of such a run: it made no calls itself
  [{ stopped: { look: 1, n: 1000, of: 20000 }, calls_saved: 0, parent: "p" }, "after 1,000 of 20,000 cases"],
])("an early stop of %j is shown as %j", (fields, text) => {
  expect(earlyStopText({ ...RUN, ...fields })).toBe(text);
});

test("remaining work is counted in cases, or in calls if cases are repeated", () => {
  expect(remainingWork({ ...RUN, calls_saved: 302 })).toBe("302 cases");
  expect(remainingWork({ ...RUN, calls_saved: 906, repeats: 3 })).toBe("906 calls");
});

test("the gate's verdict comes first", () => {
  const verdict = { result: "undecided", reasons: ["coverage 80 % is below 95 %"] };
  expect(runHeadline({ ...RUN, verdict }, summary({ a: figure(1, 3, 3) }))).toEqual({
    tone: "open",
    sentence: "Undecided: coverage 80 % is below 95 %.",
  });
});

test("events update the run, whatever part of it they contain", () => {
  const running: Evaluation = { ...RUN, status: "pending" };
  const snapshot = {
    id: "1",
    event: "snapshot",
    data: '{"evaluation_id":"r","status":"running","progress":{"total":9,"answered":2,"graded":1,"errors":0}}',
  };
  const progress = { id: "2", event: "progress", data: '{"answered":3,"graded":3}' };
  const done = { id: "3", event: "done", data: '{"status":"completed","total":9,"answered":9,"graded":9,"errors":1}' };
  const steps = [snapshot, progress, done].map(
    (
      (run) => (event) =>
        (run = applyEvent(run, event))
    )(running),
  );
  expect(steps.map((run) => [run.status, run.progress])).toEqual([
    ["running", { total: 9, answered: 2, graded: 1, errors: 0 }],
    ["running", { total: 9, answered: 3, graded: 3, errors: 0 }],
    ["completed", { total: 9, answered: 9, graded: 9, errors: 1 }],
  ]);
});

test("an unknown event changes nothing", () => {
  expect(applyEvent(RUN, { id: "1", event: "progress", data: "not json" })).toBe(RUN);
  expect(applyEvent(RUN, { id: "1", event: "status", data: '{"status":"exploded"}' })).toEqual(RUN);
});

test("the remaining time is estimated from the pace so far", () => {
  const now = Date.parse("2026-01-15T12:00:10Z");
  const run: Evaluation = { ...RUN, status: "running", progress: { total: 30, answered: 12, graded: 10, errors: 0 } };
  expect(remainingMs(run, now)).toBe(20_000);
  expect(remainingMs({ ...run, progress: { total: null, answered: 12, graded: 10, errors: 0 } }, now)).toBeNull();
});

const NOTHING = {
  status: "",
  grader: "",
  outcome: "",
  tag: "",
  q: "",
  score_min: null,
  score_max: null,
  latency_min: null,
  latency_max: null,
};

test.each([
  ["", {}],
  ["q=a%20b&status=error&tag=x", { q: "a b", status: "error", tag: "x" }],
  ["grader=a&score=0.3..0.39999999999999997", { grader: "a", score_min: 0.3, score_max: 0.39999999999999997 }],
  ["grader=a&outcome=fail&score=0..0", { grader: "a", outcome: "fail", score_min: 0, score_max: 0 }],
  ["score=0.3..0.4", {}],
  ["latency=0..1.5", { latency_min: 0, latency_max: 1.5 }],
])("the URL %j becomes the query %j", (address, query) => {
  expect(filterQuery(readState(RUN_STATE, new URLSearchParams(address)))).toEqual({ ...NOTHING, ...query });
});
