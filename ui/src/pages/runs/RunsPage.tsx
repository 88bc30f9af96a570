import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { api } from "../../api/calls.ts";
import type { Evaluation, RunStatus } from "../../api/types.ts";
import { useKeys } from "../../app/keys.ts";
import { useRowKeys } from "../../app/rows.ts";
import { useTitle } from "../../app/useTitle.ts";
import { ago, between, count, moment } from "../../lib/format.ts";
import { isGoing } from "../../lib/progress.ts";
import { agentOf, gradersOf } from "../../lib/runFacts.ts";
import { integer, list, oneOf, text } from "../../lib/urlState.ts";
import { useUrlState } from "../../lib/useUrlState.ts";
import { visibleText } from "../../lib/visible.ts";
import { RunBadge } from "../../parts/Badge.tsx";
import { Button, LinkButton } from "../../parts/Button.tsx";
import { Empty, Failure, Loading } from "../../parts/Notice.tsx";
import { Pager } from "../../parts/Pager.tsx";
import { SafeText } from "../../parts/SafeText.tsx";
import { SearchBox } from "../../parts/SearchBox.tsx";
import { CompareBar } from "./CompareBar.tsx";
import { PassRates } from "./PassRates.tsx";
import { PAIR, toggled } from "./selection.ts";

const SIZE = 50;
const LIVE_MS = 3_000;
const STATUSES = ["", "running", "pending", "completed", "failed", "cancelled", "interrupted"] as const;
const STATE = {
  q: text(),
  tag: text(),
  status: oneOf<RunStatus | "">(STATUSES, ""),
  page: integer(1, 1),
  /** The runs that are chosen to be compared. */
  sel: list(),
};

export function RunsPage() {
  useTitle("Runs");
  useRowKeys();
  const [state, change] = useUrlState(STATE);
  const query = { q: state.q, tag: state.tag, status: state.status, limit: SIZE, skip: (state.page - 1) * SIZE };
  const runs = useQuery({
    queryKey: ["runs", query],
    queryFn: ({ signal }) => api.runs(query, signal),
    placeholderData: keepPreviousData,
    // a list has no stream: it is asked for again while something in it moves
    refetchInterval: ({ state: { data } }) => (data?.evaluations.some((run) => isGoing(run.status)) ? LIVE_MS : false),
  });
  const chosen = state.sel.slice(0, PAIR);
  const toggle = (id: string) => change({ sel: toggled(chosen, id) }, { replace: true });
  useKeys({
    x: () => {
      const id = document.activeElement?.closest<HTMLElement>("[data-run]")?.dataset["run"];
      if (id !== undefined) toggle(id);
    },
  });
  const filtered = state.q !== "" || state.tag !== "" || state.status !== "";
  return (
    <div className="flex flex-col gap-3">
      <div className="flex flex-wrap items-center gap-2">
        <h1 className="mr-auto text-xl font-semibold">Runs</h1>
        <LinkButton look="main" to="/new">
          New evaluation
        </LinkButton>
      </div>
      <div className="flex flex-wrap items-center gap-2">
        <SearchBox label="Search runs" value={state.q} onSearch={(q) => change({ q, page: 1 }, { replace: true })} />
        <select
          className="field max-w-44"
          aria-label="Status"
          value={state.status}
          onChange={(event) => change({ status: event.target.value as RunStatus | "", page: 1 })}
        >
          {STATUSES.map((status) => (
            <option key={status} value={status}>
              {status || "any status"}
            </option>
          ))}
        </select>
        {state.tag && (
          <Button onClick={() => change({ tag: "", page: 1 })} aria-label={`No longer only tag ${state.tag}`}>
            tag: {state.tag} ✕
          </Button>
        )}
      </div>
      {runs.error && <Failure error={runs.error} onRetry={() => void runs.refetch()} />}
      {runs.isPending && <Loading />}
      <CompareBar
        chosen={chosen}
        listed={runs.data?.evaluations ?? []}
        onClear={() => change({ sel: [] }, { replace: true })}
      />
      {runs.data && runs.data.evaluations.length > 0 && (
        <RunTable runs={runs.data.evaluations} chosen={chosen} onToggle={toggle} />
      )}
      {runs.data &&
        runs.data.evaluations.length === 0 &&
        (filtered ? <NoMatch onClear={() => change({ q: "", tag: "", status: "", page: 1 })} /> : <NoRuns />)}
      {runs.data && runs.data.total > 0 && (
        <Pager page={state.page} size={SIZE} shown={runs.data} onPage={(page) => change({ page })} />
      )}
    </div>
  );
}

