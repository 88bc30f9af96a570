import type { ReactNode } from "react";
import type { Score, StoredGrade } from "../../api/types.ts";
import { OutcomeBadge } from "../../components/Badge.tsx";
import { JsonBlock, SafeText, TextBlock } from "../../components/SafeText.tsx";
import { formatCost, formatCount, formatDuration, formatScore } from "../../lib/format.ts";

interface Props {
  score: Score;
  grade: StoredGrade | undefined;
  /** The submission, if it is not the response text itself. */
  submission: string | undefined;
}

/** A grade with its rationale and details. */
export function GraderCard({ score, grade, submission }: Props) {
  const { value, usage, output, error } = {
    value: score.score_value,
    usage: grade?.usage,
    output: grade?.output,
    error: grade?.error,
  };
  return (
    <article className="card p-3" aria-label={`Grader ${score.grader_name}`}>
      <header className="flex flex-wrap items-center gap-2">
        <h4 className="font-medium">
          <SafeText text={score.grader_name} />
        </h4>
        {grade && grade.kind !== score.grader_name && <span className="text-xs text-muted">{grade.kind}</span>}
        <OutcomeBadge
          outcome={score.score_status}
          {...(value === null ? {} : { score: `${score.score_status} ${formatScore(value)}` })}
        />
        <span className="num ml-auto text-xs text-muted">
          {formatDuration(score.latency_ms)}
          {usage &&
            ` · ${formatCount(usage.input_tokens)} in, ${formatCount(usage.output_tokens)} out · ${formatCost(usage.cost)}`}
        </span>
      </header>
      {score.rationale && (
        <p className="mt-2 text-sm">
          <SafeText text={score.rationale} />
        </p>
      )}
      {score.score_status === "error" && (
        <p className="mt-2 text-sm">
          <span className="font-medium">No score: </span>
          <SafeText text={[score.error_type, score.error_message].filter(Boolean).join(": ")} />
          {error && <span className="text-muted"> (fault: {error.fault})</span>}
        </p>
      )}
      {error?.traceback && (
        <Details title="Traceback">
          <TextBlock text={error.traceback} label="Traceback" />
        </Details>
      )}
      {submission !== undefined && (
        <Details title="Submission">
          <TextBlock text={submission} label="Submission" />
        </Details>
      )}
      {Object.keys(score.details).length > 0 && (
        <Details title="Details">
          <JsonBlock value={score.details} label={`Details of ${score.grader_name}`} />
        </Details>
      )}
      {output && (
        <Details title="Output">
          <TextBlock text={output} label="Output printed by the grader" />
        </Details>
      )}
    </article>
  );
}

function Details({ title, children }: { title: string; children: ReactNode }) {
  return (
    <details className="mt-2 text-sm">
      <summary className="text-muted">{title}</summary>
      <div className="mt-1">{children}</div>
    </details>
  );
}
