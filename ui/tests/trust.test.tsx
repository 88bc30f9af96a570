import { cleanup, render, screen } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { afterEach, expect, test } from "vitest";
import type { Comparison, Summary } from "../src/api/types.ts";
import { JudgeBadge } from "../src/components/Badge.tsx";
import { GraderDifferences } from "../src/pages/compare/GraderDifferences.tsx";
import { blindLabel, drawProblems, LABEL_STATE, placeAfter } from "../src/pages/label/labelling.ts";
import { GraderTable } from "../src/pages/run/GraderTable.tsx";
import { isOwn, labelText } from "../src/pages/run/LabelPanel.tsx";
import { RUN_STATE } from "../src/pages/run/state.ts";
import { readState } from "../src/lib/urlState.ts";

afterEach(cleanup);

const SENTENCE = "0.705 judge → 0.398 (0.305–0.499), 100 labels";
const FIGURE = { value: 0.705, low: 0.67, high: 0.74, scored: 600, total: 600 };
const SUMMARY = {
  total_results: 600,
  successful_responses: 600,
  failed_responses: 0,
  timeout_responses: 0,
  pass_rates: { quality: FIGURE },
  average_scores: { quality: FIGURE },
  coverage: {},
  orders: {},
  grader_pass_counts: {},
  grader_fail_counts: {},
  grader_error_counts: {},
  grader_skipped_counts: {},
  grader_not_applicable_counts: {},
} as unknown as Summary;

function table(more: Partial<Summary>) {
  return render(
    <GraderTable
      summary={{ ...SUMMARY, ...more }}
      state={readState(RUN_STATE, new URLSearchParams())}
      onChange={() => undefined}
    />,
  );
}

test.each(["calibrated", "uncalibrated", "failed", "expired", "drifted"] as const)(
  "a judge that is %s says why, on hover and to screen readers",
  (state) => {
    render(<JudgeBadge judge={{ state, reason: "because \u202eof it" }} />);
    expect(screen.getByTitle("because ⟦RLO⟧of it").textContent).toBe(`judge ${state}`);
    expect(screen.getByText(/because/).parentElement?.className).toContain("sr-only");
  },
);

test("the rate corrected by labels is next to the judge's own, with the state of the judge", () => {
  table({
    calibration: { quality: { state: "expired", reason: "the prompt changed since 2026-11-19" } },
    corrected: { quality: { measure: "pass_rate", judge: 0.705, estimate: 0.398, sentence: SENTENCE } },
  } as Partial<Summary>);
  expect(screen.getByText(SENTENCE)).toBeTruthy();
  expect(screen.getByText("judge expired")).toBeTruthy();
  expect(screen.getByText("the prompt changed since 2026-11-19")).toBeTruthy();
});

test("a rate that is not corrected says why; biases that probes flagged are shown", () => {
  const refusal = "0.705 judge, not corrected: 12 labels, at least 30 are needed";
  table({
    corrected: { quality: { measure: "pass_rate", judge: 0.705, estimate: null, sentence: refusal } },
    probes: {
      quality: [
        { probe: "position", verdict: "flagged", sentence: "the first answer won 40 of 50" },
        { probe: "length", verdict: "not_flagged", sentence: "no preference" },
      ],
    },
  } as unknown as Partial<Summary>);
  expect(screen.getByText(refusal)).toBeTruthy();
  expect(screen.getByText("probe position: the first answer won 40 of 50")).toBeTruthy();
  expect(screen.queryByText(/no preference/)).toBeNull();
});

test("without judges and labels nothing of them is shown", () => {
  const { container } = table({});
  expect(container.querySelector("[data-corrected]")).toBeNull();
  expect(screen.queryByText(/^judge /)).toBeNull();
});

test("a comparison shows the difference corrected by labels", () => {
  const sentence = "+0.030 judge → -0.052 (-0.110…+0.006), 100 cases labelled in both runs";
  const comparison = {
    decision: null,
    margin: 0.02,
    cases: [],
    cases_omitted: 1,
    case_counts: {},
    graders: {
      quality: {
        ...{ difference: 0.03, low: 0.01, high: 0.05, decision: "undecided", n: 600, reasons: [] },
        ...{ p_adjusted: null, noise_threshold: null, baseline: 0.5, candidate: 0.53, largest_drops: [] },
        ...{ improved: 0, worse: 0, same: 0, missing: 0, corrected: { measure: "pass_rate", judge: 0.03, sentence } },
      },
    },
  } as unknown as Comparison;
  render(
    <MemoryRouter>
      <GraderDifferences comparison={comparison} state={{ grader: "", show: "" } as never} onChange={() => undefined} />
    </MemoryRouter>,
  );
  expect(screen.getByText(sentence)).toBeTruthy();
});

test("a label is the user's own by its key, but not an adjudication", () => {
  expect(isOwn({ author: null, role: "rater" }, null)).toBe(true);
  expect(isOwn({ author: "ada", role: "rater" }, null)).toBe(false);
  expect(isOwn({ author: "k1", role: "rater" }, "k1")).toBe(true);
  expect(isOwn({ author: "k1", role: "adjudicator" }, "k1")).toBe(false);
});

test("a label in words", () => {
  expect(labelText({ verdict: "pass", score: 0.5, category: null })).toBe("pass 0.50");
  expect(labelText({ verdict: null, score: null, category: "vague" })).toBe("vague");
});

test("a comment is sent only if there is one, and not too long", () => {
  expect(blindLabel("pass", "  ")).toEqual({ verdict: "pass" });
  expect(blindLabel("fail", " wrong ")).toEqual({ verdict: "fail", comment: "wrong" });
  expect(blindLabel("fail", "𝄞".repeat(2000))).toEqual({ verdict: "fail", comment: "𝄞".repeat(2000) });
  expect(blindLabel("fail", "x".repeat(2001))).toBeNull();
});

test("after a result comes the next one without a label, if there is one", () => {
  expect(placeAfter({ place: 3, next_place: 7 })).toBe(7);
  expect(placeAfter({ place: 3, next_place: null })).toBe(3);
});

test("the form of a sample names every problem", () => {
  expect(drawProblems({ question: "quality", n: "100", seed: "0", method: "" })).toEqual({});
  expect(drawProblems({ question: " ", n: "0", seed: "-1", method: "" })).toEqual({
    question: "Choose a grader or enter a question",
    n: "Enter a whole number from 1 to 10,000",
    seed: "Enter a whole number from 0",
  });
  expect(drawProblems({ question: "q", n: "10001", seed: "1.5", method: "" })).toEqual({
    n: "Enter a whole number from 1 to 10,000",
    seed: "Enter a whole number from 0",
  });
});

test("the place in the URL is the first unlabelled one unless it is given", () => {
  expect(readState(LABEL_STATE, new URLSearchParams())).toEqual({ sample: "", place: -1 });
  expect(readState(LABEL_STATE, new URLSearchParams("sample=random-1-a&place=4")).place).toBe(4);
  expect(readState(LABEL_STATE, new URLSearchParams("place=x")).place).toBe(-1);
});
