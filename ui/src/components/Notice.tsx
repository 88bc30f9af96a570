import type { ReactNode } from "react";
import { describeError } from "../api/error.ts";
import { Button } from "./Button.tsx";
import { SafeText } from "./SafeText.tsx";

/** Shown instead of an empty list: what belongs there and what to do next. */
export function EmptyState({ title, children, actions }: { title: string; children?: ReactNode; actions?: ReactNode }) {
  return (
    <div className="card flex flex-col items-center gap-3 px-6 py-12 text-center">
      <h2 className="text-lg font-semibold">{title}</h2>
      {children && <div className="max-w-prose text-muted">{children}</div>}
      {actions && <div className="flex flex-wrap justify-center gap-2">{actions}</div>}
    </div>
  );
}

export function ErrorNotice({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const { headline, message } = describeError(error);
  return (
    <div role="alert" className="rounded-md border border-fail bg-fail-soft p-3 text-sm">
      <p className="font-semibold text-fail">{headline}</p>
      <SafeText text={message} />
      {onRetry && (
        <div className="mt-2">
          <Button onClick={onRetry}>Try again</Button>
        </div>
      )}
    </div>
  );
}

/** Warnings about a run or comparison. */
export function Warnings({ warnings }: { warnings: readonly string[] | undefined }) {
  if (warnings === undefined || warnings.length === 0) return null;
  return (
    <section aria-label="Warnings" className="card border-l-4! border-warn p-3 text-sm">
      <h2 className="font-semibold text-warn">{warnings.length === 1 ? "Warning" : "Warnings"}</h2>
      <ul className="flex flex-col gap-1">
        {warnings.map((warning) => (
          <li key={warning}>
            <SafeText text={warning} />
          </li>
        ))}
      </ul>
    </section>
  );
}

export function Loading({ what = "Loading" }: { what?: string }) {
  return (
    <p role="status" className="p-4 text-muted">
      {what}…
    </p>
  );
}
