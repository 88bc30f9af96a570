import type { ReactNode } from "react";
import type { JudgeState, Outcome, ResponseStatus, RunStatus, Score } from "../api/types.ts";
import { formatScore } from "../lib/format.ts";
import { visibleText } from "../lib/visibleText.ts";
import { SafeText } from "./SafeText.tsx";

const TONES = {
  good: "bg-pass-soft text-pass",
  bad: "bg-fail-soft text-fail",
  open: "bg-warn-soft text-warn",
  none: "bg-none-soft text-none",
  accent: "bg-accent-soft text-accent",
} as const;

export type Tone = keyof typeof TONES;

export function Badge({ tone, children, title }: { tone: Tone; children: ReactNode; title?: string }) {
  return (
    <span
      className={`inline-flex items-center gap-1 rounded-full px-2 py-0.5 text-xs font-medium whitespace-nowrap ${TONES[tone]}`}
      title={title}
    >
      {children}
    </span>
  );
}

const RUN_TONES: Record<RunStatus, Tone> = {
  pending: "none",
  running: "accent",
  completed: "good",
  failed: "bad",
  cancelled: "none",
  interrupted: "none",
};

/** `reason`: why a run failed, was cancelled or is quarantined. */
export function RunBadge({ status, reason }: { status: RunStatus; reason?: string | null }) {
  return (
    <Badge tone={RUN_TONES[status]} {...(reason ? { title: visibleText(reason) } : {})}>
      {status === "running" && <span aria-hidden className="size-1.5 animate-pulse rounded-full bg-current" />}
      {status}
    </Badge>
  );
}

/** An error is grey, because it is not a verdict on the response. */
export const OUTCOMES: Record<Outcome, { icon: string; tone: Tone; label: string }> = {
  pass: { icon: "✓", tone: "good", label: "pass" },
  fail: { icon: "✗", tone: "bad", label: "fail" },
  error: { icon: "!", tone: "none", label: "grader error, no score" },
  skipped: { icon: "–", tone: "none", label: "skipped, nothing to grade" },
  not_applicable: { icon: "–", tone: "none", label: "the grader does not apply to this case" },
};

/** An outcome in as few characters as the column of a grader has. */
function shortName(outcome: Outcome): string {
  return outcome === "not_applicable" ? "n/a" : outcome;
}

export function OutcomeBadge({ outcome, score }: { outcome: Outcome; score?: string }) {
  const { icon, tone, label } = OUTCOMES[outcome];
  return (
    <Badge tone={tone} title={label}>
      <span aria-hidden>{icon}</span>
      <span className="num">{score ?? shortName(outcome)}</span>
      {score !== undefined && <span className="sr-only">{label}</span>}
    </Badge>
  );
}

/** The score of a grade, or its outcome if it has none. */
export function ScoreBadge({ grade }: { grade: Pick<Score, "score_status" | "score_value"> }) {
  const { score_status: outcome, score_value: value } = grade;
  return <OutcomeBadge outcome={outcome} score={value === null ? shortName(outcome) : formatScore(value)} />;
}

const JUDGE_TONES: Record<JudgeState["state"], Tone> = {
  calibrated: "good",
  uncalibrated: "none",
  failed: "bad",
  expired: "open",
  drifted: "bad",
};

/** Whether a judge is calibrated; the reason is shown on hover, and next to the badge where `explained`. */
export function JudgeBadge({
  judge: { state, reason },
  explained = false,
}: {
  judge: JudgeState;
  explained?: boolean;
}) {
  return (
    <span className="inline-flex flex-wrap items-center gap-x-2">
      <Badge tone={JUDGE_TONES[state]} title={visibleText(reason)}>
        judge {state}
      </Badge>
      <span className={explained ? "text-xs font-normal text-muted" : "sr-only"}>
        <SafeText text={reason} />
      </span>
    </span>
  );
}

const RESPONSE_TONES: Record<ResponseStatus, Tone> = { success: "good", error: "open", timeout: "open" };

export function ResponseBadge({ status }: { status: ResponseStatus }) {
  return (
    <Badge tone={RESPONSE_TONES[status]}>
      {status === "success" ? "success" : status === "error" ? "agent error" : "timeout"}
    </Badge>
  );
}
