import { useState } from "react";
import type { Json, JsonObject } from "../../api/types.ts";
import { Button } from "../../components/Button.tsx";
import { CodeEditor } from "../../components/CodeEditor.tsx";
import { SchemaForm } from "../../components/SchemaForm.tsx";
import { asObject, type FormField } from "../../lib/jsonSchema.ts";

interface Props {
  type: string;
  fields: readonly FormField[];
  config: JsonObject;
  problems: Readonly<Record<string, string>>;
  onChange: (config: JsonObject) => void;
}

/** A grader's options, as a form or as JSON. */
export function OptionsEditor({ type, fields, config, problems, onChange }: Props) {
  const [asJson, setAsJson] = useState(false);
  // inputs keep what was typed; a starter begins them anew
  const [began, setBegan] = useState(0);
  const starters = TEMPLATES[type] ?? [];
  return (
    <div className="flex flex-col gap-3">
      <div className="flex flex-wrap items-center gap-2">
        <h2 className="mr-auto font-semibold">Options</h2>
        <Button variant={asJson ? "ghost" : "secondary"} aria-pressed={!asJson} onClick={() => setAsJson(false)}>
          Form
        </Button>
        <Button variant={asJson ? "secondary" : "ghost"} aria-pressed={asJson} onClick={() => setAsJson(true)}>
          JSON
        </Button>
      </div>
      {starters.length > 0 && Object.keys(config).length === 0 && (
        <div className="flex flex-wrap items-center gap-2 text-sm text-muted">
          Begin with
          {starters.map((starter) => (
            <Button
              key={starter.title}
              onClick={() => {
                onChange(starter.config);
                setBegan(began + 1);
              }}
            >
              {starter.title}
            </Button>
          ))}
        </div>
      )}
      {asJson ? (
        <JsonOptions key={began} config={config} onChange={onChange} />
      ) : (
        <SchemaForm key={began} fields={fields} values={config} onChange={onChange} problems={problems} />
      )}
      {asJson && Object.keys(problems).length > 0 && (
        <ul className="text-xs font-medium text-fail">
          {Object.entries(problems).map(([path, problem]) => (
            <li key={path}>
              {path}: {problem}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function JsonOptions({ config, onChange }: Pick<Props, "config" | "onChange">) {
  const [typed, setTyped] = useState(() => JSON.stringify(config, null, 2));
  const [problem, setProblem] = useState<string | null>(null);
  return (
    <div className="flex flex-col gap-1">
      <CodeEditor
        language="json"
        label="Options as JSON"
        value={typed}
        onChange={(text) => {
          setTyped(text);
          const [read, wrong] = parseObject(text);
          setProblem(wrong);
          if (read !== null) onChange(read);
        }}
      />
      {problem && <p className="text-xs font-medium text-fail">{problem}</p>}
    </div>
  );
}

/** The object that a text holds, or what is wrong with it. */
export function parseObject(text: string): [JsonObject, null] | [null, string] {
  if (text.trim() === "") return [{}, null];
  try {
    const read = asObject(JSON.parse(text) as Json);
    return read === null ? [null, "must be an object, in braces"] : [read, null];
  } catch (error) {
    return [null, error instanceof Error ? error.message : String(error)];
  }
}

export interface Template {
  title: string;
  config: JsonObject;
}

/** Something to begin with, by the kind of the grader. */
export const TEMPLATES: Record<string, readonly Template[] | undefined> = {
  "custom-rules": [
    { title: "Holds the expected text", config: { rules: [{ condition: "contains", value: "$expected" }] } },
    {
      title: "Short, and no apology",
      config: {
        rules: [
          { condition: "length_max", value: 400 },
          { condition: "not_contains", value: "sorry" },
        ],
      },
    },
    { title: "Valid JSON", config: { rules: [{ condition: "is_json" }] } },
  ],
  model_judge: [
    { title: "Facts as expected", config: { rubric: "factuality", model: "gpt-6-luna" } },
    { title: "Helpful", config: { rubric: "helpfulness", model: "gpt-6-luna" } },
    {
      title: "A rubric of your own",
      config: {
        model: "gpt-6-luna",
        prompt:
          "Question: {input}\nExpected: {ground_truth}\nAnswer: {submission}\n\nIs the answer right and complete? 1.0 if it is, 0.0 if not.",
      },
    },
    {
      title: "A checklist",
      config: {
        model: "gpt-6-luna",
        prompt: "Question: {input}\nAnswer: {submission}",
        checklist: ["Does the answer address the question?", "Is the answer free of claims without a source?"],
      },
    },
  ],
};
