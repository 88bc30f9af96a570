import { expect, test } from "vitest";
import { resultId } from "../src/api/client.ts";
import type { Comparison } from "../src/api/types.ts";
import { readState, writeState } from "../src/lib/urlState.ts";
import {
  type CaseChange,
  changeFor,
  COMPARE_STATE,
  comparisonSentence,
  countsFor,
  filterCases,
  formatSigned,
  formatSignedInterval,
  largestDifference,
  noiseNote,
  undecidedNote,
} from "../src/pages/compare/comparison.ts";
import { codeSpan, toMarkdown } from "../src/pages/compare/markdown.ts";
import { binPairedScores } from "../src/pages/compare/ScoreDistribution.tsx";
import { countIntoBins } from "../src/pages/compare/ScoreDistribution.tsx";

type Scores = Record<string, number | null>;

/** A case as the service lists it; `changes` are those by grader. */
function one(
  id: string,
  change: CaseChange["change"],
  baseline: Scores,
  candidate: Scores,
  changes: CaseChange["changes"] = {},
): CaseChange {
  return {
    test_case_id: id,
    change,
    changes,
    baseline,
    candidate,
    input: "?",
    baseline_output: "a",
    candidate_output: "b",
  };
}

const CASES = [
  one("same", "same", { a: 1, b: 1 }, { a: 1, b: 1 }, { a: "same", b: "same" }),
  one("up", "improved", { a: 0, b: 1 }, { a: 1, b: 1 }, { a: "improved", b: "same" }),
  one("gone", "missing", { a: 1, b: null }, { a: null, b: 1 }, { a: "missing", b: "missing" }),
  one("little loss", "worse", { a: 1, b: 0.5 }, { a: 1, b: 0.4 }, { a: "same", b: "worse" }),
  one("great loss", "worse", { a: 1, b: 1 }, { a: 0, b: 1 }, { a: "worse", b: "same" }),
  one("both ways", "mixed", { a: 0, b: 1 }, { a: 1, b: 0 }, { a: "improved", b: "worse" }),
  one("edited", "edited", { a: 0, b: 0 }, { a: 1, b: 1 }, { a: "edited", b: "edited" }),
];

const GRADER: Comparison["graders"][string] = {
  difference: 0.1,
  low: -0.05,
  high: 0.25,
  decision: "undecided",
  n: 40,
  reasons: ["a loss above 0.05 is ruled out", "220 cases in all (180 more) settle it"],
  cases_to_decide: 220,
  coverage: 1,
  bounds_low: 0.1,
  bounds_high: 0.1,
  baseline: 0.6,
  candidate: 0.7,
  p_value: 0.2,
  p_adjusted: 0.4,
  test: "paired_t",
  noise_threshold: 0.15,
  noise: 0,
  within_noise: 0,
  skewed: false,
  largest_drops: [{ case: "great loss", baseline: 1, candidate: 0 }],
  improved: 2,
  worse: 1,
  same: 3,
  missing: 1,
};

function comparison(changes: Partial<Comparison> = {}): Comparison {
  return {
    baseline_id: "A",
    candidate_id: "B",
    comparability: { comparable: true, reasons: [] },
    margin: 0.02,
    decision: "undecided",
    sentence: "undecided (a)",
    primary: ["a"],
    warnings: [],
    graders: { a: GRADER, b: { ...GRADER, decision: "worse", cases_to_decide: null } },
    cases: CASES,
    case_counts: { improved: 1, worse: 2, mixed: 1, same: 1, missing: 1, edited: 1 },
    cases_omitted: 0,
    ...changes,
  };
}

test("the largest loss comes first, unchanged cases last", () => {
  expect(filterCases(CASES, "", "").map((row) => row.test_case_id)).toEqual([
    "great loss",
    "little loss",
    "both ways",
    "gone",
    "edited",
    "up",
    "same",
  ]);
});

test("a chosen grader decides the change; a missing score is not a zero", () => {
  expect(CASES.map((row) => changeFor(row, "b"))).toEqual([
    "same",
    "same",
    "missing",
    "worse",
    "same",
    "worse",
    "edited",
  ]);
  expect(filterCases(CASES, "b", "worse").map((row) => row.test_case_id)).toEqual(["both ways", "little loss"]);
  expect(largestDifference(CASES[2] as CaseChange, "")).toBeNull();
});

test("a difference within a grader's noise counts as same, and its scores still show it", () => {
  const noisy = one("x", "same", { a: 0.5 }, { a: 0.505 }, { a: "same" });
  expect(changeFor(noisy, "a")).toBe("same");
  expect(changeFor(noisy, "another")).toBe("missing");
  expect(largestDifference(noisy, "a")).toBe(0.005);
});

test("cases that are not listed are counted too", () => {
  expect(countsFor(comparison(), "b")).toEqual({
    improved: 0,
    worse: 2,
    mixed: 0,
    same: 3,
    missing: 1,
    edited: 1,
    not_applicable: 0,
  });
  const many = comparison({
    cases_omitted: 9,
    case_counts: { improved: 1, worse: 2, mixed: 1, same: 10, missing: 1, edited: 1 },
  });
  expect(countsFor(many, "").same).toBe(10);
  expect(countsFor(many, "a")).toEqual({
    improved: 2,
    worse: 1,
    mixed: 0,
    same: 3,
    missing: 1,
    edited: 0,
    not_applicable: 0,
  });
});

