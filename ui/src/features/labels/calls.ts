import { request } from "../../api/request.ts";
import type { components } from "../../api/schema.ts";

type Schemas = components["schemas"];

/** A person's word on a grader's word about one result. */
export type Label = Schemas["Label"];
/** One act; without a verdict it took the label back. */
export type LabelChange = Schemas["LabelChange"];
export type ResultLabels = Schemas["ResultLabels"];
export type NewLabel = Schemas["LabelBody"];
export type HumanVerdictValue = Label["verdict"];

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
