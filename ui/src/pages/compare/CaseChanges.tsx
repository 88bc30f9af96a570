import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef } from "react";
import type { Comparison } from "../../api/types.ts";
import { useShortcuts } from "../../app/shortcuts.tsx";
import { Badge } from "../../components/Badge.tsx";
import { Button } from "../../components/Button.tsx";
import { EmptyState } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { formatCount, formatScore } from "../../lib/format.ts";
import { useMediaQuery } from "../../lib/hooks.ts";
import { visibleText } from "../../lib/visibleText.ts";
import {
  type CaseChange,
  type Change,
  CHANGE_HELP,
  CHANGE_LABELS,
  changeFor,
  CHANGES,
  type ChangeState,
  type CompareState,
  countsFor,
  formatSigned,
  largestDifference,
  scoreDifference,
} from "./comparison.ts";
import { FilterButton } from "./GraderDifferences.tsx";

const ROW_HEIGHT = 58;
const MAX_GRADER_COLUMNS = 6;
const RESPONSE_COLUMNS = ["Baseline response", "Candidate response"] as const;

interface Props {
  comparison: Comparison;
  cases: readonly CaseChange[];
  state: CompareState;
  onChange: ChangeState;
}

/** The cases, largest loss first, with filters. */
export function CaseChanges({ comparison, cases, state, onChange }: Props) {
  const counts = countsFor(comparison, state.grader);
  return (
    <section aria-labelledby="cases" className="flex flex-col gap-2">
      <div className="flex flex-wrap items-center gap-2">
        <h2 id="cases" className="mr-2 text-lg font-semibold">
          Cases
        </h2>
        {CHANGES.filter((change) => counts[change] > 0 || state.show === change).map((change) => (
          <FilterButton
            key={change}
            change={change}
            number={counts[change]}
            of="in total"
            chosen={state.show === change}
            onClick={() => onChange({ show: state.show === change ? "" : change })}
          />
        ))}
        <select
          className="field max-w-48"
          aria-label="Grader"
          value={state.grader}
          onChange={(event) => onChange({ grader: event.target.value })}
        >
          <option value="">All graders</option>
          {Object.keys(comparison.graders).map((grader) => (
            <option key={grader} value={grader}>
              {visibleText(grader)}
            </option>
          ))}
        </select>
        <span role="status" className="num ml-auto text-sm text-muted">
          {formatCount(cases.length)} of {formatCount(comparison.cases.length + comparison.cases_omitted)}
        </span>
      </div>
      {comparison.cases_omitted > 0 && (
        <p className="text-sm text-muted">
          {formatCount(comparison.cases_omitted)} more cases, most of them unchanged, are not listed.
        </p>
      )}
      {cases.length > 0 ? (
        <CaseChangeTable comparison={comparison} cases={cases} state={state} onChange={onChange} />
      ) : (
        <EmptyState
          title="No matching cases"
          actions={<Button onClick={() => onChange({ show: "", grader: "" })}>Show all cases</Button>}
        />
      )}
    </section>
  );
}

