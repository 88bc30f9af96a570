import type { Evaluation } from "../api/types.ts";

/** Whom a run asked, in a few words. */
export function agentOf(run: Evaluation): string {
  if (run.agent_endpoint_url) return run.agent_endpoint_url;
  const { kind, model, url } = run.target ?? {};
  return [kind, model ?? url].filter((part) => typeof part === "string").join(" ");
}

/** By what it was graded. */
export function gradersOf(run: Evaluation): string {
  return run.grader_ids.join(", ");
}
