import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "../../api/calls.ts";
import type { Grader } from "../../api/types.ts";
import { faultsIn, fieldsOf } from "../../lib/schemaForm.ts";
import { Badge } from "../../parts/Badge.tsx";
import { Button } from "../../parts/Button.tsx";
import { Failure, Loading } from "../../parts/Notice.tsx";
import { SafeText } from "../../parts/SafeText.tsx";
import { SchemaForm } from "../../parts/SchemaForm.tsx";
import { choicesOf, freshKey, type ChosenGrader } from "./draft.ts";

export { choicesOf, type ChosenGrader };

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
  showFaults: boolean;
}

/** Picks graders and sets their options. */
export function GraderChooser({ chosen, onChange, showFaults }: Props) {
  const graders = useGraders();
  const [adding, setAdding] = useState("");
  if (graders.error) return <Failure error={graders.error} onRetry={() => void graders.refetch()} />;
  if (graders.isPending) return <Loading what="Loading the graders" />;
  const usable = graders.data.filter((grader) => grader.status === "active" || grader.status === undefined);
  const add = (id: string) => {
    if (id === "") return;
    onChange([...chosen, { key: freshKey(id, chosen), id, config: {} }]);
    setAdding("");
  };
  return (
    <div className="flex flex-col gap-3">
      {chosen.map((one) => (
        <OneGrader
          key={one.key}
          chosen={one}
          grader={graders.data.find((grader) => grader.id === one.id)}
          showFaults={showFaults}
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

interface OneProps {
  chosen: ChosenGrader;
  grader: Grader | undefined;
  showFaults: boolean;
  onChange: (config: ChosenGrader["config"]) => void;
  onRemove: () => void;
}

function OneGrader({ chosen, grader, showFaults, onChange, onRemove }: OneProps) {
  const fields = grader ? fieldsOf(grader.config_schema) : [];
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
              Grades the agent's <SafeText text={grader.default_extractor.replaceAll("_", " ")} />, not its text.
            </p>
          )}
          {grader === undefined && <p className="text-sm text-fail">This grader is no longer there; remove it.</p>}
        </div>
        <Button look="quiet" aria-label={`Remove grader ${chosen.key}`} onClick={onRemove}>
          ✕
        </Button>
      </div>
      {grader && (
        <SchemaForm
          fields={fields}
          values={chosen.config}
          onChange={onChange}
          faults={showFaults ? faultsIn(fields, chosen.config) : {}}
        />
      )}
      {grader?.scoring_guide && (
        <details className="mt-2 text-sm">
          <summary className="text-muted">How it scores</summary>
          <SafeText text={grader.scoring_guide} />
        </details>
      )}
    </section>
  );
}
