import type { Comparison } from "../../api/types.ts";
import { count, counted, inClusters, score } from "../../lib/format.ts";
import { visibleText } from "../../lib/visible.ts";
import { Badge } from "../../parts/Badge.tsx";
import { SafeText } from "../../parts/SafeText.tsx";
import { countsFor } from "./changes.ts";
import { DifferenceBar, reachOf } from "./DifferenceBar.tsx";
import { ScoreShift } from "./ScoreShift.tsx";
import type { Change, ChangeState, CompareState } from "./state.ts";
import { CHANGE_HELP, CHANGE_WORDS, DECISIONS, notes, sentenceOf, signedInterval, type Difference } from "./wording.ts";

const FILTERS = ["improved", "worse", "same", "missing"] as const;

interface Props {
  comparison: Comparison;
  state: CompareState;
  onChange: ChangeState;
}

/** What each grader says of the change, how sure that is, and the cases behind it. Every count is a filter. */
export function GraderDifferences({ comparison, state, onChange }: Props) {
  const graders = Object.entries(comparison.graders);
  if (graders.length === 0) return null;
  const reach = reachOf(graders.map(([, told]) => told));
  return (
    <section aria-label="Graders" className="flex flex-col gap-2">
      <p className="flex flex-wrap items-center gap-2">
        {comparison.decision && (
          <Badge tone={DECISIONS[comparison.decision].tone}>{DECISIONS[comparison.decision].told}</Badge>
        )}
        <span className="font-medium">{sentenceOf(comparison)}</span>
      </p>
      <div className="grid gap-2 lg:grid-cols-2">
        {graders.map(([grader, told]) => (
          <Card
            key={grader}
            grader={grader}
            told={told}
            reach={reach}
            comparison={comparison}
            state={state}
            onChange={onChange}
          />
        ))}
      </div>
      <p className="text-xs text-muted">
        Candidate minus baseline, over the same cases; the whisker is the 95 % interval, the dashed line a loss of{" "}
        {score(comparison.margin)} that would still count as not worse.
      </p>
    </section>
  );
}

function Card({
  grader,
  told,
  reach,
  comparison,
  state,
  onChange,
}: Props & { grader: string; told: Difference; reach: number }) {
  const counts = countsFor(comparison, grader);
  const { tone, told: decision } = DECISIONS[told.decision];
  const chosen = (change: Change) => state.grader === grader && state.show === change;
  return (
    <article className="card flex flex-col gap-2 p-3" aria-label={`Grader ${visibleText(grader)}`}>
      <header className="flex flex-wrap items-center gap-2">
        <h2 className="font-medium">
          <SafeText text={grader} />
        </h2>
        <Badge tone={tone}>{decision}</Badge>
        <span className="num ml-auto text-sm text-muted">
          {score(told.baseline)} → {score(told.candidate)}
        </span>
      </header>
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
        <DifferenceBar told={told} reach={reach} margin={comparison.margin} label={visibleText(grader)} />
        <span className="num text-sm">{signedInterval(told)}</span>
      </div>
      {comparison.cases_omitted === 0 && (
        <ScoreShift cases={comparison.cases} grader={grader} label={visibleText(grader)} />
      )}
      <p className="num text-xs text-muted">
        {counted(told.n, "paired case")}
        {inClusters(told.clusters)}
        {told.p_adjusted !== null && `, p = ${told.p_adjusted.toPrecision(2)} over all graders`}
        {told.noise_threshold !== null && `, chance ±${score(told.noise_threshold)}`}. {notes(told)}
      </p>
      <LargestDrops told={told} />
      <div className="flex flex-wrap gap-1">
        {FILTERS.map((change) => (
          <FilterButton
            key={change}
            change={change}
            number={counts[change]}
            of={`by ${visibleText(grader)}`}
            chosen={chosen(change)}
            onClick={() => onChange(chosen(change) ? { grader: "", show: "" } : { grader, show: change })}
          />
        ))}
      </div>
    </article>
  );
}

/** Of pass and fail every drop is as large as any other. */
function LargestDrops({ told }: { told: Difference }) {
  if (told.test === "mcnemar_mid_p" || told.largest_drops.length === 0) return null;
  return (
    <p className="num text-xs text-muted">
      Largest drops:{" "}
      {told.largest_drops.map((drop, place) => (
        <span key={drop.case}>
          {place > 0 && ", "}
          <SafeText text={drop.case} /> {score(drop.baseline)} → {score(drop.candidate)}
        </span>
      ))}
    </p>
  );
}

interface FilterProps {
  change: Change;
  number: number;
  of: string;
  chosen: boolean;
  onClick: () => void;
}

export function FilterButton({ change, number, of, chosen, onClick }: FilterProps) {
  const { sign, told } = CHANGE_WORDS[change];
  return (
    <button
      type="button"
      aria-pressed={chosen}
      title={CHANGE_HELP[change]}
      disabled={number === 0 && !chosen}
      onClick={onClick}
      className={`num rounded-full border px-2.5 py-1 text-xs font-medium disabled:text-muted ${chosen ? "border-accent bg-accent-soft text-accent" : "border-line bg-surface enabled:hover:bg-raised"}`}
    >
      <span aria-hidden>{sign}</span> {count(number)} {told}
      <span className="sr-only"> {of}</span>
    </button>
  );
}
