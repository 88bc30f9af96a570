import type { ReactNode } from "react";
import type { Score, StoredGrade } from "../../api/types.ts";
import { cost, count, duration, score as written } from "../../lib/format.ts";
import { OutcomeBadge } from "../../parts/Badge.tsx";
import { JsonBlock } from "../../parts/JsonBlock.tsx";
import { SafeText, TextBlock } from "../../parts/SafeText.tsx";

interface Props {
  score: Score;
  grade: StoredGrade | undefined;
  /** What the grader read, where that is not the answer itself. */
  submission: string | undefined;
}

/** What one grader said, and why. */
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
          {...(value === null ? {} : { score: `${score.score_status} ${written(value)}` })}
        />
        <span className="num ml-auto text-xs text-muted">
          {duration(score.latency_ms)}
          {usage && ` · ${count(usage.input_tokens)} in, ${count(usage.output_tokens)} out · ${cost(usage.cost)}`}
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
        <More title="Traceback">
          <TextBlock text={error.traceback} label="Traceback" />
        </More>
      )}
      {submission !== undefined && (
        <More title="What it read">
          <TextBlock text={submission} label="What the grader read" />
        </More>
      )}
      {Object.keys(score.details).length > 0 && (
        <More title="Details">
          <JsonBlock value={score.details} label={`Details of ${score.grader_name}`} />
        </More>
      )}
      {output && (
        <More title="Printed">
          <TextBlock text={output} label="What the grader printed" />
        </More>
      )}
    </article>
  );
}

function More({ title, children }: { title: string; children: ReactNode }) {
  return (
    <details className="mt-2 text-sm">
      <summary className="text-muted">{title}</summary>
      <div className="mt-1">{children}</div>
    </details>
  );
}
