import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useId, useState } from "react";
import { labelApi } from "../../api/client.ts";
import type { Label, LabelChange, LabelVerdict, NewLabel, Score } from "../../api/types.ts";
import { Badge, OutcomeBadge } from "../../components/Badge.tsx";
import { Button } from "../../components/Button.tsx";
import { Field } from "../../components/Field.tsx";
import { ErrorNotice } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { formatDateTime, formatScore } from "../../lib/format.ts";
import { visibleText } from "../../lib/visibleText.ts";

interface Props {
  run: string;
  result: string;
  score: Score;
}

/** What a person says of a grader's word. It stands beside the grade, never over it. */
export function LabelPanel({ run, result, score }: Props) {
  const [writing, setWriting] = useState(false);
  const queries = useQueryClient();
  const queryKey = ["labels", run, result];
  const labels = useQuery({ queryKey, queryFn: ({ signal }) => labelApi.of(run, result, signal), retry: false });
  const remove = useMutation({
    mutationFn: () => labelApi.remove(run, result, score.grader_id),
    onSuccess: () => queries.invalidateQueries({ queryKey }),
  });
  if (labels.error) return <ErrorNotice error={labels.error} onRetry={() => void labels.refetch()} />;
  if (labels.data === undefined) return null;
  const label = labels.data.labels.find((one) => one.grader_id === score.grader_id);
  const history = labels.data.history.filter((one) => one.grader_id === score.grader_id);
  const name = visibleText(score.grader_name);
  return (
    <div role="group" aria-label={`Your verdict on ${name}`} className="ms-4 border-s-2 border-line ps-3 text-sm">
      {label && !writing && <CurrentLabel label={label} score={score} />}
      {remove.error && <ErrorNotice error={remove.error} />}
      {writing ? (
        <LabelForm
          label={label}
          save={(draft) => labelApi.put(run, result, score.grader_id, draft)}
          onDone={async () => {
            await queries.invalidateQueries({ queryKey });
            setWriting(false);
          }}
          onLeave={() => setWriting(false)}
        />
      ) : (
        <div className="flex flex-wrap gap-2">
          <Button variant="ghost" onClick={() => setWriting(true)}>
            {label ? "Change the verdict" : "Give your verdict"}
            <span className="sr-only"> on {name}</span>
          </Button>
          {label && (
            <Button variant="ghost" disabled={remove.isPending} onClick={() => remove.mutate()}>
              Take the verdict back
              <span className="sr-only"> on {name}</span>
            </Button>
          )}
        </div>
      )}
      {history.length > 1 && <LabelHistory changes={history} />}
    </div>
  );
}

function CurrentLabel({ label, score }: { label: Label; score: Score }) {
  const graded = score.score_status === "pass" || score.score_status === "fail";
  const agrees = label.verdict === score.score_status;
  return (
    <div className="py-1">
      <p className="flex flex-wrap items-center gap-2">
        <span className="font-medium">A person says</span>
        <OutcomeBadge
          outcome={label.verdict}
          score={label.score === null ? label.verdict : `${label.verdict} ${formatScore(label.score)}`}
        />
        {graded && (
          <Badge tone={agrees ? "none" : "open"}>
            {agrees ? "agrees with the grader" : "disagrees with the grader"}
          </Badge>
        )}
        <span className="text-xs text-muted">
          {formatDateTime(label.labelled_at)}
          {label.author && `, key ${label.author}`}
        </span>
      </p>
      <SafeText text={label.reason} />
    </div>
  );
}

function LabelHistory({ changes }: { changes: readonly LabelChange[] }) {
  return (
    <details className="mt-1">
      <summary className="text-muted">{changes.length} changes</summary>
      <ol className="mt-1 flex flex-col gap-1">
        {changes.map((change) => (
          <li key={change.at} className="text-xs">
            <span className="text-muted">{formatDateTime(change.at)}: </span>
            {change.verdict === null ? "taken back" : <SafeText text={`${change.verdict}, ${change.reason ?? ""}`} />}
          </li>
        ))}
      </ol>
    </details>
  );
}

