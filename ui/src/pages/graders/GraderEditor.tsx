import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { useNavigate } from "react-router";
import { api } from "../../api/calls.ts";
import type { Grader } from "../../api/types.ts";
import { fieldsOf } from "../../lib/schemaForm.ts";
import { Button, LinkButton } from "../../parts/Button.tsx";
import { Field } from "../../parts/Field.tsx";
import { Failure } from "../../parts/Notice.tsx";
import { SafeText } from "../../parts/SafeText.tsx";
import { toast } from "../../parts/toast.tsx";
import { graderCalls } from "./calls.ts";
import { ConfigEditor } from "./ConfigEditor.tsx";
import { changeOf, configFaults, definitionOf, draftFaults, serverFaults, type GraderDraft } from "./draft.ts";
import { asksModel, FAMILIES, familyOf } from "./kinds.ts";
import { PreviewPanel } from "./PreviewPanel.tsx";
import type { ChangePreview, PreviewState } from "./state.ts";

interface Props {
  /** The version that is being changed; null for a new grader. */
  before: Grader | null;
  first: GraderDraft;
  kinds: readonly Grader[];
  preview: PreviewState;
  onPreview: ChangePreview;
}

/** Somebody else saved a version in the meantime. */
class NewerVersion extends Error {
  constructor(readonly version: number) {
    super(`Version ${version} was saved while you were writing. Save again to put yours after it, or open it first.`);
  }
}

/** The definition on the left, what it says of real answers on the right. */
export function GraderEditor({ before, first, kinds, preview, onPreview }: Props) {
  const [draft, setDraft] = useState(first);
  const [tried, setTried] = useState(false);
  const kind = kinds.find((one) => one.id === draft.type);
  const fields = useMemo(() => (kind ? fieldsOf(kind.config_schema) : []), [kind]);
  const definition = useMemo(() => definitionOf(draft, fields), [draft, fields]);
  const change = before === null ? { changed: true, meaning: true } : changeOf(before, definition, fields);
  const save = useSave(before, draft.id, definition);
  const faults = draftFaults(draft, fields, before === null);
  const shown = { ...(tried ? faults : {}), ...serverFaults(save.error) };
  const fit = Object.keys(configFaults(faults)).length === 0;
  const put = (next: Partial<GraderDraft>) => {
    setDraft({ ...draft, ...next });
    if (save.error && !(save.error instanceof NewerVersion)) save.reset();
  };
  return (
    <div className="flex flex-col gap-4">
      <div className="flex flex-wrap items-center gap-2">
        <h1 className="mr-auto text-xl font-semibold">
          {before === null ? "New grader" : <SafeText text={`Edit ${before.name}`} />}
        </h1>
        <LinkButton to={before === null ? "/graders" : `/graders/${encodeURIComponent(before.id)}`}>Leave</LinkButton>
        <Button
          look="main"
          disabled={save.isPending || !change.changed}
          onClick={() => {
            setTried(true);
            if (Object.keys(faults).length === 0)
              save.mutate(save.error instanceof NewerVersion ? save.error.version : (before?.version ?? 0));
          }}
        >
          {before === null ? "Save grader" : `Save version ${before.version + 1}`}
        </Button>
      </div>
      {save.error && <Failure error={save.error} />}
      {before !== null && change.changed && (
        <p
          role="status"
          className={`rounded-md p-2 text-sm ${change.meaning ? "bg-warn-soft text-warn" : "bg-raised"}`}
        >
          {change.meaning
            ? "This changes what it measures. Runs graded by the new version are compared with older ones only if that is asked for."
            : "Only words change: it measures the same, and keeps its fingerprint."}
        </p>
      )}
      <div className="grid items-start gap-4 lg:grid-cols-2">
        <section className="card flex min-w-0 flex-col gap-3 p-3" aria-label="Definition">
          <Field label="Name" required fault={shown["name"]}>
            <input className="field" value={draft.name} onChange={(event) => put({ name: event.target.value })} />
          </Field>
          <Field label="Description" fault={shown["description"]}>
            <input
              className="field"
              value={draft.description}
              onChange={(event) => put({ description: event.target.value })}
            />
          </Field>
          {before === null && (
            <Field label="Id" help="Suites name the grader by it; one is made where none is given" fault={shown["id"]}>
              <input
                className="field font-mono"
                value={draft.id}
                onChange={(event) => put({ id: event.target.value })}
              />
            </Field>
          )}
          <Field label="Kind" help={kind?.description ?? undefined} fault={shown["type"]}>
            <select
              className="field"
              value={draft.type}
              onChange={(event) => put({ type: event.target.value, config: {} })}
            >
              {kind === undefined && <option value={draft.type}>{draft.type}</option>}
              {kinds.map((one) => (
                <option key={one.id} value={one.id}>
                  {FAMILIES[familyOf(one)]}: {one.name}
                </option>
              ))}
            </select>
          </Field>
          <ConfigEditor
            key={draft.type}
            type={draft.type}
            fields={fields}
            config={draft.config}
            faults={configFaults(shown)}
            onChange={(config) => put({ config })}
          />
          {kind && <Notes kind={kind} />}
        </section>
        <PreviewPanel
          grader={fit ? { definition: { ...definition, name: definition.name || "new" } } : null}
          costly={kind !== undefined && asksModel(kind)}
          state={preview}
          onChange={onPreview}
        />
      </div>
    </div>
  );
}

function Notes({ kind }: { kind: Grader }) {
  return (
    <div className="border-t border-line pt-2 text-sm text-muted">
      <SafeText text={kind.scoring_guide} />
      {(kind.caveats ?? []).length > 0 && (
        <details className="mt-1">
          <summary>What to beware of</summary>
          <ul className="list-disc ps-5">
            {(kind.caveats ?? []).map((caveat) => (
              <li key={caveat}>
                <SafeText text={caveat} />
              </li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

function useSave(before: Grader | null, id: string, definition: ReturnType<typeof definitionOf>) {
  const queries = useQueryClient();
  const navigate = useNavigate();
  return useMutation({
    /** Onto the version that was seen last: what somebody else saved is not overwritten unseen. */
    mutationFn: async (seen: number) => {
      if (before === null) return graderCalls.create(id, definition);
      const { version } = await api.grader(before.id);
      if (version !== seen) throw new NewerVersion(version);
      return graderCalls.update(before.id, definition);
    },
    onSuccess: async (saved) => {
      queries.removeQueries({ queryKey: ["graders"] });
      queries.removeQueries({ queryKey: ["grader", saved.id] });
      await navigate(`/graders/${encodeURIComponent(saved.id)}`);
      toast(before === null ? "Grader saved" : `Version ${saved.version} saved`);
    },
  });
}
