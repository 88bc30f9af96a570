import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { api } from "../../api/client.ts";
import type { Evaluation, RunStatus } from "../../api/types.ts";
import { useRowNavigation, useShortcuts } from "../../app/shortcuts.tsx";
import { RunBadge } from "../../components/Badge.tsx";
import { Button, LinkButton } from "../../components/Button.tsx";
import { EmptyState, ErrorNotice, Loading } from "../../components/Notice.tsx";
import { Pager } from "../../components/Pager.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { SearchBox } from "../../components/SearchBox.tsx";
import { formatAgo, formatCount, formatDateTime, formatElapsed, formatPercent, formatRate } from "../../lib/format.ts";
import { usePageTitle } from "../../lib/hooks.ts";
import { graderNames, isInProgress, targetName, runTitle, variantName } from "../../lib/run.ts";
import { integer, list, oneOf, text, useUrlState } from "../../lib/urlState.ts";
import { BaselineBadge } from "../run/Baselines.tsx";
import { CompareBar, PAIR, toggleRun } from "./CompareBar.tsx";

const SIZE = 50;
const LIVE_MS = 3_000;
const STATUSES = ["", "running", "pending", "completed", "failed", "cancelled", "interrupted"] as const;
const STATE = {
  q: text(),
  tag: text(),
  status: oneOf<RunStatus | "">(STATUSES, ""),
  page: integer(1, 1),
  /** The runs selected for a comparison. */
  sel: list(),
};

export function RunsPage() {
  usePageTitle("Runs");
  useRowNavigation();
  const [state, change] = useUrlState(STATE);
  const query = { q: state.q, tag: state.tag, status: state.status, limit: SIZE, skip: (state.page - 1) * SIZE };
  const runs = useQuery({
    queryKey: ["runs", query],
    queryFn: ({ signal }) => api.runs(query, signal),
    placeholderData: keepPreviousData,
    // the list has no event stream: poll while a run is in progress
    refetchInterval: ({ state: { data } }) =>
      data?.evaluations.some((run) => isInProgress(run.status)) ? LIVE_MS : false,
  });
  const chosen = state.sel.slice(0, PAIR);
  const toggle = (id: string) => change({ sel: toggleRun(chosen, id) }, { replace: true });
  useShortcuts({
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
        <LinkButton variant="primary" to="/new">
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
              {status || "Any status"}
            </option>
          ))}
        </select>
        {state.tag && (
          <Button onClick={() => change({ tag: "", page: 1 })} aria-label={`Remove filter: tag ${state.tag}`}>
            tag: {state.tag} ✕
          </Button>
        )}
      </div>
      {runs.error && <ErrorNotice error={runs.error} onRetry={() => void runs.refetch()} />}
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
  return <EmptyState title="No matching runs" actions={<Button onClick={onClear}>Show all runs</Button>} />;
}

function NoRuns() {
  return (
    <EmptyState
      title="No runs yet"
      actions={
        <>
          <LinkButton variant="primary" to="/new">
            Start an evaluation
          </LinkButton>
          <LinkButton to="/cases">Create test cases</LinkButton>
        </>
      }
    >
      <p>A run sends every test case to your agent and grades the responses.</p>
      <p className="mt-2">
        Or in a terminal:{" "}
        <code className="rounded bg-raised px-1.5 py-0.5 font-mono text-sm">gradeline run suite.yaml</code>; runs in the
        same store appear here.
      </p>
    </EmptyState>
  );
}

interface RunSelection {
  chosen: readonly string[];
  onToggle: (id: string) => void;
}

function RunTable({ runs, ...choosing }: { runs: readonly Evaluation[] } & RunSelection) {
  return (
    <div className="card overflow-x-auto">
      <table className="w-full text-sm">
        <thead className="border-b border-line text-muted">
          <tr>
            <th className="w-8 p-2">
              <span className="sr-only">Selected</span>
            </th>
            <th className="p-2">Run</th>
            <th className="p-2">Status</th>
            <th className="hidden p-2 text-end sm:table-cell">Results</th>
            <th className="hidden p-2 sm:table-cell">Pass rate</th>
            <th className="hidden p-2 lg:table-cell">Agent</th>
            <th className="hidden p-2 lg:table-cell">Graders</th>
            <th className="hidden p-2 md:table-cell">Duration</th>
            <th className="p-2">Started</th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run) => (
            <RunRow key={run.id} run={run} {...choosing} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function RunRow({ run, chosen, onToggle }: { run: Evaluation } & RunSelection) {
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
          title={full ? "Two runs are already selected" : undefined}
        >
          <input
            type="checkbox"
            className="size-4"
            aria-label={`Select ${runTitle(run)} for comparison`}
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
        {variantName(run) && (
          <span className="text-xs text-muted" data-variant>
            variant <SafeText text={variantName(run)} />
          </span>
        )}
        {(run.baselines ?? []).map((name) => (
          <BaselineBadge key={name} name={name} prefix="baseline " />
        ))}
        {run.parent && <span className="text-xs text-muted">regrade of {run.parent.slice(0, 8)}</span>}
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
      <td className="num hidden p-2 text-end sm:table-cell">{formatCount(run.result_count)}</td>
      <td className="hidden max-w-56 p-2 sm:table-cell">
        <PassRates run={run} />
      </td>
      <td className="hidden max-w-64 p-2 lg:table-cell">
        <SafeText text={targetName(run)} className="line-clamp-1 text-muted" />
      </td>
      <td className="hidden max-w-56 p-2 lg:table-cell">
        <SafeText text={graderNames(run)} className="line-clamp-1 text-muted" />
      </td>
      <td className="num hidden p-2 text-muted md:table-cell">{elapsedText(run)}</td>
      <td className="num p-2 text-muted" title={formatDateTime(run.started_at)}>
        {formatAgo(run.started_at)}
      </td>
    </tr>
  );
}

function elapsedText(run: Evaluation): string {
  if (!run.started_at || !run.completed_at) return "–";
  return formatElapsed(run.started_at, run.completed_at);
}

const MAX_RATES = 3;

/** Pass rate and number of scores per grader; a grader without scores has no rate, which is not 0 %. */
function PassRates({ run }: { run: Evaluation }) {
  const rates = Object.entries(run.pass_rates ?? {});
  if (rates.every(([, figure]) => figure.scored === 0)) return <span className="text-muted">–</span>;
  return (
    <ul aria-label="Pass rates" className="flex flex-col">
      {rates.slice(0, MAX_RATES).map(([grader, figure]) => (
        <li
          key={grader}
          className="flex items-baseline gap-1.5"
          title={`${grader}: ${formatRate(figure)}; ${formatCount(figure.scored)} scores of ${formatCount(figure.total)} results`}
        >
          <span className="num font-medium whitespace-nowrap">{formatPercent(figure.value)}</span>
          <span className="num text-xs whitespace-nowrap text-muted">of {formatCount(figure.scored)}</span>
          {rates.length > 1 && <SafeText text={grader} className="line-clamp-1 min-w-0 text-xs text-muted" />}
        </li>
      ))}
      {rates.length > MAX_RATES && (
        <li className="text-xs text-muted">and {formatCount(rates.length - MAX_RATES)} more</li>
      )}
    </ul>
  );
}
