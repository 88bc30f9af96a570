import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api } from "../../api/client.ts";
import { ApiError } from "../../api/error.ts";
import type { TestCase, TestCaseFields } from "../../api/types.ts";
import { Button } from "../../components/Button.tsx";
import { ConfirmDialog, Dialog } from "../../components/Dialog.tsx";
import { Field } from "../../components/Field.tsx";
import { ErrorNotice, Loading } from "../../components/Notice.tsx";
import { toast } from "../../components/toast.tsx";
import { formatCount } from "../../lib/format.ts";
import { parseChecks, validateCase } from "./caseFile.ts";

const BLANK: TestCaseFields = { input: "", expected_output: "", description: null, tags: [], checks: null };

/** Creates a case (`id` is "new") or edits one. */
export function CaseEditor({ id, onClose }: { id: string; onClose: () => void }) {
  const isNew = id === "new";
  const stored = useQuery({ queryKey: ["case", id], queryFn: ({ signal }) => api.case(id, signal), enabled: !isNew });
  return (
    <Dialog open onClose={onClose} title={isNew ? "New test case" : "Test case"} side>
      {stored.error && <ErrorNotice error={stored.error} />}
      {!isNew && stored.isPending && <Loading />}
      {isNew && <CaseForm stored={null} onClose={onClose} />}
      {stored.data && <CaseForm key={stored.data.modified_at} stored={stored.data} onClose={onClose} />}
    </Dialog>
  );
}

const EXAMPLE = '[{"condition": "contains", "value": "Paris"}]';

function CaseForm({ stored, onClose }: { stored: TestCase | null; onClose: () => void }) {
  const [fields, setFields] = useState<TestCaseFields>(stored ?? BLANK);
  const [tags, setTags] = useState((stored?.tags ?? []).join(" "));
  const storedChecks = stored?.checks ? JSON.stringify(stored.checks, null, 2) : "";
  const [checksText, setChecksText] = useState(storedChecks);
  const [submitted, setSubmitted] = useState(false);
  const [confirming, setConfirming] = useState(false);
  const queries = useQueryClient();
  const { checks, problem: checksProblem } = parseChecks(checksText);
  const values = {
    input: fields.input,
    expected_output: fields.expected_output,
    description: fields.description?.trim() ? fields.description : null,
    tags: tags.split(/[\s,;]+/).filter(Boolean),
  };
  const problems = Object.fromEntries(validateCase(values).map((problem) => [problem.field ?? "", problem.message]));
  if (checksProblem !== null) problems["checks"] = checksProblem;
  const done = async (message: string) => {
    await queries.invalidateQueries({ queryKey: ["cases"] });
    if (stored) queries.removeQueries({ queryKey: ["case", stored.id] });
    toast(message);
    onClose();
  };
  const save = useMutation({
    // unchanged checks are not sent, because numbers such as 1.0 would be written in another form
    mutationFn: () =>
      stored
        ? api.updateCase(stored.id, checksText === storedChecks ? values : { ...values, checks })
        : api.createCase({ ...values, checks }),
    onSuccess: () => done(stored ? "Test case saved" : "Test case created"),
  });
  const remove = useMutation({
    mutationFn: () => api.deleteCase(stored?.id ?? ""),
    onSuccess: () => done("Test case deleted"),
  });
  const faults = Object.entries(save.error instanceof ApiError ? save.error.fields : {});
  const faultyChecks = faults.filter(([field]) => field.startsWith("checks")).map(([, message]) => message);
  const onlyChecks = faults.length > 0 && faultyChecks.length === faults.length;
  const problem = (field: string) => (submitted ? problems[field] : undefined);
  return (
    <form
      className="flex flex-col gap-4"
      noValidate
      onSubmit={(event) => {
        event.preventDefault();
        setSubmitted(true);
        if (Object.keys(problems).length === 0) save.mutate();
      }}
    >
      <Field
        label="Input"
        help={`What is sent to the agent. ${length(fields.input)}`}
        problem={problem("input")}
        required
      >
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
        help={`A correct response; graders compare with it. ${length(fields.expected_output)}`}
        problem={problem("expected_output")}
        required
      >
        <textarea
          className="field min-h-28 font-mono text-sm"
          dir="auto"
          value={fields.expected_output}
          onChange={(event) => setFields({ ...fields, expected_output: event.target.value })}
        />
      </Field>
      <Field label="Description" problem={problem("description")}>
        <input
          className="field"
          value={fields.description ?? ""}
          onChange={(event) => setFields({ ...fields, description: event.target.value })}
        />
      </Field>
      <Field
        label="Tags"
        help="Separated by spaces; letters, digits, - and _. An evaluation can run all cases with a tag."
        problem={problem("tags")}
      >
        <input className="field" value={tags} onChange={(event) => setTags(event.target.value)} />
      </Field>
      <Field
        label="Checks"
        help={`Optional JSON list of checks for this case, for a grader of kind checks. Example: ${EXAMPLE}`}
        problem={problem("checks") ?? faultyChecks.join("; ")}
      >
        <textarea
          className="field min-h-20 font-mono text-sm"
          dir="ltr"
          spellCheck={false}
          placeholder={EXAMPLE}
          value={checksText}
          onChange={(event) => {
            setChecksText(event.target.value);
            save.reset();
          }}
        />
      </Field>
      {save.error && !onlyChecks && <ErrorNotice error={save.error} />}
      {remove.error && <ErrorNotice error={remove.error} />}
      <div className="flex flex-wrap justify-between gap-2">
        {stored ? (
          <Button variant="danger" onClick={() => setConfirming(true)}>
            Delete
          </Button>
        ) : (
          <span />
        )}
        <span className="flex gap-2">
          <Button onClick={onClose}>Cancel</Button>
          <Button variant="primary" type="submit" disabled={save.isPending}>
            {stored ? "Save" : "Create"}
          </Button>
        </span>
      </div>
      <ConfirmDialog
        open={confirming}
        onClose={() => setConfirming(false)}
        title="Delete this test case?"
        action="Delete"
        onConfirm={() => remove.mutate()}
      >
        It is removed from the lists. Runs that used it keep their results and its text.
      </ConfirmDialog>
    </form>
  );
}

function length(text: string): string {
  return `${formatCount([...text].length)} of 10,000 characters.`;
}
