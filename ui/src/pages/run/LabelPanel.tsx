import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useId, useState } from "react";
import { labelApi } from "../../api/client.ts";
import { useSession } from "../../api/session.ts";
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

/** The user's label for a grade: shown next to the grade, which it never changes. */
export function LabelPanel({ run, result, score }: Props) {
  const [editing, setEditing] = useState(false);
  const key = useSession().current?.key_id ?? null;
  const queries = useQueryClient();
  const queryKey = ["labels", run, result];
  const labels = useQuery({ queryKey, queryFn: ({ signal }) => labelApi.of(run, result, signal), retry: false });
  const remove = useMutation({
    mutationFn: () => labelApi.remove(run, result, score.grader_id),
    onSuccess: () => queries.invalidateQueries({ queryKey }),
  });
  if (labels.error) return <ErrorNotice error={labels.error} onRetry={() => void labels.refetch()} />;
  if (labels.data === undefined) return null;
  const all = labels.data.labels.filter((one) => one.grader_id === score.grader_id);
  const label = all.find((one) => isOwn(one, key));
  const others = all.filter((one) => one !== label);
  const history = labels.data.history.filter((one) => one.grader_id === score.grader_id);
  const name = visibleText(score.grader_name);
  return (
    <div role="group" aria-label={`Label for ${name}`} className="ms-4 border-s-2 border-line ps-3 text-sm">
      {label && !editing && <CurrentLabel label={label} score={score} own={others.length > 0} />}
      {others.map((one) => (
        <CurrentLabel key={`${one.author} ${one.role}`} label={one} score={score} own={false} />
      ))}
      {remove.error && <ErrorNotice error={remove.error} />}
      {editing ? (
        <LabelForm
          label={label}
          save={(draft) => labelApi.put(run, result, score.grader_id, draft)}
          onDone={async () => {
            await queries.invalidateQueries({ queryKey });
            setEditing(false);
          }}
          onCancel={() => setEditing(false)}
        />
      ) : (
        <div className="flex flex-wrap gap-2">
          <Button variant="ghost" onClick={() => setEditing(true)}>
            {label ? "Edit label" : "Add label"}
            <span className="sr-only"> for {name}</span>
          </Button>
          {label && (
            <Button variant="ghost" disabled={remove.isPending} onClick={() => remove.mutate()}>
              Remove label
              <span className="sr-only"> for {name}</span>
            </Button>
          )}
        </div>
      )}
      {history.length > 1 && <LabelHistory changes={history} />}
    </div>
  );
}

/** Whether a label is the user's own, which can be edited; `key` is null in local mode. */
export function isOwn(label: Pick<Label, "author" | "role">, key: string | null): boolean {
  return label.role === "rater" && label.author === key;
}

/** The verdict, score and category of a label in words. */
export function labelText({ verdict, score, category }: Pick<Label, "verdict" | "score" | "category">): string {
  const parts = [verdict, score === null ? null : formatScore(score), category];
  return parts.filter((part) => part !== null).join(" ");
}

function CurrentLabel({ label, score, own }: { label: Label; score: Score; own: boolean }) {
  const graded = label.verdict !== null && (score.score_status === "pass" || score.score_status === "fail");
  const agrees = label.verdict === score.score_status;
  return (
    <div className="py-1">
      <p className="flex flex-wrap items-center gap-2">
        <span className="font-medium">
          {label.role === "adjudicator" ? "Adjudication" : own ? "Your label" : "Label"}
        </span>
        {label.verdict === null ? (
          <Badge tone="accent">{visibleText(labelText(label))}</Badge>
        ) : (
          <OutcomeBadge outcome={label.verdict} score={visibleText(labelText(label))} />
        )}
        {graded && (
          <Badge tone={agrees ? "none" : "open"}>
            {agrees ? "agrees with the grader" : "disagrees with the grader"}
          </Badge>
        )}
        <span className="text-xs text-muted">
          {formatDateTime(label.labelled_at)}
          {label.author && (
            <>
              , <SafeText text={label.author} />
            </>
          )}
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
          <li key={`${change.at} ${change.author}`} className="text-xs">
            <span className="text-muted">{formatDateTime(change.at)}: </span>
            {change.withdrawn ? (
              "removed"
            ) : (
              <SafeText text={[labelText(change), change.reason].filter(Boolean).join(", ")} />
            )}
            {change.author && (
              <>
                , <SafeText text={change.author} />
              </>
            )}
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
  onCancel: () => void;
}

export function LabelForm({ label, save, onDone, onCancel }: LabelFormProps) {
  const name = useId();
  const [draft, setDraft] = useState(() => labelDraftFrom(label));
  const [problems, setProblems] = useState<LabelProblems>({});
  const saving = useMutation({ mutationFn: save, onSuccess: onDone });
  return (
    <form
      className="flex flex-col gap-3 py-2"
      onSubmit={(event) => {
        event.preventDefault();
        const result = validateLabel(draft);
        setProblems(result.problems ?? {});
        if (result.label !== null) saving.mutate(result.label);
      }}
    >
      <fieldset className="flex flex-wrap items-center gap-4">
        <legend className="mb-1 font-medium">Verdict</legend>
        {(["pass", "fail"] as const).map((verdict) => (
          <label key={verdict} className="flex items-center gap-1.5">
            <input
              type="radio"
              name={name}
              checked={draft.verdict === verdict}
              onChange={() => setDraft({ ...draft, verdict })}
            />
            {verdict === "pass" ? "Pass" : "Fail"}
          </label>
        ))}
        {problems.verdict && <span className="text-xs font-medium text-fail">{problems.verdict}</span>}
      </fieldset>
      <Field label="Reason" required problem={problems.reason}>
        <textarea
          className="field"
          rows={3}
          value={draft.reason}
          onChange={(event) => setDraft({ ...draft, reason: event.target.value })}
        />
      </Field>
      <Field label="Score" help="Optional, from 0 to 1" problem={problems.score}>
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
          Save label
        </Button>
        <Button onClick={onCancel}>Cancel</Button>
        <span className="text-xs text-muted">
          Labels do not change grades; with enough of them, rates are corrected.
        </span>
      </div>
    </form>
  );
}

interface LabelDraft {
  verdict: LabelVerdict | "";
  reason: string;
  /** As typed; may be empty. */
  score: string;
}

const MAX_REASON = 2_000;

export function labelDraftFrom(label: Label | undefined): LabelDraft {
  if (label === undefined) return { verdict: "", reason: "", score: "" };
  return { verdict: label.verdict ?? "", reason: label.reason, score: label.score === null ? "" : String(label.score) };
}

type LabelProblems = Partial<Record<keyof LabelDraft, string>>;

/** The label to save, or messages by field. */
export function validateLabel(
  draft: LabelDraft,
): { label: NewLabel; problems: null } | { label: null; problems: LabelProblems } {
  const problems: LabelProblems = {};
  const { verdict } = draft;
  const reason = draft.reason.trim();
  const score = draft.score.trim() === "" ? null : Number(draft.score);
  if (verdict === "") problems.verdict = "Choose pass or fail";
  if (reason === "") problems.reason = "Enter a reason: others read it, and judges are calibrated with it";
  else if ([...reason].length > MAX_REASON) problems.reason = "At most 2,000 characters";
  if (score !== null && !(score >= 0 && score <= 1)) problems.score = "Enter a number from 0 to 1";
  if (verdict === "" || Object.keys(problems).length > 0) return { label: null, problems };
  return { label: { verdict, reason, ...(score === null ? {} : { score }) }, problems: null };
}
