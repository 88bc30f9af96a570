import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { useNavigate, useParams } from "react-router";
import { api, graderApi } from "../../api/client.ts";
import type { Grader } from "../../api/types.ts";
import { Button, LinkButton } from "../../components/Button.tsx";
import { Field } from "../../components/Field.tsx";
import { EmptyState, ErrorNotice, Loading } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { toast } from "../../components/toast.tsx";
import { usePageTitle } from "../../lib/hooks.ts";
import { fieldsFromSchema } from "../../lib/jsonSchema.ts";
import { useUrlState } from "../../lib/urlState.ts";
import {
  configProblems,
  definitionOf,
  draftChange,
  draftFromCopy,
  draftFromGrader,
  EMPTY_DRAFT,
  type GraderDraft,
  serverProblems,
  validateGraderDraft,
} from "./draft.ts";
import {
  callsModel,
  type ChangePreview,
  EDITOR_STATE,
  FAMILIES,
  familyOf,
  kindsOf,
  type PreviewState,
} from "./families.ts";
import { OptionsEditor } from "./OptionsEditor.tsx";
import { PreviewPanel } from "./PreviewPanel.tsx";

/** Creates a grader, or a new version of one. */
export function GraderEditorPage() {
  const { id } = useParams();
  const [state, change] = useUrlState(EDITOR_STATE);
  usePageTitle(id === undefined ? "New grader" : "Edit grader");
  const source = id ?? state.copy;
  const graders = useQuery({ queryKey: ["graders"], queryFn: ({ signal }) => graderApi.all(signal) });
  const original = useQuery({
    queryKey: ["grader", source],
    queryFn: ({ signal }) => api.grader(source, signal),
    enabled: source !== "",
    staleTime: 0,
  });
  const error = graders.error ?? original.error;
  if (error)
    return <ErrorNotice error={error} onRetry={() => void Promise.all([graders.refetch(), original.refetch()])} />;
  if (graders.data === undefined || (source !== "" && original.data === undefined)) return <Loading />;
  if (id !== undefined && original.data?.source !== "stored") {
    return (
      <EmptyState
        title="This grader cannot be changed"
        actions={
          <LinkButton variant="primary" to={`/graders/new?copy=${encodeURIComponent(id)}`}>
            Copy and edit
          </LinkButton>
        }
      >
        It is built in or comes from the operator's grader folder.
      </EmptyState>
    );
  }
  const kinds = kindsOf(graders.data);
  const first =
    original.data === undefined
      ? { ...EMPTY_DRAFT, type: state.type || EMPTY_DRAFT.type }
      : id === undefined
        ? draftFromCopy(original.data)
        : draftFromGrader(original.data);
  return (
    <GraderEditor
      key={`${id} ${state.copy}`}
      before={id === undefined ? null : (original.data ?? null)}
      first={first}
      kinds={kinds}
      preview={state}
      onPreview={change}
    />
  );
}

interface Props {
  /** The version being edited; null for a new grader. */
  before: Grader | null;
  first: GraderDraft;
  kinds: readonly Grader[];
  preview: PreviewState;
  onPreview: ChangePreview;
}

/** Another user saved a version in the meantime. */
class VersionConflictError extends Error {
  constructor(readonly version: number) {
    super(
      `Version ${version} was saved by someone else while you were editing. Save again to add your version after it, or open it first.`,
    );
  }
}

