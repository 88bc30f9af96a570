import { useMutation } from "@tanstack/react-query";
import { useRef, useState } from "react";
import type { Secret, SecretBody } from "../../api/types.ts";
import { Button } from "../../components/Button.tsx";
import { Field } from "../../components/Field.tsx";
import { ErrorNotice } from "../../components/Notice.tsx";

interface Props {
  /** The one to replace; undefined for a new one. */
  secret: Secret | undefined;
  taken: readonly string[];
  save: (name: string, body: SecretBody) => Promise<unknown>;
  onDone: (name: string) => void | Promise<void>;
  onLeave: () => void;
}

export function SecretForm({ secret, taken, save, onDone, onLeave }: Props) {
  // not part of the state: React would write it into an attribute of the field
  const value = useRef<HTMLInputElement>(null);
  const [draft, setDraft] = useState(() => secretDraftFrom(secret));
  const [problems, setProblems] = useState<SecretProblems>({});
  const saving = useMutation({
    mutationFn: ({ name, body }: { name: string; body: SecretBody }) => save(name, body),
    onSuccess: (_, { name }) => onDone(name),
    gcTime: 0, // its variables hold the value
  });
  const change = (part: Partial<SecretDraft>) => setDraft({ ...draft, ...part });
  return (
    <form
      className="flex flex-col gap-4"
      autoComplete="off"
      onSubmit={(event) => {
        event.preventDefault();
        const read = validateSecret({ ...draft, value: value.current?.value ?? "" }, taken);
        setProblems(read.problems ?? {});
        if (read.body !== null) saving.mutate({ name: read.name, body: read.body });
      }}
    >
      <Field label="Name" help="A target names it: {secret: NAME}" required problem={problems.name}>
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
        help="The whole value, such as Bearer 8f3kZq0wXy. It is never shown again."
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
        help="One host or host:port a line, such as agent.example.com. It is sent nowhere else."
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
        <Field label="Scheme" help="http sends it unencrypted">
          <select
            className="field"
            value={draft.scheme}
            onChange={(event) => change({ scheme: event.target.value as SecretDraft["scheme"] })}
          >
            <option value="https">https</option>
            <option value="http">http</option>
          </select>
        </Field>
        <Field label="Place" help="Where in a request">
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
        Every key of scope run may use it, not only those of scope admin
      </label>
      <Field label="Keys" help="Ids of further keys that may use it, one a line: gradeline keys list">
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
        <Button onClick={onLeave}>Leave</Button>
        <Button variant="primary" type="submit" disabled={saving.isPending}>
          {secret === undefined ? "Store" : "Replace"}
        </Button>
      </div>
    </form>
  );
}

/** The fields of the form as they are typed. */
export interface SecretDraft {
  name: string;
  value: string;
  hosts: string;
  scheme: NonNullable<SecretBody["scheme"]>;
  place: NonNullable<SecretBody["place"]>;
  /** Every key of scope `run` may use it. */
  run: boolean;
  keys: string;
}

export type SecretProblems = Partial<Record<keyof SecretDraft, string>>;

const MIN_VALUE = 8;
const EMPTY: SecretDraft = { name: "", value: "", hosts: "", scheme: "https", place: "header", run: false, keys: "" };

/** What the form begins with: nothing, or everything of a stored secret except its value. */
export function secretDraftFrom(secret: Secret | undefined): SecretDraft {
  if (secret === undefined) return EMPTY;
  const { name, scheme, place } = secret;
  const run = secret.scopes.includes("run");
  return { name, value: "", hosts: secret.hosts.join("\n"), scheme, place, run, keys: secret.keys.join("\n") };
}

/** What to send, or what is wrong; `taken` are the names of other secrets. */
export function validateSecret(
  draft: SecretDraft,
  taken: readonly string[] = [],
): { name: string; body: SecretBody; problems: null } | { body: null; problems: SecretProblems } {
  const problems: SecretProblems = {};
  const name = draft.name.trim();
  const hosts = splitWords(draft.hosts);
  if (!/^[A-Za-z0-9_.-]{1,100}$/.test(name)) problems.name = "Letters, digits, _, - and ., at most 100";
  else if (taken.includes(name)) problems.name = "A secret has this name already; replace it in the list";
  if ([...draft.value].length < MIN_VALUE) problems.value = "At least 8 characters: a shorter value cannot be masked";
  if (hosts.length === 0) problems.hosts = "Name at least one host";
  if (Object.keys(problems).length > 0) return { body: null, problems };
  const { value, scheme, place } = draft;
  const scopes: SecretBody["scopes"] = draft.run ? ["admin", "run"] : ["admin"];
  return { name, body: { value, hosts, scheme, place, scopes, keys: splitWords(draft.keys) }, problems: null };
}

function splitWords(text: string): string[] {
  return [...new Set(text.split(/[\s,]+/).filter(Boolean))];
}
