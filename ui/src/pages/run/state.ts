import type { Outcome, ResponseStatus } from "../../api/types.ts";
import { oneOf, range, type StateOf, text } from "../../lib/urlState.ts";

const TABS = ["result", "trajectory", "history", "raw"] as const;

/** The state of the page in the URL. */
export const RUN_STATE = {
  status: oneOf<ResponseStatus | "">(["", "success", "error", "timeout"], ""),
  grader: text(),
  outcome: oneOf<Outcome | "">(["", "pass", "fail", "error", "skipped", "not_applicable"], ""),
  tag: text(),
  q: text(),
  /** Scores of `grader`, both ends included. */
  score: range(),
  /** Of successful responses, in milliseconds. */
  latency: range(),
  /** The open result. */
  row: text(),
  tab: oneOf(TABS, "result"),
  diff: oneOf(["on", "off"] as const, "off"),
};

export type RunState = StateOf<typeof RUN_STATE>;
export type ChangeRun = (change: Partial<RunState>, options?: { replace?: boolean }) => void;

export const NO_FILTER = { status: "", grader: "", outcome: "", tag: "", q: "", score: null, latency: null } as const;

export function isFiltered(state: RunState): boolean {
  const { status, grader, outcome, tag, q, score, latency } = state;
  return [status, grader, outcome, tag, q].some((value) => value !== "") || score !== null || latency !== null;
}

/** The filter as query parameters; empty ones are not sent. */
export function filterQuery({ status, grader, outcome, tag, q, score, latency }: RunState) {
  // a range of scores has no meaning without a grader
  const scores = grader === "" ? null : score;
  return {
    status,
    grader,
    outcome,
    tag,
    q,
    score_min: scores?.low ?? null,
    score_max: scores?.high ?? null,
    latency_min: latency?.low ?? null,
    latency_max: latency?.high ?? null,
  };
}