/** The definition on the left, a preview on real responses on the right. */
function GraderEditor({ before, first, kinds, preview, onPreview }: Props) {
  const [draft, setDraft] = useState(first);
  const [submitted, setSubmitted] = useState(false);
  const kind = kinds.find((one) => one.id === draft.type);
  const fields = useMemo(() => (kind ? fieldsFromSchema(kind.config_schema) : []), [kind]);
  const definition = useMemo(() => definitionOf(draft, fields), [draft, fields]);
  const change = before === null ? { changed: true, meaning: true } : draftChange(before, definition, fields);
  const save = useSave(before, draft.id, definition);
  const problems = validateGraderDraft(draft, fields, before === null);
  const shown = { ...(submitted ? problems : {}), ...serverProblems(save.error) };
  const isValid = Object.keys(configProblems(problems)).length === 0;
  const put = (next: Partial<GraderDraft>) => {
    setDraft({ ...draft, ...next });
    if (save.error && !(save.error instanceof VersionConflictError)) save.reset();
  };
  return (
    <div className="flex flex-col gap-4">
      <div className="flex flex-wrap items-center gap-2">
        <h1 className="mr-auto text-xl font-semibold">
          {before === null ? "New grader" : <SafeText text={`Edit ${before.name}`} />}
        </h1>
        <LinkButton to={before === null ? "/graders" : `/graders/${encodeURIComponent(before.id)}`}>Cancel</LinkButton>
        <Button
          variant="primary"
          disabled={save.isPending || !change.changed}
          onClick={() => {
            setSubmitted(true);
            if (Object.keys(problems).length === 0)
              save.mutate(save.error instanceof VersionConflictError ? save.error.version : (before?.version ?? 0));
          }}
        >
          {before === null ? "Save grader" : `Save version ${before.version + 1}`}
        </Button>
      </div>
      {save.error && <ErrorNotice error={save.error} />}
      {before !== null && change.changed && (
        <p
          role="status"
          className={`rounded-md p-2 text-sm ${change.meaning ? "bg-warn-soft text-warn" : "bg-raised"}`}
        >
          {change.meaning
            ? "This changes what the grader measures: runs graded with the new version are not comparable with older ones."
            : "Only the name or description changes: the fingerprint stays the same."}
        </p>
      )}
      <div className="grid items-start gap-4 lg:grid-cols-2">
        <section className="card flex min-w-0 flex-col gap-3 p-3" aria-label="Definition">
          <Field label="Name" required problem={shown["name"]}>
            <input className="field" value={draft.name} onChange={(event) => put({ name: event.target.value })} />
          </Field>
          <Field label="Description" problem={shown["description"]}>
            <input
              className="field"
              value={draft.description}
              onChange={(event) => put({ description: event.target.value })}
            />
          </Field>
          {before === null && (
            <Field
              label="Id"
              help="Suites refer to the grader by id. Leave empty to generate one."
              problem={shown["id"]}
            >
              <input
                className="field font-mono"
                value={draft.id}
                onChange={(event) => put({ id: event.target.value })}
              />
            </Field>
          )}
          <Field label="Kind" help={kind?.description ?? undefined} problem={shown["type"]}>
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
          <OptionsEditor
            key={draft.type}
            type={draft.type}
            fields={fields}
            config={draft.config}
            problems={configProblems(shown)}
            onChange={(config) => put({ config })}
          />
          {kind && <KindNotes kind={kind} />}
        </section>
        <PreviewPanel
          grader={isValid ? { definition: { ...definition, name: definition.name || "new" } } : null}
          callsModel={kind !== undefined && callsModel(kind)}
          state={preview}
          onChange={onPreview}
        />
      </div>
    </div>
  );
}

function KindNotes({ kind }: { kind: Grader }) {
  return (
    <div className="border-t border-line pt-2 text-sm text-muted">
      <SafeText text={kind.scoring_guide} />
      {(kind.caveats ?? []).length > 0 && (
        <details className="mt-1">
          <summary>Caveats</summary>
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
    /** Saves only on top of the version seen last, so that another user's version is not overwritten. */
    mutationFn: async (seen: number) => {
      if (before === null) return graderApi.create(id, definition);
      const { version } = await api.grader(before.id);
      if (version !== seen) throw new VersionConflictError(version);
      return graderApi.update(before.id, definition);
    },
    onSuccess: async (saved) => {
      queries.removeQueries({ queryKey: ["graders"] });
      queries.removeQueries({ queryKey: ["grader", saved.id] });
      await navigate(`/graders/${encodeURIComponent(saved.id)}`);
      toast(before === null ? "Grader saved" : `Version ${saved.version} saved`);
    },
  });
}
