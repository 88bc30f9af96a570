import { useQueries } from "@tanstack/react-query";
import { api } from "../../api/calls.ts";
import type { Evaluation } from "../../api/types.ts";
import { visibleText } from "../../lib/visible.ts";
import { Button, LinkButton } from "../../parts/Button.tsx";
import { compareAddress, PAIR } from "./selection.ts";

interface Props {
  chosen: readonly string[];
  /** The page of the list that shows; a chosen run may be on another one. */
  listed: readonly Evaluation[];
  onClear: () => void;
}

/** What is chosen, and what can be done with it. */
export function CompareBar({ chosen, listed, onClear }: Props) {
  const found = useQueries({
    queries: chosen.map((id) => ({
      queryKey: ["run", id],
      queryFn: ({ signal }: { signal: AbortSignal }) => api.run(id, signal),
      enabled: !listed.some((run) => run.id === id),
      retry: false,
    })),
  });
  if (chosen.length === 0) return null;
  const runs = chosen.map((id, index) => listed.find((run) => run.id === id) ?? found[index]?.data);
  const known = runs.filter((run) => run !== undefined);
  const [first, second] = known;
  const lost = found.some((one) => one.error);
  return (
    <section
      aria-label="Chosen runs"
      className="sticky top-22 z-10 md:top-14 flex flex-wrap items-center gap-2 rounded-md border border-accent bg-surface p-2 text-sm"
    >
      <span role="status" className="mr-auto min-w-0">
        <b className="num">
          {chosen.length} of {PAIR}
        </b>{" "}
        chosen: {known.map((run) => visibleText(run.name || run.id.slice(0, 8))).join(" and ")}
        {lost && <span className="text-warn"> One of them is no longer there.</span>}
      </span>
      {first && second ? (
        <LinkButton look="main" to={compareAddress([first, second], listed)}>
          Compare
        </LinkButton>
      ) : (
        <Button look="main" disabled title="Choose two runs">
          Compare
        </Button>
      )}
      <Button onClick={onClear}>Clear</Button>
    </section>
  );
}
