import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate, useParams } from "react-router";
import { api, graderApi } from "../../api/client.ts";
import { ApiError } from "../../api/error.ts";
import type { Grader } from "../../api/types.ts";
import { Button, LinkButton } from "../../components/Button.tsx";
import { ConfirmDialog } from "../../components/Dialog.tsx";
import { EmptyState, ErrorNotice, Loading } from "../../components/Notice.tsx";
import { JsonBlock, SafeText } from "../../components/SafeText.tsx";
import { SchemaForm } from "../../components/SchemaForm.tsx";
import { Tabs } from "../../components/Tabs.tsx";
import { toast } from "../../components/toast.tsx";
import { usePageTitle } from "../../lib/hooks.ts";
import { fieldsFromSchema, type FormField, validateFields } from "../../lib/jsonSchema.ts";
import { useUrlState } from "../../lib/urlState.ts";
import { visibleText } from "../../lib/visibleText.ts";
import { configOf } from "./draft.ts";
import { callsModel, FAMILIES, familyOf, GRADER_STATE } from "./families.ts";
import { SourceBadge } from "./GradersPage.tsx";
import { GraderVersions } from "./GraderVersions.tsx";
import { PreviewPanel } from "./PreviewPanel.tsx";

export function GraderPage() {
  const { id = "" } = useParams();
  const grader = useQuery({ queryKey: ["grader", id], queryFn: ({ signal }) => api.grader(id, signal) });
  usePageTitle(grader.data ? visibleText(grader.data.name) : "Grader");
  if (grader.error instanceof ApiError && grader.error.code === "NOT_FOUND") {
    return <EmptyState title="Grader not found" actions={<LinkButton to="/graders">Go to graders</LinkButton>} />;
  }
  if (grader.error) return <ErrorNotice error={grader.error} onRetry={() => void grader.refetch()} />;
  return grader.data ? <LoadedGrader key={id} grader={grader.data} /> : <Loading what="Loading the grader" />;
}

function LoadedGrader({ grader }: { grader: Grader }) {
  const [state, change] = useUrlState(GRADER_STATE);
  return (
    <div className="flex flex-col gap-4">
      <GraderHeader grader={grader} />
      <Tabs
        label="Grader views"
        value={state.tab}
        onChange={(tab) => change({ tab })}
        tabs={[
          { value: "about", label: "About", content: <AboutGrader grader={grader} /> },
          { value: "try", label: "Preview", content: <TryGrader grader={grader} state={state} onChange={change} /> },
          {
            value: "versions",
            label: "Versions",
            content: (
              <GraderVersions
                grader={grader}
                version={state.version}
                against={state.against}
                onChange={(next) => change(next)}
              />
            ),
          },
        ]}
      />
    </div>
  );
}

function GraderHeader({ grader }: { grader: Grader }) {
  const [confirming, setConfirming] = useState(false);
  const queries = useQueryClient();
  const navigate = useNavigate();
  const path = encodeURIComponent(grader.id);
  const remove = useMutation({
    mutationFn: () => graderApi.remove(grader.id),
    onSuccess: async () => {
      queries.removeQueries({ queryKey: ["graders"] });
      await navigate("/graders");
      toast("Grader deleted");
    },
  });
  const own = grader.source === "stored" && grader.status !== "deleted";
  return (
    <header className="flex flex-col gap-2">
      <div className="flex flex-wrap items-center gap-2">
        <h1 className="text-xl font-semibold">
          <SafeText text={grader.name} />
        </h1>
        <SourceBadge grader={grader} />
        <span className="text-sm text-muted">{FAMILIES[familyOf(grader)]}</span>
        <span className="ml-auto flex flex-wrap gap-2">
          {grader.source !== "python" && (
            <LinkButton to={`/graders/new?copy=${path}`}>{own ? "Copy" : "Copy and edit"}</LinkButton>
          )}
          {own && (
            <>
              <LinkButton variant="primary" to={`/graders/${path}/edit`}>
                Edit
              </LinkButton>
              <Button variant="danger" onClick={() => setConfirming(true)}>
                Delete
              </Button>
            </>
          )}
        </span>
      </div>
      {grader.description && (
        <p className="max-w-prose text-muted">
          <SafeText text={grader.description} />
        </p>
      )}
      {grader.error && (
        <p role="alert" className="rounded-md border border-fail bg-fail-soft p-2 text-sm">
          <SafeText text={grader.error} />
        </p>
      )}
      {remove.error && <ErrorNotice error={remove.error} />}
      <ConfirmDialog
        open={confirming}
        onClose={() => setConfirming(false)}
        title="Delete this grader?"
        action="Delete grader"
        onConfirm={() => {
          setConfirming(false);
          remove.mutate();
        }}
      >
        New runs can no longer use it, and its id cannot be reused. Runs that used it keep their grades and its version.
      </ConfirmDialog>
    </header>
  );
}

