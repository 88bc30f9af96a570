import { cloneElement, type ReactElement, useId } from "react";
import { SafeText } from "./SafeText.tsx";

interface Props {
  label: string;
  help?: string | undefined;
  problem?: string | null | undefined;
  required?: boolean;
  /** The input; it receives its id, description and validity. */
  children: ReactElement<{
    id?: string;
    "aria-describedby"?: string;
    "aria-invalid"?: boolean;
    "aria-required"?: boolean;
  }>;
}

/** A checkbox with its label next to it. */
export function CheckboxField({
  label,
  help,
  problem,
  checked,
  disabled = false,
  onChange,
}: {
  label: string;
  help?: string | undefined;
  problem?: string | null | undefined;
  checked: boolean;
  disabled?: boolean;
  onChange: (checked: boolean) => void;
}) {
  const id = useId();
  const notes = [help && `${id}-help`, problem && `${id}-problem`].filter(Boolean).join(" ");
  return (
    <div className="flex items-start gap-2 text-sm">
      <input
        type="checkbox"
        id={id}
        className="mt-1"
        checked={checked}
        disabled={disabled}
        onChange={(event) => onChange(event.target.checked)}
        {...(notes ? { "aria-describedby": notes } : {})}
        {...(problem ? { "aria-invalid": true } : {})}
      />
      <div className="min-w-0">
        <label htmlFor={id} className="font-medium">
          {label}
        </label>
        <FieldNotes id={id} help={help} problem={problem && describeProblem(label, problem)} />
      </div>
    </div>
  );
}

/** Completes messages such as "is required" with the label of the field. */
export function describeProblem(label: string, problem: string): string {
  return /^(is required$|must be )/.test(problem) ? `${label} ${problem}` : problem;
}

function FieldNotes({
  id,
  help,
  problem,
}: {
  id: string;
  help?: string | undefined;
  problem?: string | null | undefined;
}) {
  return (
    <>
      {help && (
        <p id={`${id}-help`} className="text-xs text-muted">
          {help}
        </p>
      )}
      {problem && (
        <p id={`${id}-problem`} className="text-xs font-medium text-fail">
          <SafeText text={problem} />
        </p>
      )}
    </>
  );
}

export function Field({ label, help, problem, required = false, children }: Props) {
  const id = useId();
  const notes = [help && `${id}-help`, problem && `${id}-problem`].filter(Boolean).join(" ");
  return (
    <div className="flex flex-col gap-1">
      <label htmlFor={id} className="text-sm font-medium">
        {label}
        {required && <span className="text-muted"> (required)</span>}
      </label>
      {cloneElement(children, {
        id,
        ...(notes ? { "aria-describedby": notes } : {}),
        ...(problem ? { "aria-invalid": true } : {}),
        ...(required ? { "aria-required": true } : {}),
      })}
      <FieldNotes id={id} help={help} problem={problem && describeProblem(label, problem)} />
    </div>
  );
}
