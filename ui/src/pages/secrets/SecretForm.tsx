import { useMutation } from "@tanstack/react-query";
import { useRef, useState } from "react";
import type { Secret, SecretBody } from "../../api/types.ts";
import { Button } from "../../components/Button.tsx";
import { Field } from "../../components/Field.tsx";
import { ErrorNotice } from "../../components/Notice.tsx";

interface Props {
  /** The secret to replace; undefined for a new one. */
  secret: Secret | undefined;
  taken: readonly string[];
  save: (name: string, body: SecretBody) => Promise<unknown>;
  onDone: (name: string) => void | Promise<void>;
  onCancel: () => void;
}

export function SecretForm({ secret, taken, save, onDone, onCancel }: Props) {
  // uncontrolled: React would write the value into an attribute of the input
  const value = useRef<HTMLInputElement>(null);
  const [draft, setDraft] = useState(() => secretDraftFrom(secret));
  const [problems, setProblems] = useState<SecretProblems>({});
  const saving = useMutation({
    mutationFn: ({ name, body }: { name: string; body: SecretBody }) => save(name, body),
    onSuccess: (_, { name }) => onDone(name),
    gcTime: 0, // the mutation's variables contain the value
  });
  const change = (part: Partial<SecretDraft>) => setDraft({ ...draft, ...part });
  return (
    <form
      className="flex flex-col gap-4"
      autoComplete="off"
      onSubmit={(event) => {
        event.preventDefault();
        const result = validateSecret({ ...draft, value: value.current?.value ?? "" }, taken);
        setProblems(result.problems ?? {});
        if (result.body !== null) saving.mutate({ name: result.name, body: result.body });
      }}
    >
      <Field label="Name" help="Targets refer to it as {secret: NAME}" required problem={problems.name}>
        <input
          className="field font-mono"
          data-first={secret === undefined ? true : undefined}
          autoComplete="off"
          spellCheck={false}
          readOnly={secret !== undefined}
          value={draft.name}
          onChange={(event) => change({ name: event.target.value })}
        />
      </Field>
      <Field
        label="Value"
        help="The complete value, such as Bearer 8f3kZq0wXy. It is never shown again."
        required
        problem={problems.value}
      >
        <input
          className="field font-mono"
          data-first={secret === undefined ? undefined : true}
          type="password"
          autoComplete="new-password"
          ref={value}
        />
      </Field>
      <Field
        label="Hosts"
        help="One host or host:port per line, such as agent.example.com. The secret is sent only to these."
        required
        problem={problems.hosts}
      >
        <textarea
          className="field font-mono"
          rows={2}
          spellCheck={false}
          value={draft.hosts}
          onChange={(event) => change({ hosts: event.target.value })}
        />
      </Field>
      <div className="flex flex-wrap gap-4">
        <Field label="Scheme" help="http sends the secret unencrypted">
          <select
            className="field"
            value={draft.scheme}
            onChange={(event) => change({ scheme: event.target.value as SecretDraft["scheme"] })}
          >
            <option value="https">https</option>
            <option value="http">http</option>
          </select>
        </Field>
        <Field label="Location" help="Part of the request">
          <select
            className="field"
            value={draft.place}
            onChange={(event) => change({ place: event.target.value as SecretDraft["place"] })}
          >
            <option value="header">header</option>
            <option value="query">query</option>
            <option value="body">body</option>
          </select>
        </Field>
      </div>
      <label className="flex items-center gap-1.5 text-sm">
        <input type="checkbox" checked={draft.run} onChange={(event) => change({ run: event.target.checked })} />
        Allow every API key of scope run, not only scope admin
      </label>
      <Field label="API keys" help="Ids of other API keys that may use it, one per line (see: gradeline keys list)">
        <textarea
          className="field font-mono"
          rows={2}
          spellCheck={false}
          value={draft.keys}
          onChange={(event) => change({ keys: event.target.value })}
        />
      </Field>
      {saving.error && <ErrorNotice error={saving.error} />}
      <div className="flex justify-end gap-2">
        <Button onClick={onCancel}>Cancel</Button>
        <Button variant="primary" type="submit" disabled={saving.isPending}>
          {secret === undefined ? "Save" : "Replace"}
        </Button>
      </div>
    </form>
  );
}

/** The fields of the form as typed. */
interface SecretDraft {
  name: string;
  value: string;
  hosts: string;
  scheme: NonNullable<SecretBody["scheme"]>;
  place: NonNullable<SecretBody["place"]>;
  /** Allowed for every key of scope `run`. */
  run: boolean;
  keys: string;
}

type SecretProblems = Partial<Record<keyof SecretDraft, string>>;

const MIN_VALUE = 8;
const EMPTY: SecretDraft = { name: "", value: "", hosts: "", scheme: "https", place: "header", run: false, keys: "" };

/** The initial form: empty, or a stored secret without its value. */
export function secretDraftFrom(secret: Secret | undefined): SecretDraft {
  if (secret === undefined) return EMPTY;
  const { name, scheme, place } = secret;
  const run = secret.scopes.includes("run");
  return { name, value: "", hosts: secret.hosts.join("\n"), scheme, place, run, keys: secret.keys.join("\n") };
}

/** The request body, or messages by field. `taken`: names of other secrets. */
export function validateSecret(
  draft: SecretDraft,
  taken: readonly string[] = [],
): { name: string; body: SecretBody; problems: null } | { body: null; problems: SecretProblems } {
  const problems: SecretProblems = {};
  const name = draft.name.trim();
  const hosts = splitWords(draft.hosts);
  if (!/^[A-Za-z0-9_.-]{1,100}$/.test(name)) problems.name = "Use up to 100 letters, digits, _, - and .";
  else if (taken.includes(name)) problems.name = "A secret with this name exists; replace it from the list";
  if ([...draft.value].length < MIN_VALUE)
    problems.value = "Enter at least 8 characters: a shorter value cannot be masked";
  if (hosts.length === 0) problems.hosts = "Enter at least one host";
  if (Object.keys(problems).length > 0) return { body: null, problems };
  const { value, scheme, place } = draft;
  const scopes: SecretBody["scopes"] = draft.run ? ["admin", "run"] : ["admin"];
  return { name, body: { value, hosts, scheme, place, scopes, keys: splitWords(draft.keys) }, problems: null };
}

function splitWords(text: string): string[] {
  return [...new Set(text.split(/[\s,]+/).filter(Boolean))];
}
