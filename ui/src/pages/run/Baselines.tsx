import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type SyntheticEvent, useState } from "react";
import { api } from "../../api/client.ts";
import { describeError } from "../../api/error.ts";
import type { Evaluation, NamedBaseline } from "../../api/types.ts";
import { Badge } from "../../components/Badge.tsx";
import { Button } from "../../components/Button.tsx";
import { ConfirmDialog, Dialog } from "../../components/Dialog.tsx";
import { Field } from "../../components/Field.tsx";
import { toast } from "../../components/toast.tsx";
import { formatAgo, formatDateTime } from "../../lib/format.ts";
import { visibleText } from "../../lib/visibleText.ts";

/** The name of a baseline, cut where it is long. */
export function BaselineBadge({ name, prefix = "" }: { name: string; prefix?: string }) {
  const shown = visibleText(name);
  return (
    <Badge tone="accent" title={`Baseline ${shown}: other runs of the suite are compared with it`}>
      <span className="max-w-40 truncate">
        {prefix}
        {shown}
      </span>
    </Badge>
  );
}

/** The names under which a run is a baseline of its suite, who set them and when, with a button to clear each. */
export function RunBaselines({ run }: { run: Evaluation }) {
  const names = run.baselines ?? [];
  const [clearing, setClearing] = useState<NamedBaseline | null>(null);
  const refresh = useRefresh(run.id);
  const baselines = useQuery({
    queryKey: ["baselines", run.id, names],
    queryFn: ({ signal }) => api.baselines(signal),
    enabled: names.length > 0,
  });
  const clear = useMutation({
    mutationFn: (baseline: NamedBaseline) => api.clearBaseline(baseline),
    onSuccess: (_, { name }) => toast(`Baseline ${name} cleared`),
    onError: (error) => toast(describeError(error).message),
    onSettled: refresh,
  });
  if (names.length === 0) return null;
  const own = (baselines.data?.baselines ?? []).filter((one) => one.evaluation_id === run.id);
  return (
    <div className="flex flex-wrap items-center gap-1" data-baselines>
      <dt className="text-muted">Baseline</dt>
      {names.map((name) => {
        const baseline = own.find((one) => one.name === name);
        return (
          <dd key={name} className="flex flex-wrap items-center gap-1">
            <BaselineBadge name={name} />
            {baseline && (
              <>
                <span className="text-muted" title={formatDateTime(baseline.set_at)}>
                  set by {visibleText(baseline.set_by)} {formatAgo(baseline.set_at)}
                </span>
                <Button
                  variant="ghost"
                  aria-label={`Clear the baseline ${visibleText(name)}`}
                  onClick={() => setClearing(baseline)}
                >
                  Clear
                </Button>
              </>
            )}
          </dd>
        );
      })}
      <ConfirmDialog
        open={clearing !== null}
        onClose={() => setClearing(null)}
        title={`Clear the baseline ${visibleText(clearing?.name ?? "")}?`}
        action="Clear"
        onConfirm={() => {
          if (clearing) clear.mutate(clearing);
          setClearing(null);
        }}
      >
        The run stays. Commands and gates that name this baseline fail until another run is set.
      </ConfirmDialog>
    </div>
  );
}

/** Asks for the name of the baseline that the run becomes. */
export function SetBaselineDialog({ run, open, onClose }: { run: Evaluation; open: boolean; onClose: () => void }) {
  return (
    <Dialog
      open={open}
      onClose={onClose}
      title="Set as baseline"
      description="Other runs of the suite are compared with this one by the name of the baseline."
      width="max-w-md"
    >
      <SetBaselineForm run={run} onClose={onClose} />
    </Dialog>
  );
}

function SetBaselineForm({ run, onClose }: { run: Evaluation; onClose: () => void }) {
  const [name, setName] = useState("main");
  const refresh = useRefresh(run.id);
  const set = useMutation({
    mutationFn: () => api.setBaseline(name.trim(), run.id),
    onSuccess: (baseline) => {
      onClose();
      toast(`Baseline ${baseline.name} set`);
      refresh();
    },
  });
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    set.mutate();
  };
  return (
    <form className="flex flex-col gap-4" onSubmit={submit} noValidate>
      <Field
        label="Name"
        required
        help="If the suite has a baseline of this name, this run replaces it."
        problem={set.error ? describeError(set.error).message : null}
      >
        <input className="field" value={name} data-first onChange={(event) => setName(event.target.value)} />
      </Field>
      <div className="flex justify-end gap-2">
        <Button onClick={onClose}>Cancel</Button>
        <Button variant="primary" type="submit" disabled={name.trim() === "" || set.isPending}>
          Set baseline
        </Button>
      </div>
    </form>
  );
}

function useRefresh(run: string): () => void {
  const queries = useQueryClient();
  return () => {
    void queries.invalidateQueries({ queryKey: ["run", run] });
    void queries.invalidateQueries({ queryKey: ["runs"] });
  };
}
