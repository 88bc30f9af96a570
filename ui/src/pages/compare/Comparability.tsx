import type { Comparison, Evaluation } from "../../api/types.ts";
import { isGoing } from "../../lib/progress.ts";
import { Button } from "../../parts/Button.tsx";
import { SafeText } from "../../parts/SafeText.tsx";
import type { ChangeState } from "./state.ts";

interface Props {
  comparison: Comparison;
  runs: readonly (Evaluation | undefined)[];
  forced: boolean;
  onChange: ChangeState;
}

/** Whether like is compared with like: said before any number, and in the way of them where it is not. */
export function Comparability({ comparison, runs, forced, onChange }: Props) {
  const { comparable, reasons } = comparison.comparability;
  const unfinished = runs.some((run) => run !== undefined && isGoing(run.status));
  return (
    <section aria-label="Comparability" className={`card p-3 text-sm ${comparable ? "" : "border-fail bg-fail-soft"}`}>
      <p className={`font-semibold ${comparable ? "text-pass" : "text-fail"}`}>
        {comparable
          ? "✓ Like is compared with like"
          : forced
            ? "✗ The runs are not alike; these numbers were asked for all the same"
            : "✗ The runs are not alike, so they are not compared"}
      </p>
      {unfinished && <p className="mt-1 font-medium text-warn">A run still goes on: all numbers are provisional.</p>}
      {reasons.length > 0 && (
        <details className="mt-1" open={!comparable}>
          <summary>{comparable ? "What else differs" : "Why not"}</summary>
          <ul className="mt-1 list-disc ps-5">
            {reasons.map((reason) => (
              <li key={reason}>
                <SafeText text={reason} />
              </li>
            ))}
          </ul>
        </details>
      )}
      {!comparable && (
        <div className="mt-2">
          <Button onClick={() => onChange({ force: forced ? "off" : "on" })}>
            {forced ? "Do not compare them" : "Compare anyway"}
          </Button>
        </div>
      )}
    </section>
  );
}
