import type { ServerEvent } from "../api/events.ts";
import type { Evaluation, Json, Progress, RunStatus, Summary } from "../api/types.ts";
import { formatCount, formatPercent, formatRate, pluralize } from "./format.ts";
import { visibleText } from "./visibleText.ts";

const STATUSES: readonly string[] = ["pending", "running", "completed", "failed", "cancelled", "interrupted"];

/** Applies an event, which contains the whole run, its progress, or a part of either. */
export function applyEvent(run: Evaluation, event: ServerEvent): Evaluation {
  const data = parseRecord(event.data);
  if (data === null) return run;
  const inner = asRecord(data["evaluation"]) ?? asRecord(data["run"]) ?? data;
  const progress = parseProgress(asRecord(inner["progress"]) ?? inner);
  const status = parseStatus(inner["status"]);
  return {
    ...run,
    ...(status === null ? {} : { status }),
    ...(progress === null ? {} : { progress: { ...(run.progress ?? NO_PROGRESS), ...progress } }),
    ...(typeof inner["completed_at"] === "string" ? { completed_at: inner["completed_at"] } : {}),
    ...(typeof inner["error_message"] === "string" ? { error_message: inner["error_message"] } : {}),
  };
}

const NO_PROGRESS: Progress = { total: null, answered: 0, graded: 0, errors: 0 };

export function isInProgress(status: RunStatus): boolean {
  return status === "pending" || status === "running";
}

/** Estimated milliseconds until the end; null if unknown. */
export function remainingMs(run: Evaluation, now = Date.now()): number | null {
  const startedAt = run.started_at ? Date.parse(run.started_at) : Number.NaN;
  const { total, graded } = run.progress ?? NO_PROGRESS;
  if (run.status !== "running" || Number.isNaN(startedAt) || !total || graded < 3) return null;
  return ((now - startedAt) / graded) * (total - graded);
}

function parseProgress(data: Record<string, Json>): Partial<Progress> | null {
  const present = (["total", "answered", "graded", "errors"] as const).filter((key) => typeof data[key] === "number");
  return present.length === 0 ? null : Object.fromEntries(present.map((key) => [key, data[key]]));
}

function parseStatus(value: Json | undefined): RunStatus | null {
  return typeof value === "string" && STATUSES.includes(value) ? (value as RunStatus) : null;
}

function asRecord(value: Json | undefined): Record<string, Json> | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : null;
}

function parseRecord(text: string): Record<string, Json> | null {
  try {
    return asRecord(JSON.parse(text) as Json);
  } catch {
    return null;
  }
}

/** The name of a run, or the start of its id; safe for attributes and options. */
export function runTitle(run: Evaluation): string {
  return visibleText(run.name || run.id.slice(0, 8));
}

/** ", baseline main" for a run that is a baseline, for the options of a select. */
export function baselineSuffix({ baselines = [] }: Pick<Evaluation, "baselines">): string {
  return baselines.map((name) => `, baseline ${visibleText(name)}`).join("");
}

/** A short description of the run's target. */
export function targetName(run: Evaluation): string {
  if (run.agent_endpoint_url) return run.agent_endpoint_url;
  const { kind, model, url } = run.target ?? {};
  return [kind, model ?? url].filter((part) => typeof part === "string").join(" ");
}

/** The variant of a run, unless its name has it already. */
export function variantName(run: Evaluation): string {
  return run.variant && !run.name.endsWith(`[${run.variant}]`) ? run.variant : "";
}

export function graderNames(run: Evaluation): string {
  return run.grader_ids.join(", ");
}

/** Where a run stopped early and how many calls that saved; empty if it ran all its cases. */
export function earlyStopText({ stopped, calls_saved }: Evaluation): string {
  if (!stopped) return "";
  const saved = calls_saved ? `; ${pluralize(calls_saved, "call")} saved` : "";
  return `after ${formatCount(stopped.n)} of ${pluralize(stopped.of, "case")}${saved}`;
}

/** What an early stop left out: a number of cases, or of calls if cases are repeated. */
export function remainingWork({ calls_saved, repeats }: Evaluation): string {
  return pluralize(calls_saved ?? 0, repeats > 1 ? "call" : "case");
}

export interface Headline {
  tone: "good" | "bad" | "open" | "none";
  sentence: string;
}

const PARTIAL: Partial<Record<RunStatus, string>> = {
  running: "So far: ",
  cancelled: "Cancelled. Results so far: ",
  interrupted: "Interrupted. Results so far: ",
};

/** A run in one sentence: the gate's verdict, else the lowest pass rate with its interval and coverage. */
export function runHeadline(run: Evaluation, summary: Summary): Headline {
  if (run.status === "pending") return { tone: "open", sentence: "Waiting to start." };
  if (run.status === "failed") {
    return { tone: "bad", sentence: `The run failed${run.error_message ? `: ${run.error_message}` : "."}` };
  }
  if (run.verdict) return gateHeadline(run.verdict);
  const graders = Object.entries(summary.pass_rates).filter(([, figure]) => figure.value !== null);
  const prefix = PARTIAL[run.status] ?? "";
  if (graders.length === 0) {
    return prefix === "" && summary.total_results > 0
      ? { tone: "none", sentence: "Nothing could be graded: no response has a score." }
      : { tone: "open", sentence: `${prefix}no scores yet.` };
  }
  const [name, worst] = graders.reduce((low, one) => ((one[1].value ?? 1) < (low[1].value ?? 1) ? one : low));
  const subject = graders.length === 1 ? `${name} passes` : `lowest of ${graders.length} graders: ${name} passes`;
  const sentence = `${prefix}${subject} ${formatRate(worst)} of ${pluralize(worst.scored, "scored response")}${coverageText(worst)}.`;
  const tone = prefix !== "" ? "open" : worst.value === 1 ? "good" : "none";
  return { tone, sentence: sentence.charAt(0).toUpperCase() + sentence.slice(1) };
}

function gateHeadline({ result, reasons }: NonNullable<Evaluation["verdict"]>): Headline {
  const [tone, text] = GATES[result] ?? (["none", `Gate verdict: ${result}`] as const);
  return { tone, sentence: `${text}${reasons.length > 0 ? `: ${reasons.join("; ")}` : ""}.` };
}

const GATES: Record<string, readonly [Headline["tone"], string] | undefined> = {
  pass: ["good", "Gate passed"],
  fail: ["bad", "Gate failed"],
  undecided: ["open", "Undecided"],
};

function coverageText({ scored, total }: { scored: number; total: number }): string {
  return total > scored ? `; ${formatPercent(scored / total)} of ${pluralize(total, "result")} have a score` : "";
}
