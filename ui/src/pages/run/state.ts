import type { Outcome, ResponseStatus, Result } from "../../api/types.ts";
import { oneOf, range, text, type StateOf } from "../../lib/urlState.ts";

export const TABS = ["result", "trajectory", "history", "raw"] as const;

/** All that a run's page shows, as its address says it. */
export const RUN_STATE = {
  status: oneOf<ResponseStatus | "">(["", "success", "error", "timeout"], ""),
  grader: text(),
  outcome: oneOf<Outcome | "">(["", "pass", "fail", "error", "skipped"], ""),
  tag: text(),
  q: text(),
  /** Scores of `grader` within a range; the service has no such filter, so it is applied to what is loaded. */
  score: range(),
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

/** What of the filter the service applies. */
export function serverFilter({ status, grader, outcome, tag, q }: RunState) {
  return { status, grader, outcome, tag, q };
}

/** What of it is applied here. */
export function keptHere(result: Result, { score, latency, grader }: RunState): boolean {
  if (latency !== null) {
    const took = result.response_latency_ms;
    if (took === null || took < latency.low || took > latency.high) return false;
  }
  if (score !== null) {
    return result.scores.some(
      (one) =>
        (grader === "" || one.grader_id === grader) &&
        one.score_value !== null &&
        one.score_value >= score.low &&
        // only the topmost bin has its upper end in it
        (one.score_value < score.high || (score.high >= 1 && one.score_value <= score.high)),
    );
  }
  return true;
}
