import type { Evaluation } from "../../api/types.ts";
import { ago, count } from "../../lib/format.ts";
import { visibleText } from "../../lib/visible.ts";
import { Field } from "../../parts/Field.tsx";

interface Props {
  label: string;
  help: string;
  /** Runs to choose from; the chosen one may be older than all of them. */
  runs: readonly Evaluation[];
  chosen: string;
  current: Evaluation | undefined;
  onChoose: (id: string) => void;
}

export function RunChooser({ label, help, runs, chosen, current, onChoose }: Props) {
  const listed = current && !runs.some((run) => run.id === current.id) ? [current, ...runs] : runs;
  const unknown = chosen !== "" && !listed.some((run) => run.id === chosen);
  return (
    <Field label={label} help={help}>
      <select className="field" value={chosen} onChange={(event) => onChoose(event.target.value)}>
        <option value="">choose a run…</option>
        {unknown && <option value={chosen}>{visibleText(chosen)}</option>}
        {listed.map((run) => (
          <option key={run.id} value={run.id}>
            {titleOf(run)} · {run.status} · {count(run.result_count)} results · {ago(run.started_at)}
          </option>
        ))}
      </select>
    </Field>
  );
}

export function titleOf(run: Evaluation | undefined): string {
  return run === undefined ? "run" : visibleText(run.name || run.id.slice(0, 8));
}