test("a difference shows its sign, even if it is very small", () => {
  expect([0.16, -0.03, 0, 0.001, -1, null].map(formatSigned)).toEqual(["+0.16", "−0.03", "0", "+0.001", "−1", "–"]);
  expect(formatSignedInterval(GRADER)).toBe("+0.10 (−0.05 to +0.25)");
});

test("an undecided grader reports how many cases would decide it", () => {
  expect(undecidedNote(GRADER)).toBe("A loss above 0.05 is ruled out; 220 cases in all (180 more) settle it.");
  expect(undecidedNote({ ...GRADER, decision: "better" })).toBe("");
  expect(comparisonSentence(comparison())).toBe("Worse by 1, undecided by 1 of 2 graders, over 40 paired cases.");
});

test("the noise of a grader is reported, with its effect on the difference", () => {
  expect(noiseNote(GRADER)).toBe("");
  const noisy = { ...GRADER, noise: 0.01, within_noise: 12 };
  expect(noiseNote(noisy)).toBe("Changes below 0.01 count as same (12 of 40 cases).");
  expect(noiseNote({ ...noisy, difference: 0.13 })).toBe(
    "Changes below 0.01 count as same (12 of 40 cases); with these changes the difference is +0.10.",
  );
  expect(noiseNote({ ...noisy, difference: null })).toBe("");
  expect(toMarkdown(comparison({ graders: { a: noisy } }), { baseline: "A", candidate: "B" }, "x")).toContain(
    "Changes below 0.01 count as same (12 of 40 cases).",
  );
});

test("a result id is encoded like the service's", () => {
  expect(resultId("what's (this)? ü/~", 2)).toBe("what%27s%20%28this%29%3F%20%C3%BC%2F~~2");
});

test("the page state is in the URL", () => {
  const state = {
    baseline: "A",
    candidate: "B",
    force: "on",
    show: "worse",
    grader: "a",
    row: "case 1",
    repeat: 2,
    view: "sides",
  } as const;
  const params = writeState(COMPARE_STATE, new URLSearchParams(), state);
  expect(readState(COMPARE_STATE, new URLSearchParams(params.toString()))).toEqual(state);
  expect(
    writeState(COMPARE_STATE, params, {
      show: "",
      force: "off",
      grader: "",
      row: "",
      repeat: 0,
      view: "diff",
    }).toString(),
  ).toBe("baseline=A&candidate=B");
});

test("untrusted text is not markup in Markdown", () => {
  expect(codeSpan("a|b `c` <img> @someone\n[x](javascript:1) \u202eevil", true)).toBe(
    "``a\\|b `c` <img> @someone [x](javascript:1) ⟦RLO⟧evil``",
  );
  expect(codeSpan("`edge")).toBe("`` `edge ``");
  const text = toMarkdown(
    comparison({ comparability: { comparable: true, reasons: ["suite: 'x'"] } }),
    { baseline: "old", candidate: "new" },
    "http://h/#/compare",
  );
  expect(text).toBe(
    [
      "### `new` against `old`",
      "Worse by 1, undecided by 1 of 2 graders, over 40 paired cases.",
      [
        "| grader | baseline | candidate | difference (95 % interval) | decision | improved / worse / same / missing |",
        "|---|---|---|---|---|---|",
        "| `a` | 0.60 | 0.70 | +0.10 (−0.05 to +0.25) | **Undecided**. A loss above 0.05 is ruled out; 220 cases in all (180 more) settle it. | 2 / 1 / 3 / 1 |",
        "| `b` | 0.60 | 0.70 | +0.10 (−0.05 to +0.25) | **Worse** | 2 / 1 / 3 / 1 |",
      ].join("\n"),
      "Other differences:\n- `suite: 'x'`",
      "Worse or mixed: `great loss`, `little loss`, `both ways`",
      "<http://h/#/compare>\n",
    ].join("\n\n"),
  );
});

test("scores of both runs are counted in the same bins, without missing scores", () => {
  expect(binPairedScores(CASES, "a")).toBeNull();
  const bins = binPairedScores(CASES, "b");
  expect(bins?.map((bin) => [bin.baseline, bin.candidate])).toEqual([
    [1, 1],
    [0, 0],
    [0, 0],
    [0, 0],
    [0, 1],
    [1, 0],
    [0, 0],
    [0, 0],
    [0, 0],
    [4, 5],
  ]);
});

test("a copied comparison includes warnings, as text only", () => {
  const names = { baseline: "old", candidate: "new" };
  const text = toMarkdown(comparison({ warnings: ["candidate: cluster: 2 of 24 cases [x](y)"] }), names, "http://x");
  expect(text).toContain("Warnings:\n- `candidate: cluster: 2 of 24 cases [x](y)`\n");
  expect(toMarkdown(comparison(), names, "http://x")).not.toContain("Warnings");
});

test("values are counted in bins, including both ends", () => {
  const counts = countIntoBins([0, 0.05, 0.1, 0.3, 0.30000000000000004, 0.95, 1], 0, 1, 10).map((bin) => bin.count);
  expect(counts).toEqual([2, 1, 0, 2, 0, 0, 0, 0, 0, 2]);
});

test("bin ends are rounded", () => {
  expect(countIntoBins([], 0, 1, 10).map((bin) => bin.low)).toEqual([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]);
});
