import type { KeyboardEvent } from "react";
import type { Bin, Histograms } from "../../api/types.ts";
import { formatDuration, formatScore, pluralize } from "../../lib/format.ts";
import type { Range } from "../../lib/urlState.ts";
import { visibleText } from "../../lib/visibleText.ts";
import { type ChangeRun, NO_FILTER, type RunState } from "./state.ts";

const MAX_SHOWN = 6;
const FINE_MS = 10;

interface Props {
  histograms: Histograms;
  state: RunState;
  onChange: ChangeRun;
}

/** Histograms of scores and latencies over the whole run; a column filters the results to those it counts. */
export function Distributions({ histograms, state, onChange }: Props) {
  const scores = Object.entries(histograms.scores);
  const counted = [...scores.flatMap(([, bins]) => bins), ...histograms.latency_ms];
  if (counted.every((bin) => bin.count === 0)) return null;
  return (
    <section aria-label="Distributions" className="card p-3">
      <div className="grid gap-x-6 gap-y-3 sm:grid-cols-2 xl:grid-cols-4">
        {scores.slice(0, MAX_SHOWN).map(([grader, bins]) => (
          <Histogram
            key={grader}
            label={`score by ${visibleText(grader)}`}
            unit={formatScore}
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
            unit={formatLatency}
            bins={histograms.latency_ms}
            chosen={state.latency}
            onChoose={(latency) => onChange(latency === null ? { latency } : { ...NO_FILTER, latency })}
          />
        )}
      </div>
    </section>
  );
}

/** Formats a latency, with digits below a millisecond if needed. */
export function formatLatency(ms: number): string {
  return Math.abs(ms) < FINE_MS ? `${Number(ms.toPrecision(2))} ms` : formatDuration(ms);
}

interface HistogramProps {
  bins: readonly Bin[];
  label: string;
  /** Formats the ends of a bin. */
  unit: (value: number) => string;
  chosen: Range | null;
  onChoose: (range: Range | null) => void;
}

const WIDTH = 240;
const HEIGHT = 56;
const GAP = 2;

/** A histogram whose columns are filters: selecting a column again clears the filter. */
export function Histogram({ bins, label, unit, chosen, onChoose }: HistogramProps) {
  const most = Math.max(1, ...bins.map((bin) => bin.count));
  const step = WIDTH / bins.length;
  return (
    <figure className="min-w-0">
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        className="block h-14 w-full"
        preserveAspectRatio="none"
        role="group"
        aria-label={label}
      >
        {bins.map((bin, index) => {
          const height = bin.count === 0 ? 0 : Math.max(2, (bin.count / most) * (HEIGHT - 4));
          const on = chosen !== null && chosen.low === bin.low && chosen.high === bin.high;
          const choose = () => onChoose(on ? null : { low: bin.low, high: bin.high });
          const description = `${unit(bin.low)} to ${unit(bin.high)}: ${pluralize(bin.count, "result")}`;
          return (
            <g
              key={bin.low}
              role="button"
              tabIndex={bin.count === 0 ? -1 : 0}
              aria-pressed={on}
              aria-label={description}
              onClick={choose}
              onKeyDown={onActivate(choose)}
              className="cursor-pointer outline-offset-0"
            >
              <title>{description}</title>
              <rect x={index * step} y="0" width={step} height={HEIGHT} fill="transparent" />
              <rect
                x={index * step + GAP / 2}
                y={HEIGHT - height}
                width={step - GAP}
                height={height}
                fill={on ? "var(--text)" : "var(--accent)"}
                opacity={chosen !== null && !on ? 0.35 : 0.8}
              />
            </g>
          );
        })}
        <line x1="0" x2={WIDTH} y1={HEIGHT - 0.5} y2={HEIGHT - 0.5} stroke="var(--line)" />
      </svg>
      <figcaption className="num flex justify-between text-xs text-muted">
        <span>{unit(bins[0]?.low ?? 0)}</span>
        <span>{label}</span>
        <span>{unit(bins.at(-1)?.high ?? 1)}</span>
      </figcaption>
    </figure>
  );
}

function onActivate(act: () => void) {
  return (event: KeyboardEvent) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act();
  };
}
