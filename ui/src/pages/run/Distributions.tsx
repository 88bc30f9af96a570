import { useMemo } from "react";
import type { Result, Summary } from "../../api/types.ts";
import { count, duration, score } from "../../lib/format.ts";
import { binned, niceCeiling } from "../../lib/histogram.ts";
import { Histogram } from "../../parts/Histogram.tsx";
import { visibleText } from "../../lib/visible.ts";
import { NO_FILTER, type ChangeRun, type RunState } from "./state.ts";
import type { Rows } from "./useRun.ts";

const BINS = 10;
const MOST_SHOWN = 6;

interface Props {
  graders: readonly string[];
  rows: Rows;
  summary: Summary;
  state: RunState;
  onChange: ChangeRun;
}

/** How scores and latencies are spread over the results that are loaded; a column filters them. */
export function Distributions({ graders, rows, summary, state, onChange }: Props) {
  const { scores, latencies } = useMemo(() => gathered(graders, rows.loaded), [graders, rows.loaded]);
  if (rows.loaded.length === 0) return null;
  const longest = niceCeiling(latencies.reduce((most, one) => Math.max(most, one), summary.p99_latency_ms ?? 0));
  const part = rows.more;
  return (
    <section aria-label="Distributions" className="card p-3">
      <div className="grid gap-x-6 gap-y-3 sm:grid-cols-2 xl:grid-cols-4">
        {graders.slice(0, MOST_SHOWN).map((grader) => (
          <Histogram
            key={grader}
            label={`score of ${visibleText(grader)}`}
            unit={score}
            bins={binned(scores.get(grader) ?? [], 0, 1, BINS)}
            chosen={state.grader === grader ? state.score : null}
            onChoose={(range) =>
              onChange(range === null ? { score: null, grader: "" } : { ...NO_FILTER, grader, score: range })
            }
          />
        ))}
        <Histogram
          label="latency"
          unit={duration}
          bins={binned(latencies, 0, longest, BINS)}
          chosen={state.latency}
          onChoose={(latency) => onChange({ latency })}
        />
      </div>
      {part && (
        <p className="num mt-2 text-xs text-muted">
          Of the {count(rows.loaded.length)} results loaded so far, of {count(summary.total_results)}; scroll on, or
          choose a column, to load more.
        </p>
      )}
    </section>
  );
}

function gathered(graders: readonly string[], rows: readonly Result[]) {
  const scores = new Map<string, number[]>(graders.map((grader) => [grader, []]));
  const latencies: number[] = [];
  for (const row of rows) {
    if (row.response_latency_ms !== null && row.response_status === "success") latencies.push(row.response_latency_ms);
    for (const one of row.scores) {
      if (one.score_value !== null) scores.get(one.grader_id)?.push(one.score_value);
    }
  }
  return { scores, latencies };
}
