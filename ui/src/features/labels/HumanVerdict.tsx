import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import type { Score } from "../../api/types.ts";
import { moment, score as written } from "../../lib/format.ts";
import { visibleText } from "../../lib/visible.ts";
import { Badge, OutcomeBadge } from "../../parts/Badge.tsx";
import { Button } from "../../parts/Button.tsx";
import { Failure } from "../../parts/Notice.tsx";
import { SafeText } from "../../parts/SafeText.tsx";
import { labelCalls, type Label, type LabelChange } from "./calls.ts";
import { LabelForm } from "./LabelForm.tsx";

interface Props {
  run: string;
  result: string;
  score: Score;
}

/** What a person says of a grader's word. It stands beside the grade, never over it. */
export function HumanVerdict({ run, result, score }: Props) {
  const [writing, setWriting] = useState(false);
  const queries = useQueryClient();
  const queryKey = ["labels", run, result];
  const labels = useQuery({ queryKey, queryFn: ({ signal }) => labelCalls.of(run, result, signal), retry: false });
  const takeBack = useMutation({
    mutationFn: () => labelCalls.takeBack(run, result, score.grader_id),
    onSuccess: () => queries.invalidateQueries({ queryKey }),
  });
  if (labels.error) return <Failure error={labels.error} onRetry={() => void labels.refetch()} />;
  if (labels.data === undefined) return null;
  const label = labels.data.labels.find((one) => one.grader_id === score.grader_id);
  const history = labels.data.history.filter((one) => one.grader_id === score.grader_id);
  const name = visibleText(score.grader_name);
  return (
    <div role="group" aria-label={`Your verdict on ${name}`} className="ms-4 border-s-2 border-line ps-3 text-sm">
      {label && !writing && <Standing label={label} score={score} />}
      {takeBack.error && <Failure error={takeBack.error} />}
      {writing ? (
        <LabelForm
          label={label}
          save={(draft) => labelCalls.put(run, result, score.grader_id, draft)}
          onDone={async () => {
            await queries.invalidateQueries({ queryKey });
            setWriting(false);
          }}
          onLeave={() => setWriting(false)}
        />
      ) : (
        <div className="flex flex-wrap gap-2">
          <Button look="quiet" onClick={() => setWriting(true)}>
            {label ? "Change the verdict" : "Give your verdict"}
            <span className="sr-only"> on {name}</span>
          </Button>
          {label && (
            <Button look="quiet" disabled={takeBack.isPending} onClick={() => takeBack.mutate()}>
              Take the verdict back
              <span className="sr-only"> on {name}</span>
            </Button>
          )}
        </div>
      )}
      {history.length > 1 && <Past changes={history} />}
    </div>
  );
}

function Standing({ label, score }: { label: Label; score: Score }) {
  const graded = score.score_status === "pass" || score.score_status === "fail";
  const agrees = label.verdict === score.score_status;
  return (
    <div className="py-1">
      <p className="flex flex-wrap items-center gap-2">
        <span className="font-medium">A person says</span>
        <OutcomeBadge
          outcome={label.verdict}
          score={label.score === null ? label.verdict : `${label.verdict} ${written(label.score)}`}
        />
        {graded && (
          <Badge tone={agrees ? "none" : "open"}>
            {agrees ? "agrees with the grader" : "disagrees with the grader"}
          </Badge>
        )}
        <span className="text-xs text-muted">
          {moment(label.labelled_at)}
          {label.author && `, key ${label.author}`}
        </span>
      </p>
      <SafeText text={label.reason} />
    </div>
  );
}

function Past({ changes }: { changes: readonly LabelChange[] }) {
  return (
    <details className="mt-1">
      <summary className="text-muted">{changes.length} changes</summary>
      <ol className="mt-1 flex flex-col gap-1">
        {changes.map((change) => (
          <li key={change.at} className="text-xs">
            <span className="text-muted">{moment(change.at)}: </span>
            {change.verdict === null ? "taken back" : <SafeText text={`${change.verdict}, ${change.reason ?? ""}`} />}
          </li>
        ))}
      </ol>
    </details>
  );
}
