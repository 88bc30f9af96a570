import { useQuery } from "@tanstack/react-query";
import { Fragment } from "react";
import { api } from "../../api/client.ts";
import type { Evaluation, ResultDetail } from "../../api/types.ts";
import { useShortcuts } from "../../app/shortcuts.tsx";
import { ResponseBadge } from "../../components/Badge.tsx";
import { Button } from "../../components/Button.tsx";
import { Dialog, DialogSection } from "../../components/Dialog.tsx";
import { DiffText } from "../../components/DiffText.tsx";
import { ErrorNotice, Loading } from "../../components/Notice.tsx";
import { JsonBlock, SafeText, TextBlock } from "../../components/SafeText.tsx";
import { Tabs } from "../../components/Tabs.tsx";
import { formatCost, formatCount, formatDuration } from "../../lib/format.ts";
import { visibleText } from "../../lib/visibleText.ts";
import { DocumentList } from "./DocumentList.tsx";
import { HistoryTab } from "./HistoryTab.tsx";
import { GraderCard } from "./GraderCard.tsx";
import { LabelPanel } from "./LabelPanel.tsx";
import type { ChangeRun, RunState } from "./state.ts";
import { TrajectoryView } from "./TrajectoryView.tsx";
import type { ResultRows } from "./useRun.ts";

interface Props {
  run: Evaluation;
  rows: ResultRows;
  state: RunState;
  onChange: ChangeRun;
}

/** One result in full; next and previous follow the current filter. */
export function ResultDrawer({ run, rows, state, onChange }: Props) {
  const detail = useQuery({
    queryKey: ["result", run.id, state.row],
    queryFn: ({ signal }) => api.result(run.id, state.row, signal),
  });
  const at = rows.rows.findIndex((row) => row.result_id === state.row);
  const step = (by: number) => {
    const next = at < 0 ? undefined : rows.rows[at + by];
    if (next) onChange({ row: next.result_id }, { replace: true });
    if (by > 0 && at >= rows.rows.length - 2) rows.loadMore();
  };
  useShortcuts({ j: () => step(1), k: () => step(-1) }, { inDialog: true });
  const title = detail.data ? `Case ${visibleText(detail.data.test_case_id)}` : "Result";
  return (
    <Dialog open onClose={() => onChange({ row: "", tab: "result" })} title={title} side>
      <div className="mb-3 flex items-center gap-2 text-sm">
        <Button disabled={at <= 0} onClick={() => step(-1)} title="Previous (k)">
          Previous
        </Button>
        <Button disabled={at < 0 || at >= rows.rows.length - 1} onClick={() => step(1)} title="Next (j)">
          Next
        </Button>
        {at >= 0 && (
          <span className="num text-muted">
            {formatCount(at + 1)} of {formatCount(rows.rows.length)}
            {rows.more && "+"}
          </span>
        )}
      </div>
      {detail.error && <ErrorNotice error={detail.error} onRetry={() => void detail.refetch()} />}
      {detail.isPending && <Loading />}
      {detail.data && <Detail detail={detail.data} state={state} onChange={onChange} run={run} />}
    </Dialog>
  );
}

function Detail({
  detail,
  state,
  onChange,
  run,
}: {
  detail: ResultDetail;
  state: RunState;
  onChange: ChangeRun;
  run: Evaluation;
}) {
  return (
    <Tabs
      label="Result views"
      value={state.tab}
      onChange={(tab) => onChange({ tab }, { replace: true })}
      tabs={[
        { value: "result", label: "Result", content: <Overview detail={detail} state={state} onChange={onChange} /> },
        {
          value: "trajectory",
          label: "Trajectory",
          content: <TrajectoryView trajectory={detail.response.trajectory} />,
        },
        { value: "history", label: "History", content: <HistoryTab detail={detail} run={run} /> },
        { value: "raw", label: "Raw", content: <JsonBlock value={detail} label="The result as JSON" /> },
      ]}
    />
  );
}

function Overview({ detail, state, onChange }: { detail: ResultDetail; state: RunState; onChange: ChangeRun }) {
  const { response } = detail;
  const expected = detail.test_case_expected;
  const comparable = expected !== null && detail.agent_response !== null;
  const diffed = state.diff === "on" && comparable;
  return (
    <div className="flex flex-col gap-4">
      <DialogSection title="Input">
        <TextBlock text={detail.test_case_input} label="Input" />
      </DialogSection>
      <div className={diffed ? "" : "grid gap-4 lg:grid-cols-2"}>
        {!diffed && (
          <DialogSection title="Expected output">
            {expected === null ? (
              <p className="text-sm text-muted">This case has no expected output.</p>
            ) : (
              <TextBlock text={expected} label="Expected output" />
            )}
          </DialogSection>
        )}
        <DialogSection
          title={diffed ? "Response compared with expected output" : "Response"}
          aside={
            comparable && (
              <label className="flex items-center gap-1.5 text-sm font-normal">
                <input
                  type="checkbox"
                  checked={diffed}
                  onChange={(event) => onChange({ diff: event.target.checked ? "on" : "off" }, { replace: true })}
                />
                Show differences from expected output
              </label>
            )
          }
        >
          {detail.response_status !== "success" && (
            <div className="mb-2 flex flex-wrap items-center gap-2 text-sm">
              <ResponseBadge status={detail.response_status} />
              <SafeText text={detail.error_message ?? ""} />
            </div>
          )}
          {diffed && (
            <DiffText before={expected} after={detail.agent_response ?? ""} label="Differences from expected output" />
          )}
          {!diffed && detail.agent_response !== null && <TextBlock text={detail.agent_response} label="Response" />}
          <p className="num mt-1 text-xs text-muted">
            {formatDuration(detail.response_latency_ms)}
            {response.usage &&
              ` · ${formatCount(response.usage.input_tokens)} tokens in, ${formatCount(response.usage.output_tokens)} out · ${formatCost(response.usage.cost)}`}
            {response.stop_reason && (
              <>
                {" · ended with "}
                <SafeText text={response.stop_reason} />
              </>
            )}
            {response.cleaned && " · characters that cannot be stored were replaced"}
          </p>
        </DialogSection>
      </div>
      {response.documents && (
        <DialogSection title="Retrieved documents">
          <DocumentList documents={response.documents} />
        </DialogSection>
      )}
      {response.error?.traceback && (
        <DialogSection title="Traceback">
          <TextBlock text={response.error.traceback} label="Traceback of the agent's code" />
        </DialogSection>
      )}
      {response.output && (
        <DialogSection title="Output">
          <TextBlock text={response.output} label="Output printed by the agent's code" />
        </DialogSection>
      )}
      <DialogSection title="Graders">
        <div className="flex flex-col gap-2">
          {detail.scores.map((score) => (
            <Fragment key={`${detail.result_id} ${score.grader_id}`}>
              <GraderCard
                score={score}
                grade={detail.grades[score.grader_id]}
                submission={ifDifferent(detail.submissions[score.grader_id], detail.agent_response)}
              />
              <LabelPanel run={detail.evaluation_id} result={detail.result_id} score={score} />
            </Fragment>
          ))}
          {detail.scores.length === 0 && <p className="text-sm text-muted">Not graded yet.</p>}
        </div>
      </DialogSection>
    </div>
  );
}

/** The submission, unless it is the response text itself. */
function ifDifferent(submission: string | undefined, answer: string | null): string | undefined {
  return submission === answer ? undefined : submission;
}
