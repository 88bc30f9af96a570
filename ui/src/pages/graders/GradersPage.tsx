import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { graderApi } from "../../api/client.ts";
import type { Grader } from "../../api/types.ts";
import { useRowNavigation } from "../../app/shortcuts.tsx";
import { Badge } from "../../components/Badge.tsx";
import { Button, LinkButton } from "../../components/Button.tsx";
import { EmptyState, ErrorNotice, Loading } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { SearchBox } from "../../components/SearchBox.tsx";
import { formatCount } from "../../lib/format.ts";
import { usePageTitle } from "../../lib/hooks.ts";
import { useUrlState } from "../../lib/urlState.ts";
import { FAMILIES, type Family, familyOf, LIST_STATE } from "./families.ts";

export function GradersPage() {
  usePageTitle("Graders");
  useRowNavigation();
  const [state, change] = useUrlState(LIST_STATE);
  const graders = useQuery({ queryKey: ["graders"], queryFn: ({ signal }) => graderApi.all(signal) });
  const shown = (graders.data ?? []).filter((grader) => matchesFilter(grader, state));
  return (
    <div className="flex flex-col gap-3">
      <div className="flex flex-wrap items-center gap-2">
        <h1 className="mr-auto text-xl font-semibold">Graders</h1>
        <LinkButton to="/graders/new?type=model_judge">New judge</LinkButton>
        <LinkButton variant="primary" to="/graders/new?type=custom-rules">
          New rules grader
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
          <option value="">Any family</option>
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
          Only custom graders
        </label>
        {graders.data && (
          <span role="status" className="num ml-auto text-sm text-muted">
            {formatCount(shown.length)} of {formatCount(graders.data.length)}
          </span>
        )}
      </div>
      {graders.error && <ErrorNotice error={graders.error} onRetry={() => void graders.refetch()} />}
      {graders.isPending && <Loading />}
      {shown.length > 0 && <GraderList graders={shown} />}
      {graders.data && shown.length === 0 && (
        <EmptyState
          title={
            state.own === "on" && state.q === "" && state.family === ""
              ? "No custom graders yet"
              : "No matching graders"
          }
          actions={<Button onClick={() => change({ q: "", family: "", own: "off" })}>Show all graders</Button>}
        >
          Rules check responses without a model; a judge calls a model. Create either here and preview it on real
          results before you save it.
        </EmptyState>
      )}
    </div>
  );
}

function matchesFilter(grader: Grader, { q, family, own }: { q: string; family: string; own: string }): boolean {
  if (family !== "" && familyOf(grader) !== family) return false;
  if (own === "on" && grader.source === "built-in") return false;
  const text = `${grader.id} ${grader.name} ${grader.description ?? ""} ${grader.type}`.toLowerCase();
  return q
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

function GraderList({ graders }: { graders: readonly Grader[] }) {
  return (
    <div className="card overflow-x-auto">
      <table className="w-full text-sm">
        <thead className="border-b border-line text-muted">
          <tr>
            <th className="p-2">Grader</th>
            <th className="hidden p-2 sm:table-cell">Family</th>
            <th className="hidden p-2 md:table-cell">Description</th>
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
  if (grader.status === "error") return <Badge tone="bad">unavailable</Badge>;
  if (grader.status === "deleted") return <Badge tone="none">deleted</Badge>;
  return (
    <Badge tone={grader.source === "stored" ? "accent" : "none"}>
      {grader.source === "stored" ? "custom" : grader.source}
    </Badge>
  );
}
