import type { Evaluation } from "../../api/types.ts";
import { count, percent, rate } from "../../lib/format.ts";
import { SafeText } from "../../parts/SafeText.tsx";

const SHOWN = 3;

/** What each grader let pass, the denominator with it; a grader without a score has no rate, which is not 0 %. */
export function PassRates({ run }: { run: Evaluation }) {
  const rates = Object.entries(run.pass_rates ?? {});
  if (rates.every(([, figure]) => figure.scored === 0)) return <span className="text-muted">–</span>;
  return (
    <ul aria-label="Pass rates" className="flex flex-col">
      {rates.slice(0, SHOWN).map(([grader, figure]) => (
        <li
          key={grader}
          className="flex items-baseline gap-1.5"
          title={`${grader}: ${rate(figure)}; ${count(figure.scored)} scores of ${count(figure.total)} results`}
        >
          <span className="num font-medium whitespace-nowrap">{percent(figure.value)}</span>
          <span className="num text-xs whitespace-nowrap text-muted">of {count(figure.scored)}</span>
          {rates.length > 1 && <SafeText text={grader} className="line-clamp-1 min-w-0 text-xs text-muted" />}
        </li>
      ))}
      {rates.length > SHOWN && <li className="text-xs text-muted">and {count(rates.length - SHOWN)} more</li>}
    </ul>
  );
}
