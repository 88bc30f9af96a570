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
  // inputs keep the typed text; applying a template resets them
  const [version, setVersion] = useState(0);
  const templates = TEMPLATES[type] ?? [];
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
      {templates.length > 0 && Object.keys(config).length === 0 && (
        <div className="flex flex-wrap items-center gap-2 text-sm text-muted">
          Start from
          {templates.map((template) => (
            <Button
              key={template.title}
              onClick={() => {
                onChange(template.config);
                setVersion(version + 1);
              }}
            >
              {template.title}
            </Button>
          ))}
        </div>
      )}
      {asJson ? (
        <JsonOptions key={version} config={config} onChange={onChange} />
      ) : (
        <SchemaForm key={version} fields={fields} values={config} onChange={onChange} problems={problems} />
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

/** Parses a JSON object, or returns an error message. */
export function parseObject(text: string): [JsonObject, null] | [null, string] {
  if (text.trim() === "") return [{}, null];
  try {
    const read = asObject(JSON.parse(text) as Json);
    return read === null ? [null, "must be a JSON object"] : [read, null];
  } catch (error) {
    return [null, error instanceof Error ? error.message : String(error)];
  }
}

interface Template {
  title: string;
  config: JsonObject;
}

/** Example options by grader kind. */
const TEMPLATES: Record<string, readonly Template[] | undefined> = {
  "custom-rules": [
    { title: "Contains the expected output", config: { rules: [{ condition: "contains", value: "$expected" }] } },
    {
      title: "Short, without an apology",
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
    { title: "Factuality", config: { rubric: "factuality", model: "gpt-6-luna" } },
    { title: "Helpfulness", config: { rubric: "helpfulness", model: "gpt-6-luna" } },
    {
      title: "Custom prompt",
      config: {
        model: "gpt-6-luna",
        prompt:
          "Question: {input}\nExpected: {ground_truth}\nAnswer: {submission}\n\nIs the answer correct and complete? 1.0 if it is, 0.0 if not.",
      },
    },
    {
      title: "Checklist",
      config: {
        model: "gpt-6-luna",
        prompt: "Question: {input}\nAnswer: {submission}",
        checklist: ["Does the answer address the question?", "Is the answer free of claims without a source?"],
      },
    },
  ],
};
