import { columnVisibilityFeature, createColumnHelper, tableFeatures } from "@tanstack/react-table";
import type { Result, Score } from "../../api/types.ts";
import { duration, score } from "../../lib/format.ts";
import { visibleText } from "../../lib/visible.ts";
import { OutcomeBadge, ResponseBadge } from "../../parts/Badge.tsx";
import { SafeText } from "../../parts/SafeText.tsx";

export const features = tableFeatures({ columnVisibilityFeature });
const helper = createColumnHelper<typeof features, Result>();

/** The columns of the grid: the case, the answer, and one for each grader. */
export function columnsFor(graders: readonly string[], repeated: boolean) {
  return helper.columns([
    helper.display({
      id: "input",
      header: "Input",
      cell: ({ row }) => <Case result={row.original} repeated={repeated} />,
    }),
    helper.display({
      id: "expected",
      header: "Expected",
      cell: ({ row }) => <Clamped text={row.original.test_case_expected ?? ""} />,
    }),
    helper.display({ id: "output", header: "Output", cell: ({ row }) => <Output result={row.original} /> }),
    ...graders.map((grader) =>
      helper.display({
        id: `grader ${grader}`,
        header: visibleText(grader),
        cell: ({ row }) => <Verdict score={row.original.scores.find((one) => one.grader_id === grader)} />,
      }),
    ),
    helper.display({
      id: "latency",
      header: "Latency",
      cell: ({ row }) => <span className="num text-muted">{duration(row.original.response_latency_ms)}</span>,
    }),
  ]);
}

/** How wide each column is, for CSS grid. */
export function widthOf(id: string): string {
  if (id === "input") return "minmax(9rem, 2fr)";
  if (id === "output") return "minmax(9rem, 3fr)";
  if (id === "expected") return "minmax(7rem, 2fr)";
  return id === "latency" ? "5rem" : "minmax(4.5rem, 7rem)";
}

function Case({ result, repeated }: { result: Result; repeated: boolean }) {
  return (
    <>
      <Clamped text={result.test_case_input} />
      {repeated && <span className="num text-xs text-muted">repeat {result.repeat}</span>}
    </>
  );
}

function Output({ result }: { result: Result }) {
  if (result.response_status === "success") return <Clamped text={result.agent_response ?? ""} />;
  return (
    <span className="flex min-w-0 flex-col items-start gap-0.5">
      <ResponseBadge status={result.response_status} />
      <Clamped text={result.error_message ?? ""} />
    </span>
  );
}

function Verdict({ score: given }: { score: Score | undefined }) {
  if (given === undefined) return <span className="text-muted">…</span>;
  const shown = given.score_value === null ? given.score_status : score(given.score_value);
  return (
    <span title={visibleText(given.rationale ?? given.error_message ?? "")}>
      <OutcomeBadge outcome={given.score_status} score={shown} />
    </span>
  );
}

const SHOWN = 400;

/** A cell shows the beginning; the drawer has the rest. */
function Clamped({ text }: { text: string }) {
  return <SafeText text={text.length > SHOWN ? text.slice(0, SHOWN) : text} className="line-clamp-(--lines)" />;
}