function AboutGrader({ grader }: { grader: Grader }) {
  const fields = fieldsFromSchema(grader.config_schema);
  const config = configOf(grader);
  const caveats = grader.caveats ?? [];
  return (
    <div className="grid items-start gap-4 lg:grid-cols-2">
      <div className="flex min-w-0 flex-col gap-4">
        <section className="card p-3">
          <h2 className="mb-1 font-semibold">Scoring</h2>
          <SafeText text={grader.scoring_guide || "No description."} className="text-sm" />
          <p className="mt-1 text-sm text-muted">
            Default extractor: <SafeText text={grader.default_extractor} className="font-mono" />
          </p>
        </section>
        {caveats.length > 0 && (
          <section className="rounded-[10px] border border-warn bg-warn-soft p-3">
            <h2 className="mb-1 font-semibold text-warn">Caveats</h2>
            <ul className="list-disc ps-5 text-sm">
              {caveats.map((caveat) => (
                <li key={caveat}>
                  <SafeText text={caveat} />
                </li>
              ))}
            </ul>
          </section>
        )}
        {Object.keys(config).length > 0 && (
          <section className="card p-3">
            <h2 className="mb-1 font-semibold">Options</h2>
            <JsonBlock value={config} label="Options" />
          </section>
        )}
        <section className="card p-3 text-sm">
          <h2 className="mb-1 font-semibold">Identity</h2>
          <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-1">
            <dt className="text-muted">Id</dt>
            <dd className="min-w-0 font-mono break-all">{grader.id}</dd>
            <dt className="text-muted">Kind</dt>
            <dd className="font-mono">{grader.type}</dd>
            <dt className="text-muted">Version</dt>
            <dd className="num">{grader.version}</dd>
            <dt className="text-muted">Fingerprint</dt>
            <dd className="min-w-0 font-mono break-all">{grader.fingerprint}</dd>
          </dl>
        </section>
      </div>
      <section className="card min-w-0 p-3">
        <h2 className="mb-2 font-semibold">Available options</h2>
        <OptionList fields={fields} />
        <details className="mt-3 text-sm">
          <summary className="text-muted">As JSON Schema</summary>
          <div className="mt-1">
            <JsonBlock value={grader.config_schema} label="JSON Schema of the options" />
          </div>
        </details>
      </section>
    </div>
  );
}

function OptionList({ fields }: { fields: readonly FormField[] }) {
  if (fields.length === 0) return <p className="text-sm text-muted">No options.</p>;
  return (
    <dl className="flex flex-col gap-2 text-sm">
      {fields.map((field) => (
        <div key={field.key}>
          <dt className="flex flex-wrap items-baseline gap-2">
            <code className="font-medium">{field.key}</code>
            <span className="text-xs text-muted">
              {FIELD_KINDS[field.kind]}
              {field.required
                ? ", required"
                : field.initial === undefined || field.initial === null
                  ? ""
                  : `, default ${JSON.stringify(field.initial)}`}
            </span>
          </dt>
          <dd className="text-muted">
            {field.kind === "choice" ? `${field.help} One of ${field.choices.join(", ")}.` : field.help}
          </dd>
        </div>
      ))}
    </dl>
  );
}

const FIELD_KINDS: Record<FormField["kind"], string> = {
  switch: "yes or no",
  choice: "one of",
  number: "number",
  text: "text",
  strings: "list of strings",
  object: "object",
  list: "list",
  json: "JSON",
};

function TryGrader({
  grader,
  state,
  onChange,
}: { grader: Grader } & Pick<Parameters<typeof PreviewPanel>[0], "state" | "onChange">) {
  const [config, setConfig] = useState(() => configOf(grader));
  const fields = fieldsFromSchema(grader.config_schema);
  const isValid = Object.keys(validateFields(fields, config)).length === 0;
  return (
    <div className="grid items-start gap-4 lg:grid-cols-2">
      <section className="card min-w-0 p-3" aria-label="Options for this preview">
        <h2 className="mb-2 font-semibold">Options for this preview</h2>
        <SchemaForm fields={fields} values={config} onChange={setConfig} problems={{}} />
      </section>
      <PreviewPanel
        grader={isValid ? { id: grader.id, config } : null}
        callsModel={callsModel(grader)}
        state={state}
        onChange={onChange}
      />
    </div>
  );
}
