import type { KeyboardEvent } from "react";
import type { Bin } from "../api/types.ts";
import { counted } from "../lib/format.ts";
import type { Range } from "../lib/urlState.ts";

interface Props {
  bins: readonly Bin[];
  label: string;
  /** How an end of a bin is written. */
  unit: (value: number) => string;
  chosen: Range | null;
  onChoose: (range: Range | null) => void;
}

const WIDTH = 240;
const HEIGHT = 56;
const GAP = 2;

/** Columns that filter: choosing one keeps the rows in it, choosing it again lets all in. */
export function Histogram({ bins, label, unit, chosen, onChoose }: Props) {
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
          const told = `${unit(bin.low)} to ${unit(bin.high)}: ${counted(bin.count, "result")}`;
          return (
            <g
              key={bin.low}
              role="button"
              tabIndex={bin.count === 0 ? -1 : 0}
              aria-pressed={on}
              aria-label={told}
              onClick={choose}
              onKeyDown={pressed(choose)}
              className="cursor-pointer outline-offset-0"
            >
              <title>{told}</title>
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

function pressed(act: () => void) {
  return (event: KeyboardEvent) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act();
  };
}
