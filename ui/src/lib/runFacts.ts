import type { Evaluation } from "../api/types.ts";
import { count, counted } from "./format.ts";

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

/** Where a run ended early, and what that saved; empty where it asked all its cases. */
export function earlyEndOf({ stopped, calls_saved }: Evaluation): string {
  if (!stopped) return "";
  const saved = calls_saved ? `; ${counted(calls_saved, "call")} saved` : "";
  return `after ${count(stopped.n)} of ${counted(stopped.of, "case")}${saved}`;
}

/** What an early end left out: cases, or calls where a case is asked more than once. */
export function leftOut({ calls_saved, repeats }: Evaluation): string {
  return counted(calls_saved ?? 0, repeats > 1 ? "call" : "case");
}
