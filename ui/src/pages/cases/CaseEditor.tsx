import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "../../api/calls.ts";
import type { TestCase, TestCaseFields } from "../../api/types.ts";
import { faultsOf } from "../../lib/caseFile.ts";
import { count } from "../../lib/format.ts";
import { Button } from "../../parts/Button.tsx";
import { Confirm, Dialog } from "../../parts/Dialog.tsx";
import { Field } from "../../parts/Field.tsx";
import { Failure, Loading } from "../../parts/Notice.tsx";
import { toast } from "../../parts/toast.tsx";

const BLANK: TestCaseFields = { input: "", expected_output: "", description: null, tags: [] };

/** Writes a new case (`id` "new") or changes one. */
export function CaseEditor({ id, onClose }: { id: string; onClose: () => void }) {
  const isNew = id === "new";
  const stored = useQuery({ queryKey: ["case", id], queryFn: ({ signal }) => api.case(id, signal), enabled: !isNew });
  return (
    <Dialog open onClose={onClose} title={isNew ? "New test case" : "Test case"} side>
      {stored.error && <Failure error={stored.error} />}
      {!isNew && stored.isPending && <Loading />}
      {isNew && <CaseForm stored={null} onClose={onClose} />}
      {stored.data && <CaseForm key={stored.data.modified_at} stored={stored.data} onClose={onClose} />}
    </Dialog>
  );
}

function CaseForm({ stored, onClose }: { stored: TestCase | null; onClose: () => void }) {
  const [fields, setFields] = useState<TestCaseFields>(stored ?? BLANK);
  const [tags, setTags] = useState((stored?.tags ?? []).join(" "));
  const [tried, setTried] = useState(false);
  const [asking, setAsking] = useState(false);
  const queries = useQueryClient();
  const given: TestCaseFields = {
    input: fields.input,
    expected_output: fields.expected_output,
    description: fields.description?.trim() ? fields.description : null,
    tags: tags.split(/[\s,;]+/).filter(Boolean),
  };
  const faults = Object.fromEntries(faultsOf(given).map((fault) => [fault.field ?? "", fault.message]));
  const done = async (said: string) => {
    await queries.invalidateQueries({ queryKey: ["cases"] });
    if (stored) queries.removeQueries({ queryKey: ["case", stored.id] });
    toast(said);
    onClose();
  };
  const save = useMutation({
    mutationFn: () => (stored ? api.updateCase(stored.id, given) : api.createCase(given)),
    onSuccess: () => done(stored ? "Saved" : "Created"),
  });
  const remove = useMutation({ mutationFn: () => api.deleteCase(stored?.id ?? ""), onSuccess: () => done("Deleted") });
  const fault = (field: string) => (tried ? faults[field] : undefined);
  return (
    <form
      className="flex flex-col gap-4"
      noValidate
      onSubmit={(event) => {
        event.preventDefault();
        setTried(true);
        if (Object.keys(faults).length === 0) save.mutate();
      }}
    >
      <Field label="Input" help={`What the agent is asked. ${length(fields.input)}`} fault={fault("input")} required>
        <textarea
          data-first
          className="field min-h-28 font-mono text-sm"
          dir="auto"
          value={fields.input}
          onChange={(event) => setFields({ ...fields, input: event.target.value })}
        />
      </Field>
      <Field
        label="Expected output"
        help={`What a good answer is; graders compare with it. ${length(fields.expected_output)}`}
        fault={fault("expected_output")}
        required
      >
        <textarea
          className="field min-h-28 font-mono text-sm"
          dir="auto"
          value={fields.expected_output}
          onChange={(event) => setFields({ ...fields, expected_output: event.target.value })}
        />
      </Field>
      <Field label="Description" fault={fault("description")}>
        <input
          className="field"
          value={fields.description ?? ""}
          onChange={(event) => setFields({ ...fields, description: event.target.value })}
        />
      </Field>
      <Field
        label="Tags"
        help="Separated by blanks: letters, digits, - and _. An evaluation can take all cases of a tag."
        fault={fault("tags")}
      >
        <input className="field" value={tags} onChange={(event) => setTags(event.target.value)} />
      </Field>
      {save.error && <Failure error={save.error} />}
      {remove.error && <Failure error={remove.error} />}
      <div className="flex flex-wrap justify-between gap-2">
        {stored ? (
          <Button look="danger" onClick={() => setAsking(true)}>
            Delete
          </Button>
        ) : (
          <span />
        )}
        <span className="flex gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button look="main" type="submit" disabled={save.isPending}>
            {stored ? "Save" : "Create"}
          </Button>
        </span>
      </div>
      <Confirm
        open={asking}
        onClose={() => setAsking(false)}
        title="Delete this test case?"
        action="Delete"
        onConfirm={() => remove.mutate()}
      >
        It disappears from the lists. Runs that used it keep their results and its text.
      </Confirm>
    </form>
  );
}

function length(text: string): string {
  return `${count([...text].length)} of 10,000 characters.`;
}
