import { request } from "../../api/request.ts";
import type { Outcome } from "../../api/types.ts";

export type HumanVerdictValue = "pass" | "fail";

/** A person's word on a grader's word about one result. */
export interface Label {
  grader_id: string;
  verdict: HumanVerdictValue;
  score: number | null;
  reason: string;
  /** The id of a key; null where no keys are used. */
  author: string | null;
  labelled_at: string;
  /** What the grader said then. */
  grade_outcome: Outcome;
  grade_score: number | null;
}

/** One act; without a verdict it took the label back. */
export interface LabelChange {
  grader_id: string;
  verdict: HumanVerdictValue | null;
  score: number | null;
  reason: string | null;
  author: string | null;
  at: string;
}

export interface ResultLabels {
  labels: Label[];
  history: LabelChange[];
}

export interface NewLabel {
  verdict: HumanVerdictValue;
  reason: string;
  score?: number;
}

export const labelCalls = {
  of: (run: string, result: string, signal?: AbortSignal) =>
    request<ResultLabels>("GET", place(run, result), signal ? { signal } : {}),
  put: (run: string, result: string, grader: string, body: NewLabel) =>
    request<Label>("PUT", `${place(run, result)}/${encodeURIComponent(grader)}`, { body }),
  takeBack: (run: string, result: string, grader: string) =>
    request<void>("DELETE", `${place(run, result)}/${encodeURIComponent(grader)}`),
};

function place(run: string, result: string): string {
  return `evaluations/${encodeURIComponent(run)}/results/${encodeURIComponent(result)}/labels`;
}