function NoMatch({ onClear }: { onClear: () => void }) {
  return <Empty title="No run fits this search" actions={<Button onClick={onClear}>Show all runs</Button>} />;
}

function NoRuns() {
  return (
    <Empty
      title="No runs yet"
      actions={
        <>
          <LinkButton look="main" to="/new">
            Start an evaluation
          </LinkButton>
          <LinkButton to="/cases">Write test cases</LinkButton>
        </>
      }
    >
      <p>A run asks your agent every test case and grades the answers.</p>
      <p className="mt-2">
        Or from a terminal:{" "}
        <code className="rounded bg-raised px-1.5 py-0.5 font-mono text-sm">gradeline run suite.yaml</code>; runs of the
        same store show here.
      </p>
    </Empty>
  );
}

interface Choosing {
  chosen: readonly string[];
  onToggle: (id: string) => void;
}

function RunTable({ runs, ...choosing }: { runs: readonly Evaluation[] } & Choosing) {
  return (
    <div className="card overflow-x-auto">
      <table className="w-full text-sm">
        <thead className="border-b border-line text-muted">
          <tr>
            <th className="w-8 p-2">
              <span className="sr-only">Chosen</span>
            </th>
            <th className="p-2">Run</th>
            <th className="p-2">Status</th>
            <th className="hidden p-2 text-end sm:table-cell">Results</th>
            <th className="hidden p-2 sm:table-cell">Pass rate</th>
            <th className="hidden p-2 lg:table-cell">Agent</th>
            <th className="hidden p-2 lg:table-cell">Graders</th>
            <th className="hidden p-2 md:table-cell">Took</th>
            <th className="p-2">Started</th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run) => (
            <Row key={run.id} run={run} {...choosing} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ run, chosen, onToggle }: { run: Evaluation } & Choosing) {
  const isChosen = chosen.includes(run.id);
  const full = chosen.length >= PAIR && !isChosen;
  return (
    <tr
      data-run={run.id}
      className={`border-b border-line last:border-0 hover:bg-raised ${isChosen ? "bg-accent-soft" : ""}`}
    >
      <td className="p-0 align-middle">
        <label
          className="grid min-h-11 place-items-center px-2"
          title={full ? "Two runs are chosen already" : undefined}
        >
          <input
            type="checkbox"
            className="size-4"
            aria-label={`Choose ${visibleText(run.name || run.id.slice(0, 8))} to compare`}
            checked={isChosen}
            disabled={full}
            onChange={() => onToggle(run.id)}
          />
        </label>
      </td>
      <td className="max-w-72 min-w-32 p-2">
        <Link data-row to={`/runs/${encodeURIComponent(run.id)}`} className="font-medium text-accent hover:underline">
          <SafeText text={run.name || run.id.slice(0, 8)} className="line-clamp-2" />
        </Link>
        {run.parent && <span className="text-xs text-muted">regrades {run.parent.slice(0, 8)}</span>}
        <div className="sm:hidden">
          <PassRates run={run} />
        </div>
      </td>
      <td className="p-2">
        <RunBadge status={run.status} reason={run.error_message} />
        {run.error_message && (
          <p className="line-clamp-2 max-w-48 text-xs text-muted">
            <SafeText text={run.error_message} />
          </p>
        )}
      </td>
      <td className="num hidden p-2 text-end sm:table-cell">{count(run.result_count)}</td>
      <td className="hidden max-w-56 p-2 sm:table-cell">
        <PassRates run={run} />
      </td>
      <td className="hidden max-w-64 p-2 lg:table-cell">
        <SafeText text={agentOf(run)} className="line-clamp-1 text-muted" />
      </td>
      <td className="hidden max-w-56 p-2 lg:table-cell">
        <SafeText text={gradersOf(run)} className="line-clamp-1 text-muted" />
      </td>
      <td className="num hidden p-2 text-muted md:table-cell">{took(run)}</td>
      <td className="num p-2 text-muted" title={moment(run.started_at)}>
        {ago(run.started_at)}
      </td>
    </tr>
  );
}

function took(run: Evaluation): string {
  if (!run.started_at || !run.completed_at) return "–";
  return between(run.started_at, run.completed_at);
}
