import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "../../api/client.ts";
import type { Evaluation, Grader } from "../../api/types.ts";
import { Badge } from "../../components/Badge.tsx";
import { Button } from "../../components/Button.tsx";
import { ErrorNotice, Loading } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { SchemaForm } from "../../components/SchemaForm.tsx";
import { fieldsFromSchema, validateFields } from "../../lib/jsonSchema.ts";
import { type ChosenGrader, chosenGraders, graderChoices, uniqueKey } from "./draft.ts";

export { graderChoices, type ChosenGrader };

export function useGraders() {
  return useQuery({
    queryKey: ["graders"],
    queryFn: async ({ signal }) => (await api.graders(signal)).graders,
    staleTime: 60_000,
  });
}

const LAST_MESSAGE = "last_assistant";

interface Props {
  chosen: readonly ChosenGrader[];
  onChange: (chosen: ChosenGrader[]) => void;
  showProblems: boolean;
}

/** Selects graders and their options. */
export function GraderChooser({ chosen, onChange, showProblems }: Props) {
  const graders = useGraders();
  const [adding, setAdding] = useState("");
  if (graders.error) return <ErrorNotice error={graders.error} onRetry={() => void graders.refetch()} />;
  if (graders.isPending) return <Loading what="Loading the graders" />;
  const usable = graders.data.filter((grader) => grader.status === "active" || grader.status === undefined);
  const add = (id: string) => {
    if (id === "") return;
    onChange([...chosen, { key: uniqueKey(id, chosen), id, config: {} }]);
    setAdding("");
  };
  return (
    <div className="flex flex-col gap-3">
      {chosen.map((one) => (
        <GraderOptions
          key={one.key}
          chosen={one}
          grader={graders.data.find((grader) => grader.id === one.id)}
          showProblems={showProblems}
          onChange={(config) => onChange(chosen.map((other) => (other.key === one.key ? { ...other, config } : other)))}
          onRemove={() => onChange(chosen.filter((other) => other.key !== one.key))}
        />
      ))}
      <select
        className="field max-w-96"
        aria-label="Add a grader"
        value={adding}
        onChange={(event) => add(event.target.value)}
      >
        <option value="">Add a grader…</option>
        {usable.map((grader) => (
          <option key={grader.id} value={grader.id}>
            {grader.name} ({grader.id})
          </option>
        ))}
      </select>
    </div>
  );
}

interface GraderOptionsProps {
  chosen: ChosenGrader;
  grader: Grader | undefined;
  showProblems: boolean;
  onChange: (config: ChosenGrader["config"]) => void;
  onRemove: () => void;
}

function GraderOptions({ chosen, grader, showProblems, onChange, onRemove }: GraderOptionsProps) {
  const fields = grader ? fieldsFromSchema(grader.config_schema) : [];
  return (
    <section className="card p-3" aria-label={`Grader ${chosen.key}`}>
      <div className="mb-2 flex items-start justify-between gap-2">
        <div className="min-w-0">
          <h3 className="font-medium">
            <SafeText text={grader?.name ?? chosen.id} />{" "}
            {chosen.key !== chosen.id && <Badge tone="none">{chosen.key}</Badge>}
          </h3>
          {grader?.description && (
            <p className="text-sm text-muted">
              <SafeText text={grader.description} />
            </p>
          )}
          {grader && grader.default_extractor !== LAST_MESSAGE && (
            <p className="text-sm text-muted">
              Grades <SafeText text={grader.default_extractor.replaceAll("_", " ")} /> of the response, not its text.
            </p>
          )}
          {grader === undefined && (
            <p className="text-sm text-fail">
              Not available here: deleted, or defined only in a suite file. Remove it.
            </p>
          )}
        </div>
        <Button variant="ghost" aria-label={`Remove grader ${chosen.key}`} onClick={onRemove}>
          ✕
        </Button>
      </div>
      {grader && (
        <SchemaForm
          fields={fields}
          values={chosen.config}
          onChange={onChange}
          problems={showProblems ? validateFields(fields, chosen.config) : {}}
        />
      )}
      {grader?.scoring_guide && (
        <details className="mt-2 text-sm">
          <summary className="text-muted">Scoring</summary>
          <SafeText text={grader.scoring_guide} />
        </details>
      )}
    </section>
  );
}

/** A run's graders with their options, which only its suite contains. */
export function useRunGraders(run: Evaluation | undefined): { chosen: ChosenGrader[] | null } {
  const graders = useGraders();
  const known = graders.data;
  const id = run?.id ?? "";
  const found = useQuery({
    queryKey: ["run graders", id],
    queryFn: async () => {
      // the YAML parser is loaded on demand
      const [{ gradersInSuite }, suite] = await Promise.all([import("./parseSuite.ts"), api.runSuite(id)]);
      return gradersInSuite(suite, known ?? []);
    },
    enabled: run !== undefined && known !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });
  if (run === undefined || found.isPending) return { chosen: null };
  // a run started from the command line may have no suite here
  return { chosen: found.data ?? chosenGraders(run.grader_ids) };
}