interface LabelFormProps {
  label: Label | undefined;
  save: (label: NewLabel) => Promise<unknown>;
  onDone: () => void | Promise<void>;
  onLeave: () => void;
}

export function LabelForm({ label, save, onDone, onLeave }: LabelFormProps) {
  const name = useId();
  const [draft, setDraft] = useState(() => labelDraftFrom(label));
  const [problems, setProblems] = useState<LabelProblems>({});
  const saving = useMutation({ mutationFn: save, onSuccess: onDone });
  return (
    <form
      className="flex flex-col gap-3 py-2"
      onSubmit={(event) => {
        event.preventDefault();
        const read = validateLabel(draft);
        setProblems(read.problems ?? {});
        if (read.label !== null) saving.mutate(read.label);
      }}
    >
      <fieldset className="flex flex-wrap items-center gap-4">
        <legend className="mb-1 font-medium">The answer is</legend>
        {(["pass", "fail"] as const).map((verdict) => (
          <label key={verdict} className="flex items-center gap-1.5">
            <input
              type="radio"
              name={name}
              checked={draft.verdict === verdict}
              onChange={() => setDraft({ ...draft, verdict })}
            />
            {verdict === "pass" ? "good (pass)" : "not good (fail)"}
          </label>
        ))}
        {problems.verdict && <span className="text-xs font-medium text-fail">{problems.verdict}</span>}
      </fieldset>
      <Field label="Why" required problem={problems.reason}>
        <textarea
          className="field"
          rows={3}
          value={draft.reason}
          onChange={(event) => setDraft({ ...draft, reason: event.target.value })}
        />
      </Field>
      <Field label="Score" help="From 0 to 1, where pass or fail says too little" problem={problems.score}>
        <input
          className="field num max-w-28"
          inputMode="decimal"
          value={draft.score}
          onChange={(event) => setDraft({ ...draft, score: event.target.value })}
        />
      </Field>
      {saving.error && <ErrorNotice error={saving.error} />}
      <div className="flex flex-wrap items-center gap-2">
        <Button variant="primary" type="submit" disabled={saving.isPending}>
          Save verdict
        </Button>
        <Button onClick={onLeave}>Leave</Button>
        <span className="text-xs text-muted">It stands beside the grade; no number of the run changes.</span>
      </div>
    </form>
  );
}

export interface LabelDraft {
  verdict: LabelVerdict | "";
  reason: string;
  /** As it was typed; empty for none. */
  score: string;
}

const MAX_REASON = 2_000;

export function labelDraftFrom(label: Label | undefined): LabelDraft {
  if (label === undefined) return { verdict: "", reason: "", score: "" };
  return { verdict: label.verdict, reason: label.reason, score: label.score === null ? "" : String(label.score) };
}

export type LabelProblems = Partial<Record<keyof LabelDraft, string>>;

/** What to send, or what is wrong. */
export function validateLabel(
  draft: LabelDraft,
): { label: NewLabel; problems: null } | { label: null; problems: LabelProblems } {
  const problems: LabelProblems = {};
  const { verdict } = draft;
  const reason = draft.reason.trim();
  const score = draft.score.trim() === "" ? null : Number(draft.score);
  if (verdict === "") problems.verdict = "Choose one";
  if (reason === "") problems.reason = "Say why: others read it, and judges are calibrated by it";
  else if ([...reason].length > MAX_REASON) problems.reason = "At most 2,000 characters";
  if (score !== null && !(score >= 0 && score <= 1)) problems.score = "From 0 to 1";
  if (verdict === "" || Object.keys(problems).length > 0) return { label: null, problems };
  return { label: { verdict, reason, ...(score === null ? {} : { score }) }, problems: null };
}
