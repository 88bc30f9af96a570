import { columnVisibilityFeature, createColumnHelper, tableFeatures, useTable } from "@tanstack/react-table";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import type { Evaluation, Result, Score } from "../../api/types.ts";
import { useShortcuts } from "../../app/shortcuts.tsx";
import { ResponseBadge, ScoreBadge } from "../../components/Badge.tsx";
import { Button } from "../../components/Button.tsx";
import { EmptyState } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { formatDuration } from "../../lib/format.ts";
import { useLocalStorage, useMediaQuery } from "../../lib/hooks.ts";
import { isInProgress } from "../../lib/run.ts";
import { visibleText } from "../../lib/visibleText.ts";
import { type ChangeRun, isFiltered, NO_FILTER, type RunState } from "./state.ts";
import type { ResultRows } from "./useRun.ts";

const HEIGHTS = { low: { px: 40, lines: 1 }, medium: { px: 62, lines: 2 }, high: { px: 126, lines: 5 } } as const;
type Height = keyof typeof HEIGHTS;
const LOAD_AHEAD = 40;

interface Props {
  run: Evaluation;
  graders: readonly string[];
  rows: ResultRows;
  state: RunState;
  onChange: ChangeRun;
}

export function ResultsGrid(props: Props) {
  const { rows, state, onChange, run } = props;
  if (rows.rows.length > 0) return <Grid {...props} />;
  if (rows.loading || rows.error) return null;
  if (isFiltered(state)) {
    return (
      <EmptyState
        title="No matching results"
        actions={<Button onClick={() => onChange(NO_FILTER)}>Clear filters</Button>}
      />
    );
  }
  return (
    <EmptyState title="No results yet">
      {isInProgress(run.status)
        ? "Results appear here as responses arrive."
        : "This run ended before the first response. Resume it to continue."}
    </EmptyState>
  );
}

/** A virtualised table: only visible rows are in the document. */
function Grid({ run, graders, rows, state, onChange }: Props) {
  const [height, setHeight] = useLocalStorage<Height>("gradeline.rows", ["low", "medium", "high"], "medium");
  const narrow = useMediaQuery("(max-width: 760px)");
  const scroller = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState(-1);
  const repeated = (run.repeats ?? 1) > 1;
  const names = graders.join("\n");
  const columns = useMemo(() => columnsFor(names === "" ? [] : names.split("\n"), repeated), [names, repeated]);
  const visibility = useMemo(() => ({ expected: !narrow, latency: !narrow }), [narrow]);
  const table = useTable({
    features,
    columns,
    data: rows.rows as Result[],
    getRowId: (result) => result.result_id,
    state: { columnVisibility: visibility },
  });
  const models = table.getRowModel().rows;
  const { px, lines } = HEIGHTS[height];
  const virtual = useVirtualizer({
    count: models.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => px,
    overscan: 8,
  });
  useEffect(() => virtual.measure(), [px, virtual]);
  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? 0;
  const { loadMore, more } = rows;
  useEffect(() => {
    if (more && last >= models.length - LOAD_AHEAD) loadMore();
  }, [more, last, models.length, loadMore]);

  const move = (step: number) => {
    const next = Math.min(models.length - 1, Math.max(0, at + step));
    setAt(next);
    virtual.scrollToIndex(next);
    requestAnimationFrame(() => scroller.current?.querySelector<HTMLElement>(`[data-index="${next}"]`)?.focus());
  };
  useShortcuts({ j: () => move(1), k: () => move(-1) });

  const template = {
    gridTemplateColumns: table
      .getVisibleLeafColumns()
      .map((column) => widthOf(column.id))
      .join(" "),
  };
  return (
    <div>
      {/* focusable, so that it scrolls by keyboard too */}
      <div
        ref={scroller}
        tabIndex={0}
        role="table"
        aria-label="Results"
        aria-rowcount={rows.more ? -1 : models.length + 1}
        className="card max-h-[75vh] min-h-40 overflow-auto text-sm"
        style={{ "--lines": lines }}
      >
        <div className="sticky top-0 z-10 min-w-fit border-b border-line bg-surface text-muted" role="rowgroup">
          <div role="row" aria-rowindex={1} className="grid" style={template}>
            {table.getHeaderGroups().flatMap((group) =>
              group.headers.map((header) => (
                <div key={header.id} role="columnheader" className="truncate p-2 font-semibold">
                  <table.FlexRender header={header} />
                </div>
              )),
            )}
          </div>
        </div>
        <div role="rowgroup" className="relative min-w-fit" style={{ height: virtual.getTotalSize() }}>
          {items.map((item) => {
            const row = models[item.index];
            if (row === undefined) return null;
            const open = () => onChange({ row: row.id });
            return (
              <div
                key={row.id}
                role="row"
                aria-rowindex={item.index + 2}
                data-index={item.index}
                tabIndex={0}
                onClick={open}
                onKeyDown={(event) => {
                  if (event.key === "Enter") open();
                }}
                onFocus={() => setAt(item.index)}
                className={`absolute inset-x-0 top-0 grid cursor-pointer overflow-hidden border-b border-line outline-offset-[-2px] hover:bg-raised ${state.row === row.id ? "bg-accent-soft" : ""}`}
                style={{ ...template, height: item.size, transform: `translateY(${item.start}px)` }}
              >
                {row.getVisibleCells().map((cell) => (
                  <div key={cell.id} role="cell" className="min-w-0 overflow-hidden p-2">
                    <table.FlexRender cell={cell} />
                  </div>
                ))}
              </div>
            );
          })}
        </div>
      </div>
      <div className="flex flex-wrap items-center justify-between gap-2 py-1 text-xs text-muted">
        <span>{rows.loading ? "Loading…" : rows.more ? "Scroll to load more" : "All results loaded"}</span>
        <label className="flex items-center gap-1">
          Row height
          <select
            className="rounded border border-line bg-surface px-1 py-0.5"
            value={height}
            onChange={(event) => setHeight(event.target.value as Height)}
          >
            <option value="low">low</option>
            <option value="medium">medium</option>
            <option value="high">high</option>
          </select>
        </label>
      </div>
    </div>
  );
}

