import type { Progress } from "../api/types.ts";
import { count, counted, percent } from "../lib/format.ts";

/** Two fills: answered, and within it graded. */
export function ProgressBar({ progress }: { progress: Progress }) {
  const total = progress.total ?? 0;
  const answered = share(progress.answered, total);
  const graded = share(progress.graded, total);
  const told = `${count(progress.answered)} of ${count(progress.total)} answered, ${count(progress.graded)} graded`;
  return (
    <div>
      <div
        role="progressbar"
        aria-label="Progress"
        aria-valuenow={Math.round(graded * 100)}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuetext={told}
        title={told}
        className="relative h-2.5 overflow-hidden rounded-full bg-raised"
      >
        <div
          className="absolute inset-y-0 left-0 bg-accent/35 transition-[width]"
          style={{ width: `${answered * 100}%` }}
        />
        <div className="absolute inset-y-0 left-0 bg-accent transition-[width]" style={{ width: `${graded * 100}%` }} />
      </div>
      <p className="num mt-1 text-sm text-muted">
        {told} ({percent(graded)}){progress.errors > 0 && `, ${counted(progress.errors, "agent error")}`}
      </p>
    </div>
  );
}

function share(part: number, total: number): number {
  return total > 0 ? Math.min(1, part / total) : 0;
}
