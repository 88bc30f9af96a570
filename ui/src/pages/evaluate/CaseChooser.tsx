import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useId, useState } from "react";
import { Link } from "react-router";
import { api } from "../../api/client.ts";
import { ErrorNotice } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { SearchBox } from "../../components/SearchBox.tsx";
import { Tags } from "../../components/Tags.tsx";
import { formatCount, pluralize } from "../../lib/format.ts";
import type { Draft } from "./draft.ts";

const MAX_CASES = 1000;
const MAX_SHOWN = 100;

/** The number of cases and their tags; tags come from the first thousand cases. */
export function useCaseStats() {
  return useQuery({
    queryKey: ["cases", "sample"],
    queryFn: async ({ signal }) => {
      const page = await api.cases({ limit: MAX_CASES }, signal);
      const tags = new Map<string, number>();
      for (const tag of page.test_cases.flatMap((one) => one.tags)) tags.set(tag, (tags.get(tag) ?? 0) + 1);
      return { total: page.total, complete: page.next_cursor === null, tags };
    },
  });
}

type CaseSelection = Pick<Draft, "by" | "tag" | "ids">;

export function CaseChooser({
  chosen,
  onChange,
  problem,
}: {
  chosen: CaseSelection;
  onChange: (chosen: Partial<CaseSelection>) => void;
  problem: string | undefined;
}) {
  const sample = useCaseStats();
  const tags = useId();
  const total = sample.data?.total ?? null;
  return (
    <fieldset className="flex flex-col gap-2">
      <legend className="sr-only">Cases</legend>
      {total === 0 && (
        <p className="rounded-md bg-warn-soft p-3 text-sm text-warn">
          There are no test cases yet.{" "}
          <Link className="underline" to="/cases?open=new">
            Create one
          </Link>{" "}
          or{" "}
          <Link className="underline" to="/cases?open=import">
            import a file
          </Link>{" "}
          first.
        </p>
      )}
      <CaseOption
        checked={chosen.by === "all"}
        onChoose={() => onChange({ by: "all" })}
        label={`All cases${total === null ? "" : ` (${formatCount(total)})`}`}
      />
      <CaseOption checked={chosen.by === "tag"} onChoose={() => onChange({ by: "tag" })} label="Cases with a tag" />
      {chosen.by === "tag" && (
        <div className="ml-6 flex flex-wrap items-center gap-2">
          <input
            className="field max-w-64"
            list={tags}
            aria-label="Tag"
            aria-invalid={problem !== undefined}
            placeholder="Tag"
            value={chosen.tag}
            onChange={(event) => onChange({ tag: event.target.value })}
          />
          <datalist id={tags}>
            {[...(sample.data?.tags.keys() ?? [])].map((tag) => (
              <option key={tag} value={tag} />
            ))}
          </datalist>
          <Tags tags={[...(sample.data?.tags.keys() ?? [])].slice(0, 12)} onChoose={(tag) => onChange({ tag })} />
        </div>
      )}
      <CaseOption
        checked={chosen.by === "ids"}
        onChoose={() => onChange({ by: "ids" })}
        label={`Selected cases${chosen.ids.length > 0 ? ` (${formatCount(chosen.ids.length)})` : ""}`}
      />
      {chosen.by === "ids" && <CasePicker ids={chosen.ids} onChange={(ids) => onChange({ ids })} />}
      {problem && <p className="text-xs font-medium text-fail">{problem}</p>}
    </fieldset>
  );
}

function CaseOption({ checked, onChoose, label }: { checked: boolean; onChoose: () => void; label: string }) {
  return (
    <label className="flex items-center gap-2 text-sm">
      <input type="radio" name="cases-by" checked={checked} onChange={onChoose} />
      {label}
    </label>
  );
}

function CasePicker({ ids, onChange }: { ids: readonly string[]; onChange: (ids: readonly string[]) => void }) {
  const [q, setQ] = useState("");
  const found = useQuery({
    queryKey: ["cases", { q, limit: MAX_SHOWN }],
    queryFn: ({ signal }) => api.cases({ q, limit: MAX_SHOWN }, signal),
    placeholderData: keepPreviousData,
  });
  const chosen = new Set(ids);
  return (
    <div className="ml-6 flex flex-col gap-2">
      <SearchBox label="Search cases" value={q} onSearch={setQ} />
      {found.error && <ErrorNotice error={found.error} />}
      <ul aria-label="Available cases" className="max-h-64 overflow-auto rounded-md border border-line">
        {found.data?.test_cases.map((one) => (
          <li key={one.id} className="border-b border-line last:border-0">
            <label className="flex items-start gap-2 p-2 text-sm hover:bg-raised">
              <input
                type="checkbox"
                className="mt-1"
                checked={chosen.has(one.id)}
                onChange={() => onChange(chosen.has(one.id) ? ids.filter((id) => id !== one.id) : [...ids, one.id])}
              />
              <SafeText text={one.input} className="line-clamp-2 min-w-0 flex-1" />
              <Tags tags={one.tags} />
            </label>
          </li>
        ))}
      </ul>
      <p className="text-xs text-muted">
        {pluralize(ids.length, "case")} selected{found.data?.next_cursor && `; showing the first ${MAX_SHOWN} matches`}
      </p>
    </div>
  );
}
