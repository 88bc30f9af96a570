import { useMemo } from "react";
import { count, score } from "../../lib/format.ts";
import { scoreBins, type PairedBin } from "./distribution.ts";
import type { CaseChange } from "./changes.ts";

const WIDTH = 180;
const HEIGHT = 34;

/** How the scores are spread in both runs, in the same bins: the candidate as columns, the baseline as a line. */
export function ScoreShift({ cases, grader, label }: { cases: readonly CaseChange[]; grader: string; label: string }) {
  const bins = useMemo(() => scoreBins(cases, grader), [cases, grader]);
  if (bins === null) return null;
  const most = Math.max(1, ...bins.flatMap((bin) => [bin.baseline, bin.candidate]));
  const width = WIDTH / bins.length;
  const top = (number: number) => HEIGHT - 1 - (number / most) * (HEIGHT - 3);
  const outline = bins
    .map((bin, index) => `${index === 0 ? "M0" : ""}V${top(bin.baseline)}H${(index + 1) * width}`)
    .join("");
  return (
    <figure className="flex flex-wrap items-end gap-x-3">
      <svg
        role="img"
        aria-label={`Scores by ${label}: ${told(bins)}`}
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        width={WIDTH}
        height={HEIGHT}
        className="max-w-full"
      >
        {bins.map((bin, index) => (
          <rect
            key={bin.low}
            x={index * width + 1}
            y={top(bin.candidate)}
            width={width - 2}
            height={HEIGHT - 1 - top(bin.candidate)}
            fill="var(--accent)"
            opacity="0.5"
          />
        ))}
        <path d={outline.replace(/^M0V/, "M0 ")} fill="none" stroke="var(--text)" strokeWidth="1.2" />
      </svg>
      <figcaption className="text-xs text-muted">
        scores from 0 to 1: columns the candidate, line the baseline
      </figcaption>
    </figure>
  );
}

function told(bins: readonly PairedBin[]): string {
  return bins
    .filter((bin) => bin.baseline > 0 || bin.candidate > 0)
    .map(
      (bin) => `${score(bin.low)} to ${score(bin.high)}, ${count(bin.baseline)} before and ${count(bin.candidate)} now`,
    )
    .join("; ");
}
