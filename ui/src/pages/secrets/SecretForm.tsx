import { useMutation } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { Button } from "../../parts/Button.tsx";
import { Field } from "../../parts/Field.tsx";
import { Failure } from "../../parts/Notice.tsx";
import type { Secret, SecretBody } from "./calls.ts";
import { secretDraftOf, secretOf, type SecretDraft, type SecretFaults } from "./draft.ts";

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
  const [draft, setDraft] = useState(() => secretDraftOf(secret));
  const [faults, setFaults] = useState<SecretFaults>({});
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
        const read = secretOf({ ...draft, value: value.current?.value ?? "" }, taken);
        setFaults(read.faults ?? {});
        if (read.body !== null) saving.mutate({ name: read.name, body: read.body });
      }}
    >
      <Field label="Name" help="A target names it: {secret: NAME}" required fault={faults.name}>
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
        fault={faults.value}
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
        fault={faults.hosts}
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
      {saving.error && <Failure error={saving.error} />}
      <div className="flex justify-end gap-2">
        <Button onClick={onLeave}>Leave</Button>
        <Button look="main" type="submit" disabled={saving.isPending}>
          {secret === undefined ? "Store" : "Replace"}
        </Button>
      </div>
    </form>
  );
}
