import { ApiFailure } from "../../api/failure.ts";
import { request } from "../../api/request.ts";
import { api } from "../../api/calls.ts";
import type { Comparison, ResultDetail } from "../../api/types.ts";

export function compareRuns(
  baseline: string,
  candidate: string,
  force: boolean,
  signal: AbortSignal,
): Promise<Comparison> {
  return request<Comparison>("GET", "evaluations/compare", { query: { baseline, candidate, force }, signal });
}

/** The result of a case in a run; null where the run does not have it. */
export async function resultIn(run: string, result: string, signal: AbortSignal): Promise<ResultDetail | null> {
  try {
    return await api.result(run, result, signal);
  } catch (error) {
    if (error instanceof ApiFailure && error.code === "NOT_FOUND") return null;
    throw error;
  }
}

/** The service's name for a result of a case. */
export function resultId(testCase: string, repeat: number): string {
  const encoded = encodeURIComponent(testCase).replace(
    /[!'()*]/g,
    (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`,
  );
  return `${encoded}~${repeat}`;
}
