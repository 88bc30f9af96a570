import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { resultId, resultIn } from "../../api/client.ts";
import type { Comparison, ResultDetail } from "../../api/types.ts";
import { useShortcuts } from "../../app/shortcuts.tsx";
import { ResponseBadge, ScoreBadge } from "../../components/Badge.tsx";
import { Button } from "../../components/Button.tsx";
import { Dialog, DialogSection } from "../../components/Dialog.tsx";
import { DiffText } from "../../components/DiffText.tsx";
import { ErrorNotice, Loading } from "../../components/Notice.tsx";
import { SafeText, TextBlock } from "../../components/SafeText.tsx";
import { formatCount, formatDuration } from "../../lib/format.ts";
import { visibleText } from "../../lib/visibleText.ts";
import { ChangeBadge } from "./CaseChanges.tsx";
import { type CaseChange, changeFor, type ChangeState, type CompareState } from "./comparison.ts";

interface Props {
  comparison: Comparison;
  cases: readonly CaseChange[];
  repeats: number;
  state: CompareState;
  onChange: ChangeState;
}

/** One case in both runs; next and previous follow the current filter. */
export function CaseDrawer({ comparison, cases, repeats, state, onChange }: Props) {
  const at = cases.findIndex((one) => one.test_case_id === state.row);
  const step = (by: number) => {
    const next = at < 0 ? undefined : cases[at + by];
    if (next) onChange({ row: next.test_case_id, repeat: 0 }, { replace: true });
  };
  useShortcuts({ j: () => step(1), k: () => step(-1) }, { inDialog: true });
  const one = comparison.cases.find((each) => each.test_case_id === state.row);
  return (
    <Dialog
      open
      onClose={() => onChange({ row: "", repeat: 0 })}
      title={`Case ${visibleText(state.row)}`}
      side
      width="lg:w-[75%] lg:min-w-[640px]"
    >
      <div className="mb-3 flex flex-wrap items-center gap-2 text-sm">
        <Button disabled={at <= 0} onClick={() => step(-1)} title="Previous (k)">
          Previous
        </Button>
        <Button disabled={at < 0 || at >= cases.length - 1} onClick={() => step(1)} title="Next (j)">
          Next
        </Button>
        {at >= 0 && (
          <span className="num text-muted">
            {formatCount(at + 1)} of {formatCount(cases.length)}
          </span>
        )}
        {one && <ChangeBadge change={changeFor(one, state.grader)} />}
        {repeats > 1 && (
          <select
            className="field max-w-36"
            aria-label="Repeat"
            value={state.repeat}
            onChange={(event) => onChange({ repeat: Number(event.target.value) }, { replace: true })}
          >
            {Array.from({ length: repeats }, (_, repeat) => (
              <option key={repeat} value={repeat}>
                repeat {repeat}
              </option>
            ))}
          </select>
        )}
      </div>
      <BothSides comparison={comparison} state={state} onChange={onChange} />
    </Dialog>
  );
}

function useSide(run: string, state: CompareState) {
  const id = resultId(state.row, state.repeat);
  return useQuery({
    queryKey: ["compared result", run, id],
    queryFn: ({ signal }) => resultIn(run, id, signal),
    staleTime: 60_000,
  });
}

function BothSides({ comparison, state, onChange }: Omit<Props, "cases" | "repeats">) {
  const before = useSide(comparison.baseline_id, state);
  const after = useSide(comparison.candidate_id, state);
  const error = before.error ?? after.error;
  if (error) return <ErrorNotice error={error} onRetry={() => void Promise.all([before.refetch(), after.refetch()])} />;
  if (before.data === undefined || after.data === undefined) return <Loading />;
  const either = after.data ?? before.data;
  if (either === null) return <p className="text-muted">This case is in neither run.</p>;
  const texts = { before: before.data?.agent_response ?? null, after: after.data?.agent_response ?? null };
  const diffed = state.view === "diff" && texts.before !== null && texts.after !== null;
  return (
    <div className="flex flex-col gap-4">
      <DialogSection title="Input">
        <TextBlock text={either.test_case_input} label="Input" />
      </DialogSection>
      {either.test_case_expected !== null && (
        <DialogSection title="Expected output">
          <TextBlock text={either.test_case_expected} label="Expected output" />
        </DialogSection>
      )}
      {texts.before !== null && texts.after !== null && (
        <label className="flex items-center gap-1.5 text-sm">
          <input
            type="checkbox"
            checked={diffed}
            onChange={(event) => onChange({ view: event.target.checked ? "diff" : "sides" }, { replace: true })}
          />
          Show changes word by word
        </label>
      )}
      {diffed && texts.before === texts.after && <p className="text-sm text-muted">Both responses are identical.</p>}
      {diffed && texts.before !== null && texts.after !== null && (
        <DialogSection title="Changes from baseline to candidate">
          <DiffText before={texts.before} after={texts.after} label="Changes from baseline to candidate" />
        </DialogSection>
      )}
      <div className="grid gap-4 lg:grid-cols-2">
        <Side title="Baseline" run={comparison.baseline_id} detail={before.data} withText={!diffed} />
        <Side title="Candidate" run={comparison.candidate_id} detail={after.data} withText={!diffed} />
      </div>
    </div>
  );
}

function Side({
  title,
  run,
  detail,
  withText,
}: {
  title: string;
  run: string;
  detail: ResultDetail | null;
  withText: boolean;
}) {
  if (detail === null) {
    return (
      <DialogSection title={title}>
        <p className="text-sm text-muted">This case is not in this run. A missing case does not count as passed.</p>
      </DialogSection>
    );
  }
  const link = `/runs/${encodeURIComponent(run)}?row=${encodeURIComponent(detail.result_id)}`;
  return (
    <DialogSection
      title={title}
      aside={
        <Link className="font-normal text-accent underline" to={link}>
          Open {title.toLowerCase()} result
        </Link>
      }
    >
      <p className="num mb-1 flex flex-wrap items-center gap-2 text-xs text-muted">
        <ResponseBadge status={detail.response_status} /> {formatDuration(detail.response_latency_ms)}
      </p>
      {detail.error_message && (
        <p className="mb-1 text-sm">
          <SafeText text={detail.error_message} />
        </p>
      )}
      {withText && detail.agent_response !== null && (
        <TextBlock text={detail.agent_response} label={`${title} response`} />
      )}
      <ul className="mt-2 flex flex-col gap-1 text-sm">
        {detail.scores.map((score) => (
          <li key={score.grader_id} className="flex flex-wrap items-baseline gap-2">
            <ScoreBadge grade={score} />
            <span className="font-medium">
              <SafeText text={score.grader_id} />
            </span>
            <SafeText text={score.rationale ?? score.error_message ?? ""} className="text-muted" />
          </li>
        ))}
      </ul>
    </DialogSection>
  );
}
