import type { ServerEvent } from "../api/events.ts";
import type { Evaluation, Json, Progress, RunStatus } from "../api/types.ts";

const STATUSES: readonly string[] = ["pending", "running", "completed", "failed", "cancelled", "interrupted"];

/** The run after an event. Events carry the whole run, its progress, or a part of either. */
export function applyEvent(run: Evaluation, event: ServerEvent): Evaluation {
  const data = parsed(event.data);
  if (data === null) return run;
  const inner = asRecord(data["evaluation"]) ?? asRecord(data["run"]) ?? data;
  const progress = progressOf(asRecord(inner["progress"]) ?? inner);
  const status = statusOf(inner["status"]);
  return {
    ...run,
    ...(status === null ? {} : { status }),
    ...(progress === null ? {} : { progress: { ...(run.progress ?? NOTHING), ...progress } }),
    ...(typeof inner["completed_at"] === "string" ? { completed_at: inner["completed_at"] } : {}),
    ...(typeof inner["error_message"] === "string" ? { error_message: inner["error_message"] } : {}),
  };
}

const NOTHING: Progress = { total: null, answered: 0, graded: 0, errors: 0 };

export function isGoing(status: RunStatus): boolean {
  return status === "pending" || status === "running";
}

/** Milliseconds until the end at the present pace; null where nothing can be said. */
export function remaining(run: Evaluation, now = Date.now()): number | null {
  const began = run.started_at ? Date.parse(run.started_at) : Number.NaN;
  const { total, graded } = run.progress ?? NOTHING;
  if (run.status !== "running" || Number.isNaN(began) || !total || graded < 3) return null;
  return ((now - began) / graded) * (total - graded);
}

function progressOf(data: Record<string, Json>): Partial<Progress> | null {
  const known = (["total", "answered", "graded", "errors"] as const).filter((key) => typeof data[key] === "number");
  return known.length === 0 ? null : Object.fromEntries(known.map((key) => [key, data[key]]));
}

function statusOf(value: Json | undefined): RunStatus | null {
  return typeof value === "string" && STATUSES.includes(value) ? (value as RunStatus) : null;
}

function asRecord(value: Json | undefined): Record<string, Json> | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : null;
}

function parsed(text: string): Record<string, Json> | null {
  try {
    return asRecord(JSON.parse(text) as Json);
  } catch {
    return null;
  }
}
