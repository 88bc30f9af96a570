import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { api } from "../../api/calls.ts";
import { told } from "../../api/failure.ts";
import type { Evaluation } from "../../api/types.ts";
import { count, counted } from "../../lib/format.ts";
import { isGoing } from "../../lib/progress.ts";
import { leftOut } from "../../lib/runFacts.ts";
import { Button, LinkButton } from "../../parts/Button.tsx";
import { Confirm } from "../../parts/Dialog.tsx";
import { Menu } from "../../parts/Menu.tsx";
import { Failure } from "../../parts/Notice.tsx";
import { toast } from "../../parts/toast.tsx";
import { RegradeDialog } from "./RegradeDialog.tsx";

const FORMATS = [
  ["JSON", "json"],
  ["JSON Lines", "jsonl"],
  ["CSV", "csv"],
  ["JUnit XML", "junit"],
  ["HTML report", "html"],
  ["Parquet", "parquet"],
] as const;

/** What can be done with a run in its present state. */
export function RunActions({ run, failed }: { run: Evaluation; failed: number }) {
  const [asking, setAsking] = useState<"delete" | "regrade" | "other cases" | null>(null);
  const queries = useQueryClient();
  const navigate = useNavigate();
  const act = useMutation({
    mutationFn: (action: "cancel" | "resume" | "retry-failed" | "other cases") =>
      action === "other cases" ? api.askOtherCases(run.id) : api.actOnRun(run.id, action),
    onSuccess: (now) => {
      queries.setQueryData<Evaluation>(["run", run.id], (before) => ({ ...before, ...now }));
      void queries.invalidateQueries({ queryKey: ["run", run.id] });
    },
  });
  const remove = useMutation({
    mutationFn: () => api.deleteRun(run.id),
    onSuccess: async () => {
      // the list must not show it for a moment
      queries.removeQueries({ queryKey: ["runs"] });
      await navigate("/runs");
      toast("Run deleted");
    },
  });
  const going = isGoing(run.status);
  return (
    <div className="flex flex-col items-end gap-2">
      <div className="flex flex-wrap gap-2">
        {going && (
          <Button look="danger" disabled={act.isPending} onClick={() => act.mutate("cancel")}>
            Cancel run
          </Button>
        )}
        {(run.status === "cancelled" || run.status === "failed" || run.status === "interrupted") && (
          <Button look="main" disabled={act.isPending} onClick={() => act.mutate("resume")}>
            Resume
          </Button>
        )}
        {(run.calls_saved ?? 0) > 0 && (
          <Button
            disabled={act.isPending}
            title="Ask what was left out when the run ended early"
            onClick={() => setAsking("other cases")}
          >
            {run.repeats > 1 ? `Make the other ${leftOut(run)}` : `Ask the other ${leftOut(run)}`}
          </Button>
        )}
        {run.status === "completed" && failed > 0 && (
          <Button
            disabled={act.isPending}
            title="Ask again where the agent failed, grade again where a grader did"
            onClick={() => act.mutate("retry-failed")}
          >
            Retry {count(failed)} failed
          </Button>
        )}
        {!going && <Button onClick={() => setAsking("regrade")}>Regrade</Button>}
        <Menu
          label="Export this run"
          items={FORMATS.map(([label, format]) => ({ label, href: api.exportRunAddress(run.id, format) }))}
        >
          Export
        </Menu>
        <Menu
          label="More actions"
          items={[
            { label: "Copy suite as YAML", onSelect: () => void copySuite(run.id) },
            { label: "Delete run", onSelect: () => setAsking("delete") },
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
      {act.error && <Failure error={act.error} />}
      {remove.error && <Failure error={remove.error} />}
      <RegradeDialog run={run} open={asking === "regrade"} onClose={() => setAsking(null)} />
      <Confirm
        open={asking === "other cases"}
        onClose={() => setAsking(null)}
        title="Ask the other cases?"
        action={run.repeats > 1 ? `Make ${leftOut(run)}` : `Ask ${leftOut(run)}`}
        look="main"
        keep="Cancel"
        onConfirm={() => {
          setAsking(null);
          act.mutate("other cases");
        }}
      >
        The agent gets {counted(run.calls_saved ?? 0, "more call")}, and the verdict over all cases replaces this one.
      </Confirm>
      <Confirm
        open={asking === "delete"}
        onClose={() => setAsking(null)}
        title="Delete this run?"
        action="Delete run"
        onConfirm={() => {
          setAsking(null);
          remove.mutate();
        }}
      >
        The run and all its answers and grades are deleted for good. Export it first if you may want them.
      </Confirm>
    </div>
  );
}

async function copySuite(id: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(await api.runSuite(id));
    toast("Suite copied");
  } catch (error) {
    toast(`Not copied: ${told(error).message}`);
  }
}
