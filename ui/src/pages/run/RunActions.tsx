import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { api } from "../../api/client.ts";
import { describeError } from "../../api/error.ts";
import type { Evaluation } from "../../api/types.ts";
import { Button, LinkButton } from "../../components/Button.tsx";
import { ConfirmDialog, Dialog } from "../../components/Dialog.tsx";
import { Menu } from "../../components/Menu.tsx";
import { ErrorNotice, Loading } from "../../components/Notice.tsx";
import { toast } from "../../components/toast.tsx";
import { formatCount, pluralize } from "../../lib/format.ts";
import { isInProgress, remainingWork } from "../../lib/run.ts";
import {
  type ChosenGrader,
  graderChoices,
  GraderChooser,
  useGraders,
  useRunGraders,
} from "../evaluate/GraderChooser.tsx";
import { SetBaselineDialog } from "./Baselines.tsx";

const FORMATS = [
  ["JSON", "json"],
  ["JSON Lines", "jsonl"],
  ["CSV", "csv"],
  ["JUnit XML", "junit"],
  ["HTML report", "html"],
  ["Parquet", "parquet"],
] as const;

/** The actions available for a run in its current state. */
export function RunActions({ run, failed }: { run: Evaluation; failed: number }) {
  const [dialog, setDialog] = useState<"delete" | "regrade" | "other cases" | "baseline" | null>(null);
  const queries = useQueryClient();
  const navigate = useNavigate();
  const act = useMutation({
    mutationFn: (action: "cancel" | "resume" | "retry-failed" | "other cases") =>
      action === "other cases" ? api.runRemainingCases(run.id) : api.actOnRun(run.id, action),
    onSuccess: (now) => {
      queries.setQueryData<Evaluation>(["run", run.id], (before) => ({ ...before, ...now }));
      void queries.invalidateQueries({ queryKey: ["run", run.id] });
    },
  });
  const remove = useMutation({
    mutationFn: () => api.deleteRun(run.id),
    onSuccess: async () => {
      // or the list would show the deleted run for a moment
      queries.removeQueries({ queryKey: ["runs"] });
      await navigate("/runs");
      toast("Run deleted");
    },
  });
  const inProgress = isInProgress(run.status);
  return (
    <div className="flex flex-col items-end gap-2">
      <div className="flex flex-wrap gap-2">
        {inProgress && (
          <Button variant="danger" disabled={act.isPending} onClick={() => act.mutate("cancel")}>
            Cancel run
          </Button>
        )}
        {(run.status === "cancelled" || run.status === "failed" || run.status === "interrupted") && (
          <Button variant="primary" disabled={act.isPending} onClick={() => act.mutate("resume")}>
            Resume
          </Button>
        )}
        {(run.calls_saved ?? 0) > 0 && (
          <Button
            disabled={act.isPending}
            title="Run the cases left out when the run stopped early"
            onClick={() => setDialog("other cases")}
          >
            Run the other {remainingWork(run)}
          </Button>
        )}
        {run.status === "completed" && failed > 0 && (
          <Button
            disabled={act.isPending}
            title="Call the agent again for failed responses; grade again after grader errors"
            onClick={() => act.mutate("retry-failed")}
          >
            Retry {formatCount(failed)} failed
          </Button>
        )}
        {!inProgress && <Button onClick={() => setDialog("regrade")}>Regrade</Button>}
        {!inProgress && run.status !== "interrupted" && (
          <LinkButton to={`/runs/${encodeURIComponent(run.id)}/label`}>Label</LinkButton>
        )}
        <Menu
          label="Export this run"
          items={FORMATS.map(([label, format]) => ({ label, href: api.exportRunUrl(run.id, format) }))}
        >
          Export
        </Menu>
        <Menu
          label="More actions"
          items={[
            ...(run.status === "completed"
              ? [{ label: "Set as baseline…", onSelect: () => setDialog("baseline") }]
              : []),
            { label: "Copy suite as YAML", onSelect: () => void copySuite(run.id) },
            { label: "Delete run", onSelect: () => setDialog("delete") },
          ]}
        >
          More
        </Menu>
        <LinkButton
          to={`/compare?${new URLSearchParams({ baseline: run.baseline_id ?? run.parent ?? "", candidate: run.id })}`}
        >
          Compare
        </LinkButton>
        <LinkButton to={`/new?from=${encodeURIComponent(run.id)}`}>Run again</LinkButton>
      </div>
      {act.error && <ErrorNotice error={act.error} />}
      {remove.error && <ErrorNotice error={remove.error} />}
      <SetBaselineDialog run={run} open={dialog === "baseline"} onClose={() => setDialog(null)} />
      <RegradeDialog run={run} open={dialog === "regrade"} onClose={() => setDialog(null)} />
      <ConfirmDialog
        open={dialog === "other cases"}
        onClose={() => setDialog(null)}
        title={`Run the other ${remainingWork(run)}?`}
        action={`Run ${remainingWork(run)}`}
        variant="primary"
        cancelLabel="Cancel"
        onConfirm={() => {
          setDialog(null);
          act.mutate("other cases");
        }}
      >
        This makes {pluralize(run.calls_saved ?? 0, "more call")} to the agent. The verdict over all cases then replaces
        this one.
      </ConfirmDialog>
      <ConfirmDialog
        open={dialog === "delete"}
        onClose={() => setDialog(null)}
        title="Delete this run?"
        action="Delete run"
        onConfirm={() => {
          setDialog(null);
          remove.mutate();
        }}
      >
        The run and all its responses and grades are permanently deleted. Export it first if you may need them.
      </ConfirmDialog>
    </div>
  );
}

async function copySuite(id: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(await api.runSuite(id));
    toast("Suite copied");
  } catch (error) {
    toast(`Copying failed: ${describeError(error).message}`);
  }
}

/** Grades the responses of a run with other graders, as a new run. */
function RegradeDialog({ run, open, onClose }: { run: Evaluation; open: boolean; onClose: () => void }) {
  return (
    <Dialog
      open={open}
      onClose={onClose}
      title="Regrade"
      description="Creates a new run with the same responses; the agent is not called."
      width="max-w-2xl"
    >
      <RegradeLoader run={run} onClose={onClose} />
    </Dialog>
  );
}

function RegradeLoader({ run, onClose }: { run: Evaluation; onClose: () => void }) {
  const { chosen } = useRunGraders(run);
  return chosen === null ? (
    <Loading what="Loading the graders" />
  ) : (
    <RegradeForm run={run} initial={chosen} onClose={onClose} />
  );
}

function RegradeForm({ run, initial, onClose }: { run: Evaluation; initial: ChosenGrader[]; onClose: () => void }) {
  const [chosen, setChosen] = useState(initial);
  const graders = useGraders();
  const navigate = useNavigate();
  const start = useMutation({
    mutationFn: () => api.regrade(run.id, graderChoices(chosen, graders.data ?? [])),
    onSuccess: async (created) => {
      onClose();
      await navigate(`/runs/${encodeURIComponent(created.id)}`);
    },
  });
  return (
    <div className="flex flex-col gap-4">
      <GraderChooser chosen={chosen} onChange={setChosen} showProblems />
      {start.error && <ErrorNotice error={start.error} />}
      <div className="flex justify-end gap-2">
        <Button onClick={onClose}>Cancel</Button>
        <Button variant="primary" disabled={chosen.length === 0 || start.isPending} onClick={() => start.mutate()}>
          Regrade
        </Button>
      </div>
    </div>
  );
}
