import { useState } from "react";
import type { Json, JsonObject } from "../api/types.ts";
import { asObject, type FormField as Declared, matchVariant, type Variant } from "../lib/jsonSchema.ts";
import { Button } from "./Button.tsx";
import { CodeEditor } from "./CodeEditor.tsx";
import { CheckboxField, describeProblem, Field } from "./Field.tsx";

interface Props {
  fields: readonly Declared[];
  values: JsonObject;
  onChange: (values: JsonObject) => void;
  /** Messages by field path. */
  problems: Readonly<Record<string, string>>;
  path?: string;
}

/** A form for the options that a JSON Schema declares; of many fields the optional ones are collapsed. */
export function SchemaForm({ fields, values, onChange, problems, path = "" }: Props) {
  if (fields.length === 0) return <p className="text-sm text-muted">No options.</p>;
  const many = fields.length > 5;
  const first = many ? fields.filter((field) => field.required || values[field.key] !== undefined) : fields;
  const rest = many ? fields.filter((field) => !first.includes(field)) : [];
  const show = (shown: readonly Declared[]) =>
    shown.map((field) => (
      <SchemaField
        key={field.key}
        field={field}
        value={values[field.key]}
        path={`${path}${field.key}`}
        problems={problems}
        onChange={(value) => {
          const { [field.key]: _, ...others } = values;
          onChange(value === undefined ? others : { ...others, [field.key]: value });
        }}
      />
    ));
  return (
    <div className="flex flex-col gap-3">
      {show(first)}
      {rest.length > 0 && (
        <details>
          <summary className="text-sm text-muted">{rest.length} more options</summary>
          <div className="mt-2 flex flex-col gap-3">{show(rest)}</div>
        </details>
      )}
    </div>
  );
}

interface SchemaFieldProps {
  field: Declared;
  value: Json | undefined;
  path: string;
  problems: Readonly<Record<string, string>>;
  onChange: (value: Json | undefined) => void;
}

function SchemaField({ field, value, path, problems, onChange }: SchemaFieldProps) {
  const frame = { label: field.label, help: field.help, problem: problems[path], required: field.required };
  const shown = value ?? field.initial;
  switch (field.kind) {
    case "switch":
      return (
        <CheckboxField
          label={field.label}
          help={field.help}
          problem={problems[path]}
          checked={shown === true}
          onChange={onChange}
        />
      );
    case "choice":
      return (
        <Field {...frame}>
          <select
            className="field max-w-72"
            value={typeof shown === "string" ? shown : ""}
            onChange={(event) => onChange(event.target.value || undefined)}
          >
            {field.initial === undefined && <option value="">(none)</option>}
            {field.choices.map((choice) => (
              <option key={choice} value={choice}>
                {choice}
              </option>
            ))}
          </select>
        </Field>
      );
    case "number":
      return (
        <Field {...frame}>
          <input
            type="number"
            className="field num max-w-40"
            step={field.whole ? 1 : "any"}
            min={field.min}
            max={field.max}
            placeholder={typeof field.initial === "number" ? String(field.initial) : ""}
            value={typeof value === "number" ? value : ""}
            onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.valueAsNumber)}
          />
        </Field>
      );
    case "text":
      return (
        <Field {...frame}>
          {field.long ? (
            <textarea
              className="field min-h-20 font-mono text-sm"
              value={typeof value === "string" ? value : ""}
              onChange={(event) => onChange(event.target.value || undefined)}
            />
          ) : (
            <input
              className="field"
              value={typeof value === "string" ? value : ""}
              placeholder={typeof field.initial === "string" ? field.initial : ""}
              onChange={(event) => onChange(event.target.value || undefined)}
            />
          )}
        </Field>
      );
    case "strings":
      return <StringListField frame={frame} value={value} onChange={onChange} />;
    case "object":
      return (
        <fieldset className="rounded-md border border-line p-3">
          <legend className="px-1 text-sm font-medium">{field.label}</legend>
          <SchemaForm
            fields={field.fields}
            values={asObject(value) ?? {}}
            problems={problems}
            path={`${path}.`}
            onChange={(next) => onChange(Object.keys(next).length === 0 ? undefined : next)}
          />
        </fieldset>
      );
    case "list":
      return (
        <ListField
          field={field}
          variants={field.variants}
          value={value}
          path={path}
          problems={problems}
          onChange={onChange}
        />
      );
    case "json":
      return <JsonField field={field} value={value} onChange={onChange} />;
  }
}

