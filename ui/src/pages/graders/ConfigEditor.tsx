import { useState } from "react";
import type { Json, JsonObject } from "../../api/types.ts";
import { asObject, type Field } from "../../lib/schemaForm.ts";
import { Button } from "../../parts/Button.tsx";
import { CodeEditor } from "../../parts/CodeEditor.tsx";
import { SchemaForm } from "../../parts/SchemaForm.tsx";
import { STARTERS } from "./starters.ts";

interface Props {
  type: string;
  fields: readonly Field[];
  config: JsonObject;
  faults: Readonly<Record<string, string>>;
  onChange: (config: JsonObject) => void;
}

/** A grader's options, as a form or as JSON. */
export function ConfigEditor({ type, fields, config, faults, onChange }: Props) {
  const [asJson, setAsJson] = useState(false);
  // inputs keep what was typed; a starter begins them anew
  const [began, setBegan] = useState(0);
  const starters = STARTERS[type] ?? [];
  return (
    <div className="flex flex-col gap-3">
      <div className="flex flex-wrap items-center gap-2">
        <h2 className="mr-auto font-semibold">Options</h2>
        <Button look={asJson ? "quiet" : "plain"} aria-pressed={!asJson} onClick={() => setAsJson(false)}>
          Form
        </Button>
        <Button look={asJson ? "plain" : "quiet"} aria-pressed={asJson} onClick={() => setAsJson(true)}>
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
        <AsJson key={began} config={config} onChange={onChange} />
      ) : (
        <SchemaForm key={began} fields={fields} values={config} onChange={onChange} faults={faults} />
      )}
      {asJson && Object.keys(faults).length > 0 && (
        <ul className="text-xs font-medium text-fail">
          {Object.entries(faults).map(([path, fault]) => (
            <li key={path}>
              {path}: {fault}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function AsJson({ config, onChange }: Pick<Props, "config" | "onChange">) {
  const [typed, setTyped] = useState(() => JSON.stringify(config, null, 2));
  const [fault, setFault] = useState<string | null>(null);
  return (
    <div className="flex flex-col gap-1">
      <CodeEditor
        language="json"
        label="Options as JSON"
        value={typed}
        onChange={(text) => {
          setTyped(text);
          const [read, wrong] = readObject(text);
          setFault(wrong);
          if (read !== null) onChange(read);
        }}
      />
      {fault && <p className="text-xs font-medium text-fail">{fault}</p>}
    </div>
  );
}

/** The object that a text holds, or what is wrong with it. */
export function readObject(text: string): [JsonObject, null] | [null, string] {
  if (text.trim() === "") return [{}, null];
  try {
    const read = asObject(JSON.parse(text) as Json);
    return read === null ? [null, "must be an object, in braces"] : [read, null];
  } catch (error) {
    return [null, error instanceof Error ? error.message : String(error)];
  }
}
