import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import type { Grader } from "../../api/types.ts";
import { useRowKeys } from "../../app/rows.ts";
import { useTitle } from "../../app/useTitle.ts";
import { count } from "../../lib/format.ts";
import { useUrlState } from "../../lib/useUrlState.ts";
import { Badge } from "../../parts/Badge.tsx";
import { Button, LinkButton } from "../../parts/Button.tsx";
import { Empty, Failure, Loading } from "../../parts/Notice.tsx";
import { SafeText } from "../../parts/SafeText.tsx";
import { SearchBox } from "../../parts/SearchBox.tsx";
import { graderCalls } from "./calls.ts";
import { FAMILIES, familyOf, type Family } from "./kinds.ts";
import { LIST_STATE } from "./state.ts";

export function GradersPage() {
  useTitle("Graders");
  useRowKeys();
  const [state, change] = useUrlState(LIST_STATE);
  const graders = useQuery({ queryKey: ["graders"], queryFn: ({ signal }) => graderCalls.all(signal) });
  const shown = (graders.data ?? []).filter((grader) => fits(grader, state));
  return (
    <div className="flex flex-col gap-3">
      <div className="flex flex-wrap items-center gap-2">
        <h1 className="mr-auto text-xl font-semibold">Graders</h1>
        <LinkButton to="/graders/new?type=model_judge">New judge</LinkButton>
        <LinkButton look="main" to="/graders/new?type=custom-rules">
          New rules
        </LinkButton>
      </div>
      <div className="flex flex-wrap items-center gap-2">
        <SearchBox label="Search graders" value={state.q} onSearch={(q) => change({ q }, { replace: true })} />
        <select
          className="field max-w-44"
          aria-label="Family"
          value={state.family}
          onChange={(event) => change({ family: event.target.value as Family | "" })}
        >
          <option value="">any family</option>
          {Object.entries(FAMILIES).map(([family, title]) => (
            <option key={family} value={family}>
              {title}
            </option>
          ))}
        </select>
        <label className="flex items-center gap-1.5 text-sm">
          <input
            type="checkbox"
            checked={state.own === "on"}
            onChange={(event) => change({ own: event.target.checked ? "on" : "off" })}
          />
          only your own
        </label>
        {graders.data && (
          <span role="status" className="num ml-auto text-sm text-muted">
            {count(shown.length)} of {count(graders.data.length)}
          </span>
        )}
      </div>
      {graders.error && <Failure error={graders.error} onRetry={() => void graders.refetch()} />}
      {graders.isPending && <Loading />}
      {shown.length > 0 && <Table graders={shown} />}
      {graders.data && shown.length === 0 && (
        <Empty
          title={
            state.own === "on" && state.q === "" && state.family === ""
              ? "No graders of your own yet"
              : "No grader fits this search"
          }
          actions={<Button onClick={() => change({ q: "", family: "", own: "off" })}>Show all graders</Button>}
        >
          Rules check answers without any model; a judge asks a model. Write either here, and try it on real results
          before it is saved.
        </Empty>
      )}
    </div>
  );
}

function fits(grader: Grader, { q, family, own }: { q: string; family: string; own: string }): boolean {
  if (family !== "" && familyOf(grader) !== family) return false;
  if (own === "on" && grader.source === "built-in") return false;
  const text = `${grader.id} ${grader.name} ${grader.description ?? ""} ${grader.type}`.toLowerCase();
  return q
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

function Table({ graders }: { graders: readonly Grader[] }) {
  return (
    <div className="card overflow-x-auto">
      <table className="w-full text-sm">
        <thead className="border-b border-line text-muted">
          <tr>
            <th className="p-2">Grader</th>
            <th className="hidden p-2 sm:table-cell">Family</th>
            <th className="hidden p-2 md:table-cell">What it does</th>
            <th className="p-2">Source</th>
            <th className="p-2 text-end">Version</th>
          </tr>
        </thead>
        <tbody>
          {graders.map((grader) => (
            <tr key={grader.id} className="border-b border-line last:border-0 hover:bg-raised">
              <td className="max-w-64 min-w-32 p-2">
                <Link
                  data-row
                  to={`/graders/${encodeURIComponent(grader.id)}`}
                  className="font-medium text-accent hover:underline"
                >
                  <SafeText text={grader.name} />
                </Link>
                <span className="block truncate font-mono text-xs text-muted">{grader.id}</span>
              </td>
              <td className="hidden p-2 whitespace-nowrap sm:table-cell">{FAMILIES[familyOf(grader)]}</td>
              <td className="hidden p-2 text-muted md:table-cell">
                <SafeText text={grader.description ?? ""} className="line-clamp-2" />
              </td>
              <td className="p-2">
                <SourceBadge grader={grader} />
              </td>
              <td className="num p-2 text-end">{grader.version}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function SourceBadge({ grader }: { grader: Grader }) {
  if (grader.status === "error") return <Badge tone="bad">cannot be used</Badge>;
  if (grader.status === "deleted") return <Badge tone="none">deleted</Badge>;
  return (
    <Badge tone={grader.source === "stored" ? "accent" : "none"}>
      {grader.source === "stored" ? "your own" : grader.source}
    </Badge>
  );
}