interface FieldProps {
  label: string;
  help: string;
  problem: string | undefined;
  required: boolean;
}

/** One string per line. The typed text is kept unchanged while editing. */
function StringListField({
  frame,
  value,
  onChange,
}: {
  frame: FieldProps;
  value: Json | undefined;
  onChange: SchemaFieldProps["onChange"];
}) {
  const [typed, setTyped] = useState(() => (Array.isArray(value) ? value.join("\n") : ""));
  return (
    <Field {...frame} help={[frame.help, "One per line."].filter(Boolean).join(" ")}>
      <textarea
        className="field min-h-20 font-mono text-sm"
        value={typed}
        onChange={(event) => {
          setTyped(event.target.value);
          const lines = event.target.value.split("\n").filter((line) => line !== "");
          onChange(lines.length === 0 ? undefined : lines);
        }}
      />
    </Field>
  );
}

interface ListFieldProps extends SchemaFieldProps {
  variants: readonly Variant[];
}

function ListField({ field, variants, value, path, problems, onChange }: ListFieldProps) {
  const items = (Array.isArray(value) ? value : []).map((item) => asObject(item) ?? {});
  const [kind, setKind] = useState(0);
  const put = (next: JsonObject[]) => onChange(next.length === 0 ? undefined : next);
  return (
    <fieldset className="rounded-md border border-line p-3">
      <legend className="px-1 text-sm font-medium">
        {field.label}
        {field.required && <span className="text-muted"> (required)</span>}
      </legend>
      {field.help && <p className="mb-2 text-xs text-muted">{field.help}</p>}
      <ol className="flex flex-col gap-2">
        {items.map((item, index) => {
          const variant = matchVariant(variants, item);
          if (variant === undefined) return null;
          return (
            // oxlint-disable-next-line react/no-array-index-key -- items have no id
            <li key={`${index} ${variant.title}`} className="rounded-md bg-bg p-2">
              <div className="mb-1 flex items-center justify-between gap-2">
                <span className="font-mono text-sm" title={variant.help}>
                  {variant.title}
                </span>
                <Button
                  variant="ghost"
                  aria-label={`Remove ${variant.title}`}
                  onClick={() => put(items.filter((_, other) => other !== index))}
                >
                  ✕
                </Button>
              </div>
              <SchemaForm
                fields={variant.fields}
                values={item}
                problems={problems}
                path={`${path}.${index}.`}
                onChange={(next) =>
                  put(items.map((old, other) => (other === index ? { ...variant.fixed, ...next } : old)))
                }
              />
            </li>
          );
        })}
      </ol>
      <div className="mt-2 flex gap-2">
        {variants.length > 1 && (
          <select
            className="field max-w-56"
            aria-label={`Type of item to add to ${field.label}`}
            value={kind}
            onChange={(event) => setKind(Number(event.target.value))}
          >
            {variants.map((variant, index) => (
              <option key={variant.title} value={index}>
                {variant.title}
              </option>
            ))}
          </select>
        )}
        <Button onClick={() => put([...items, { ...variants[kind]?.fixed }])}>Add</Button>
      </div>
      {problems[path] && (
        <p className="mt-1 text-xs font-medium text-fail">{describeProblem(field.label, problems[path])}</p>
      )}
    </fieldset>
  );
}

function JsonField({
  field,
  value,
  onChange,
}: {
  field: Declared;
  value: Json | undefined;
  onChange: SchemaFieldProps["onChange"];
}) {
  const [typed, setTyped] = useState(() => (value === undefined ? "" : JSON.stringify(value, null, 2)));
  const [problem, setProblem] = useState<string | null>(null);
  return (
    <div className="flex flex-col gap-1">
      <span className="text-sm font-medium">
        {field.label} <span className="font-normal text-muted">as JSON{field.required && " (required)"}</span>
      </span>
      {field.help && <span className="text-xs text-muted">{field.help}</span>}
      <CodeEditor
        language="json"
        label={`${field.label} as JSON`}
        value={typed}
        onChange={(text) => {
          setTyped(text);
          try {
            onChange(text.trim() === "" ? undefined : (JSON.parse(text) as Json));
            setProblem(null);
          } catch (error) {
            setProblem(error instanceof Error ? error.message : String(error));
          }
        }}
      />
      {problem && <span className="text-xs font-medium text-fail">{problem}</span>}
    </div>
  );
}
