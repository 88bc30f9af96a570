import { useQueries } from "@tanstack/react-query";
import { api } from "../../api/client.ts";
import type { Evaluation } from "../../api/types.ts";
import { Button, LinkButton } from "../../components/Button.tsx";
import { runTitle } from "../../lib/run.ts";

interface Props {
  chosen: readonly string[];
  /** The current page of the list; a selected run may be on another page. */
  listed: readonly Evaluation[];
  onClear: () => void;
}

/** The selected runs and a button to compare them. */
export function CompareBar({ chosen, listed, onClear }: Props) {
  const queries = useQueries({
    queries: chosen.map((id) => ({
      queryKey: ["run", id],
      queryFn: ({ signal }: { signal: AbortSignal }) => api.run(id, signal),
      enabled: !listed.some((run) => run.id === id),
      retry: false,
    })),
  });
  if (chosen.length === 0) return null;
  const runs = chosen.map((id, index) => listed.find((run) => run.id === id) ?? queries[index]?.data);
  const loaded = runs.filter((run) => run !== undefined);
  const [first, second] = loaded;
  const lost = queries.some((one) => one.error);
  return (
    <section
      aria-label="Selected runs"
      className="sticky top-22 z-10 md:top-14 flex flex-wrap items-center gap-2 rounded-md border border-accent bg-surface p-2 text-sm"
    >
      <span role="status" className="mr-auto min-w-0">
        <b className="num">
          {chosen.length} of {PAIR}
        </b>{" "}
        selected: {loaded.map(runTitle).join(" and ")}
        {lost && <span className="text-warn"> One of them no longer exists.</span>}
      </span>
      {first && second ? (
        <LinkButton variant="primary" to={compareUrl([first, second], listed)}>
          Compare
        </LinkButton>
      ) : (
        <Button variant="primary" disabled title="Select two runs">
          Compare
        </Button>
      )}
      <Button onClick={onClear}>Clear</Button>
    </section>
  );
}

/** Number of runs in a comparison. */
export const PAIR = 2;

/** Adds or removes a run; a third one is ignored. */
export function toggleRun(chosen: readonly string[], id: string): readonly string[] {
  if (chosen.includes(id)) return chosen.filter((one) => one !== id);
  return chosen.length < PAIR ? [...chosen, id] : chosen;
}

/**
 * The URL that compares two runs, the older one as the baseline. If both started in the same second, their order in
 * `listed` (newest first) decides.
 */
export function compareUrl(pair: readonly [Evaluation, Evaluation], listed: readonly Evaluation[]): string {
  const [first, second] = pair;
  const listIndex = (run: Evaluation) => listed.findIndex((one) => one.id === run.id);
  const later = startTime(first) - startTime(second) || listIndex(second) - listIndex(first);
  const [older, newer] = later > 0 ? [second, first] : [first, second];
  return `/compare?baseline=${encodeURIComponent(older.id)}&candidate=${encodeURIComponent(newer.id)}`;
}

function startTime(run: Evaluation): number {
  return run.started_at ? Date.parse(run.started_at) : 0;
}
