import { useQuery } from "@tanstack/react-query";
import { graderApi } from "../../api/client.ts";
import type { Grader } from "../../api/types.ts";
import { Badge } from "../../components/Badge.tsx";
import { DiffText } from "../../components/DiffText.tsx";
import { ErrorNotice, Loading } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { formatDateTime } from "../../lib/format.ts";
import { configOf } from "./draft.ts";

interface Props {
  grader: Grader;
  /** 0: the latest version. */
  version: number;
  /** 0: the version before. */
  against: number;
  onChange: (change: { version?: number; against?: number }) => void;
}

/** Compares two versions of a grader. Versions are never deleted. */
export function GraderVersions({ grader, version, against, onChange }: Props) {
  const shown = Math.min(version || grader.version, grader.version);
  const other = against > 0 && against <= grader.version ? against : Math.max(1, shown - 1);
  const now = useVersion(grader.id, shown);
  const before = useVersion(grader.id, other);
  const error = now.error ?? before.error;
  const all = Array.from({ length: grader.version }, (_, index) => grader.version - index);
  if (grader.source !== "stored")
    return (
      <p className="text-sm text-muted">
        Only custom graders have versions; this one is built in or comes from the operator's grader folder.
      </p>
    );
  return (
    <div className="flex flex-col gap-3">
      <div className="flex flex-wrap items-end gap-3 text-sm">
        <VersionSelect label="Version" value={shown} versions={all} onChange={(next) => onChange({ version: next })} />
        <VersionSelect
          label="Compared with"
          value={other}
          versions={all}
          onChange={(next) => onChange({ against: next })}
        />
      </div>
      {error && <ErrorNotice error={error} />}
      {now.data && before.data ? <VersionDiff now={now.data} before={before.data} /> : !error && <Loading />}
    </div>
  );
}

function VersionSelect({
  label,
  value,
  versions,
  onChange,
}: {
  label: string;
  value: number;
  versions: readonly number[];
  onChange: (version: number) => void;
}) {
  return (
    <label className="flex items-center gap-2 whitespace-nowrap">
      {label}
      <select className="field max-w-28" value={value} onChange={(event) => onChange(Number(event.target.value))}>
        {versions.map((version) => (
          <option key={version} value={version}>
            {version}
          </option>
        ))}
      </select>
    </label>
  );
}

function useVersion(id: string, version: number) {
  return useQuery({
    queryKey: ["grader", id, version],
    queryFn: ({ signal }) => graderApi.version(id, version, signal),
    staleTime: Number.POSITIVE_INFINITY,
  });
}

function VersionDiff({ now, before }: { now: Grader; before: Grader }) {
  const same = now.fingerprint === before.fingerprint;
  return (
    <>
      <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-1 text-sm">
        <dt className="text-muted">Saved</dt>
        <dd>{formatDateTime(now.modified_at)}</dd>
        <dt className="text-muted">Name</dt>
        <dd>
          <SafeText text={now.name} />
        </dd>
        <dt className="text-muted">Fingerprint</dt>
        <dd className="flex flex-wrap items-center gap-2">
          <code className="text-xs">{now.fingerprint.slice(0, 16)}</code>
          {now.version !== before.version && (
            <Badge tone={same ? "good" : "open"}>{same ? "same fingerprint" : "different fingerprint"}</Badge>
          )}
        </dd>
      </dl>
      <DiffText
        before={definitionText(before)}
        after={definitionText(now)}
        label={`Version ${before.version} against version ${now.version}`}
      />
    </>
  );
}

function definitionText(grader: Grader): string {
  return JSON.stringify(
    { name: grader.name, description: grader.description, type: grader.type, config: configOf(grader) },
    null,
    2,
  );
}
