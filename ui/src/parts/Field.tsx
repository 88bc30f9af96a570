import { useId, type ReactElement, cloneElement } from "react";

interface Props {
  label: string;
  help?: string | undefined;
  fault?: string | null | undefined;
  required?: boolean;
  /** An input; it gets its id, its description and whether it is valid. */
  children: ReactElement<{
    id?: string;
    "aria-describedby"?: string;
    "aria-invalid"?: boolean;
    "aria-required"?: boolean;
  }>;
}

export function Field({ label, help, fault, required = false, children }: Props) {
  const id = useId();
  const notes = [help && `${id}-help`, fault && `${id}-fault`].filter(Boolean).join(" ");
  return (
    <div className="flex flex-col gap-1">
      <label htmlFor={id} className="text-sm font-medium">
        {label}
        {required && <span className="text-muted"> (required)</span>}
      </label>
      {cloneElement(children, {
        id,
        ...(notes ? { "aria-describedby": notes } : {}),
        ...(fault ? { "aria-invalid": true } : {}),
        ...(required ? { "aria-required": true } : {}),
      })}
      {help && (
        <p id={`${id}-help`} className="text-xs text-muted">
          {help}
        </p>
      )}
      {fault && (
        <p id={`${id}-fault`} className="text-xs font-medium text-fail">
          {fault}
        </p>
      )}
    </div>
  );
}