const features = tableFeatures({ columnVisibilityFeature });
const helper = createColumnHelper<typeof features, Result>();

/** The columns of the grid: the case, the response, and one per grader. */
function columnsFor(graders: readonly string[], repeated: boolean) {
  return helper.columns([
    helper.display({
      id: "input",
      header: "Input",
      cell: ({ row }) => <InputCell result={row.original} repeated={repeated} />,
    }),
    helper.display({
      id: "expected",
      header: "Expected output",
      cell: ({ row }) => <ClampedText text={row.original.test_case_expected ?? ""} />,
    }),
    helper.display({ id: "response", header: "Response", cell: ({ row }) => <ResponseCell result={row.original} /> }),
    ...graders.map((grader) =>
      helper.display({
        id: `grader ${grader}`,
        header: visibleText(grader),
        cell: ({ row }) => <GradeCell score={row.original.scores.find((one) => one.grader_id === grader)} />,
      }),
    ),
    helper.display({
      id: "latency",
      header: "Latency",
      cell: ({ row }) => <span className="num text-muted">{formatDuration(row.original.response_latency_ms)}</span>,
    }),
  ]);
}

/** Column widths for CSS grid. */
function widthOf(id: string): string {
  if (id === "input") return "minmax(9rem, 2fr)";
  if (id === "response") return "minmax(9rem, 3fr)";
  if (id === "expected") return "minmax(7rem, 2fr)";
  return id === "latency" ? "5rem" : "minmax(4.5rem, 7rem)";
}

function InputCell({ result, repeated }: { result: Result; repeated: boolean }) {
  return (
    <>
      <ClampedText text={result.test_case_input} />
      {repeated && <span className="num text-xs text-muted">repeat {result.repeat}</span>}
    </>
  );
}

function ResponseCell({ result }: { result: Result }) {
  if (result.response_status === "success") return <ClampedText text={result.agent_response ?? ""} />;
  return (
    <span className="flex min-w-0 flex-col items-start gap-0.5">
      <ResponseBadge status={result.response_status} />
      <ClampedText text={result.error_message ?? ""} />
    </span>
  );
}

function GradeCell({ score }: { score: Score | undefined }) {
  if (score === undefined) return <span className="text-muted">…</span>;
  return (
    <span title={visibleText(score.rationale ?? score.error_message ?? "")}>
      <ScoreBadge grade={score} />
    </span>
  );
}

const MAX_CELL_TEXT = 400;

/** Cells show the start of a text; the drawer shows all of it. */
function ClampedText({ text }: { text: string }) {
  return (
    <SafeText
      text={text.length > MAX_CELL_TEXT ? text.slice(0, MAX_CELL_TEXT) : text}
      className="line-clamp-(--lines)"
    />
  );
}
