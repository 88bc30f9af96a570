import type { Outcome, ResponseStatus } from "../../api/types.ts";
import { Button } from "../../components/Button.tsx";
import { SearchBox } from "../../components/SearchBox.tsx";
import { formatCount, formatScore } from "../../lib/format.ts";
import { visibleText } from "../../lib/visibleText.ts";
import { formatLatency } from "./Distributions.tsx";
import { type ChangeRun, isFiltered, NO_FILTER, type RunState } from "./state.ts";
import type { ResultRows } from "./useRun.ts";

interface Props {
  graders: readonly string[];
  state: RunState;
  onChange: ChangeRun;
  rows: ResultRows;
  total: number | null;
}

export function Filters({ graders, state, onChange, rows, total }: Props) {
  return (
    <div className="flex flex-wrap items-center gap-2">
      <SearchBox label="Search results" value={state.q} onSearch={(q) => onChange({ q }, { replace: true })} />
      <select
        className="field max-w-40"
        aria-label="Response"
        value={state.status}
        onChange={(event) => onChange({ status: event.target.value as ResponseStatus | "" })}
      >
        <option value="">Any response</option>
        <option value="success">success</option>
        <option value="error">agent error</option>
        <option value="timeout">timeout</option>
      </select>
      <select
        className="field max-w-44"
        aria-label="Grader"
        value={state.grader}
        onChange={(event) => onChange({ grader: event.target.value, score: null })}
      >
        <option value="">Any grader</option>
        {graders.map((grader) => (
          <option key={grader} value={grader}>
            {visibleText(grader)}
          </option>
        ))}
      </select>
      <select
        className="field max-w-40"
        aria-label="Outcome"
        value={state.outcome}
        onChange={(event) => onChange({ outcome: event.target.value as Outcome | "" })}
      >
        <option value="">Any outcome</option>
        <option value="pass">pass</option>
        <option value="fail">fail</option>
        <option value="error">grader error</option>
        <option value="skipped">skipped</option>
        <option value="not_applicable">not applicable</option>
      </select>
      <input
        className="field max-w-32"
        aria-label="Tag"
        placeholder="Tag"
        defaultValue={state.tag}
        key={state.tag}
        onBlur={(event) => onChange({ tag: event.target.value.trim() })}
        onKeyDown={(event) => event.key === "Enter" && event.currentTarget.blur()}
      />
      {state.score && (
        <Button
          onClick={() => onChange({ score: null })}
        >{`score ${formatScore(state.score.low)}–${formatScore(state.score.high)} ✕`}</Button>
      )}
      {state.latency && (
        <Button
          onClick={() => onChange({ latency: null })}
        >{`latency ${formatLatency(state.latency.low)}–${formatLatency(state.latency.high)} ✕`}</Button>
      )}
      {isFiltered(state) && (
        <Button variant="ghost" onClick={() => onChange(NO_FILTER)}>
          Clear filters
        </Button>
      )}
      <span role="status" className="num ml-auto text-sm text-muted">
        {rows.loading && rows.rows.length === 0
          ? "Searching…"
          : `${formatCount(rows.rows.length)}${rows.more ? "+" : ""} of ${formatCount(total)}`}
      </span>
    </div>
  );
}
