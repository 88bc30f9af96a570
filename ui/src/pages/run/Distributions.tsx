import type { Histograms } from "../../api/types.ts";
import { duration, score } from "../../lib/format.ts";
import { Histogram } from "../../parts/Histogram.tsx";
import { visibleText } from "../../lib/visible.ts";
import { NO_FILTER, type ChangeRun, type RunState } from "./state.ts";

const MOST_SHOWN = 6;
const FINE_MS = 10;

interface Props {
  histograms: Histograms;
  state: RunState;
  onChange: ChangeRun;
}

/** How scores and latencies are spread over the whole run; a column lists the results that it counts, and no others. */
export function Distributions({ histograms, state, onChange }: Props) {
  const scores = Object.entries(histograms.scores);
  const counted = [...scores.flatMap(([, bins]) => bins), ...histograms.latency_ms];
  if (counted.every((bin) => bin.count === 0)) return null;
  return (
    <section aria-label="Distributions" className="card p-3">
      <div className="grid gap-x-6 gap-y-3 sm:grid-cols-2 xl:grid-cols-4">
        {scores.slice(0, MOST_SHOWN).map(([grader, bins]) => (
          <Histogram
            key={grader}
            label={`score of ${visibleText(grader)}`}
            unit={score}
            bins={bins}
            chosen={state.grader === grader ? state.score : null}
            onChoose={(range) =>
              onChange(range === null ? { grader: "", score: null } : { ...NO_FILTER, grader, score: range })
            }
          />
        ))}
        {histograms.latency_ms.length > 0 && (
          <Histogram
            label="latency"
            unit={latencyText}
            bins={histograms.latency_ms}
            chosen={state.latency}
            onChoose={(latency) => onChange(latency === null ? { latency } : { ...NO_FILTER, latency })}
          />
        )}
      </div>
    </section>
  );
}

/** A latency, also where the ends of columns lie closer than a millisecond. */
export function latencyText(ms: number): string {
  return Math.abs(ms) < FINE_MS ? `${Number(ms.toPrecision(2))} ms` : duration(ms);
}
