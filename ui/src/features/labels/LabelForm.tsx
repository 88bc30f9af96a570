import { useMutation } from "@tanstack/react-query";
import { useId, useState } from "react";
import { Button } from "../../parts/Button.tsx";
import { Field } from "../../parts/Field.tsx";
import { Failure } from "../../parts/Notice.tsx";
import type { Label, NewLabel } from "./calls.ts";
import { labelDraftOf, labelOf, type LabelFaults } from "./draft.ts";

interface Props {
  label: Label | undefined;
  save: (label: NewLabel) => Promise<unknown>;
  onDone: () => void | Promise<void>;
  onLeave: () => void;
}

export function LabelForm({ label, save, onDone, onLeave }: Props) {
  const name = useId();
  const [draft, setDraft] = useState(() => labelDraftOf(label));
  const [faults, setFaults] = useState<LabelFaults>({});
  const saving = useMutation({ mutationFn: save, onSuccess: onDone });
  return (
    <form
      className="flex flex-col gap-3 py-2"
      onSubmit={(event) => {
        event.preventDefault();
        const read = labelOf(draft);
        setFaults(read.faults ?? {});
        if (read.label !== null) saving.mutate(read.label);
      }}
    >
      <fieldset className="flex flex-wrap items-center gap-4">
        <legend className="mb-1 font-medium">The answer is</legend>
        {(["pass", "fail"] as const).map((verdict) => (
          <label key={verdict} className="flex items-center gap-1.5">
            <input
              type="radio"
              name={name}
              checked={draft.verdict === verdict}
              onChange={() => setDraft({ ...draft, verdict })}
            />
            {verdict === "pass" ? "good (pass)" : "not good (fail)"}
          </label>
        ))}
        {faults.verdict && <span className="text-xs font-medium text-fail">{faults.verdict}</span>}
      </fieldset>
      <Field label="Why" required fault={faults.reason}>
        <textarea
          className="field"
          rows={3}
          value={draft.reason}
          onChange={(event) => setDraft({ ...draft, reason: event.target.value })}
        />
      </Field>
      <Field label="Score" help="From 0 to 1, where pass or fail says too little" fault={faults.score}>
        <input
          className="field num max-w-28"
          inputMode="decimal"
          value={draft.score}
          onChange={(event) => setDraft({ ...draft, score: event.target.value })}
        />
      </Field>
      {saving.error && <Failure error={saving.error} />}
      <div className="flex flex-wrap items-center gap-2">
        <Button look="main" type="submit" disabled={saving.isPending}>
          Save verdict
        </Button>
        <Button onClick={onLeave}>Leave</Button>
        <span className="text-xs text-muted">It stands beside the grade; no number of the run changes.</span>
      </div>
    </form>
  );
}