function CaseChangeTable({ comparison, cases, state, onChange }: Props) {
  const scroller = useRef<HTMLDivElement>(null);
  const narrow = useMediaQuery("(max-width: 760px)");
  const wide = useMediaQuery("(min-width: 1100px)");
  const graders = useMemo(
    () => (narrow ? [] : Object.keys(comparison.graders).slice(0, MAX_GRADER_COLUMNS)),
    [narrow, comparison.graders],
  );
  const virtual = useVirtualizer({
    count: cases.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_HEIGHT,
    overscan: 5,
  });
  const move = (step: number) => {
    const rows = [...(scroller.current?.querySelectorAll<HTMLElement>("[data-index]") ?? [])];
    const now = Number(document.activeElement?.getAttribute("data-index") ?? -step);
    const next = Math.min(cases.length - 1, Math.max(0, now + step));
    virtual.scrollToIndex(next);
    (rows.find((row) => row.dataset["index"] === String(next)) ?? rows[0])?.focus();
  };
  useShortcuts({ j: () => move(1), k: () => move(-1) });
  const template = {
    gridTemplateColumns: [
      "minmax(9rem, 3fr)",
      ...(wide ? ["minmax(9rem, 2fr)", "minmax(9rem, 2fr)"] : []),
      "6.5rem",
      ...(narrow ? ["4.75rem"] : graders.map(() => "minmax(6.5rem, 1fr)")),
    ].join(" "),
  };
  return (
    // oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- focusable, so that it scrolls by keyboard too
    <div
      ref={scroller}
      tabIndex={0}
      role="table"
      aria-label="Cases"
      aria-rowcount={cases.length + 1}
      className="card max-h-[75vh] min-h-40 overflow-auto text-sm"
    >
      <div role="rowgroup" className="sticky top-0 z-10 min-w-fit border-b border-line bg-surface text-muted">
        <div role="row" aria-rowindex={1} className="grid" style={template}>
          {[
            "Case",
            ...(wide ? RESPONSE_COLUMNS : []),
            "Change",
            ...(narrow ? ["Difference"] : graders.map(visibleText)),
          ].map((title) => (
            <div key={title} role="columnheader" className="truncate p-2 font-semibold">
              {title}
            </div>
          ))}
        </div>
      </div>
      <div role="rowgroup" className="relative min-w-fit" style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map((item) => {
          const one = cases[item.index];
          if (one === undefined) return null;
          const open = () => onChange({ row: one.test_case_id, repeat: 0 });
          return (
            <div
              key={one.test_case_id}
              role="row"
              aria-rowindex={item.index + 2}
              data-index={item.index}
              tabIndex={0}
              onClick={open}
              onKeyDown={(event) => event.key === "Enter" && open()}
              className={`absolute inset-x-0 top-0 grid cursor-pointer items-center overflow-hidden border-b border-line outline-offset-[-2px] hover:bg-raised ${state.row === one.test_case_id ? "bg-accent-soft" : ""}`}
              style={{ ...template, height: item.size, transform: `translateY(${item.start}px)` }}
            >
              <div role="cell" className="min-w-0 p-2">
                <CaseText one={one} withResponses={!wide} />
              </div>
              {wide &&
                [one.baseline_output, one.candidate_output].map((output, side) => (
                  // oxlint-disable-next-line react/no-array-index-key -- always two sides, in this order
                  <div key={side} role="cell" className="min-w-0 p-2">
                    <div className="line-clamp-2 text-muted">
                      <ResponseText text={output} />
                    </div>
                  </div>
                ))}
              <div role="cell" className="p-2">
                <ChangeBadge change={changeFor(one, state.grader)} />
              </div>
              {narrow ? (
                <div role="cell" className="num p-2">
                  {formatSigned(largestDifference(one, state.grader))}
                </div>
              ) : (
                graders.map((grader) => (
                  <div key={grader} role="cell" className="num p-2">
                    <ScoreChange one={one} grader={grader} />
                  </div>
                ))
              )}
            </div>
          );
        })}
      </div>
    </div>
  );
}

export function ChangeBadge({ change }: { change: Change }) {
  const { icon, label, tone } = CHANGE_LABELS[change];
  return (
    <Badge tone={tone} title={CHANGE_HELP[change]}>
      <span aria-hidden>{icon}</span>
      {label}
    </Badge>
  );
}

/** The input, and below it the case id or, in a narrow window, both responses. */
function CaseText({ one, withResponses }: { one: CaseChange; withResponses: boolean }) {
  return (
    <>
      <SafeText text={one.input ?? one.test_case_id} className="line-clamp-1" />
      {withResponses ? (
        <span className="block truncate text-xs text-muted">
          <ResponseText text={one.baseline_output} /> → <ResponseText text={one.candidate_output} />
        </span>
      ) : (
        <span className="block truncate text-xs text-muted">{visibleText(one.test_case_id)}</span>
      )}
    </>
  );
}

function ResponseText({ text }: { text: string | null | undefined }) {
  if (text === null || text === undefined) return <i className="text-muted">no response</i>;
  return text === "" ? <i className="text-muted">empty</i> : <SafeText text={text} />;
}

function ScoreChange({ one, grader }: { one: CaseChange; grader: string }) {
  const difference = scoreDifference(one, grader);
  const before = one.baseline[grader] ?? null;
  const after = one.candidate[grader] ?? null;
  if (difference === null) {
    return (
      <span className="text-muted" title="A missing score does not count as zero">
        {formatScore(before)} → {formatScore(after)}
      </span>
    );
  }
  const colour = difference > 0 ? "text-pass" : difference < 0 ? "text-fail" : "text-muted";
  return (
    <span className={colour}>
      {formatScore(before)} → {formatScore(after)} {difference !== 0 && <b>{formatSigned(difference)}</b>}
    </span>
  );
}
