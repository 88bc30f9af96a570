import type { Evaluation } from "../../api/types.ts";

/** How many runs are compared. */
export const PAIR = 2;

/** The chosen runs with one more, or without it; a third one is not taken. */
export function toggled(chosen: readonly string[], id: string): readonly string[] {
  if (chosen.includes(id)) return chosen.filter((one) => one !== id);
  return chosen.length < PAIR ? [...chosen, id] : chosen;
}

/**
 * The address that compares two runs: the older one is the baseline. `listed` is the page that shows, the newest first,
 * which settles it where two began in the same second.
 */
export function compareAddress(pair: readonly [Evaluation, Evaluation], listed: readonly Evaluation[]): string {
  const [first, second] = pair;
  const place = (run: Evaluation) => listed.findIndex((one) => one.id === run.id);
  const later = begun(first) - begun(second) || place(second) - place(first);
  const [older, newer] = later > 0 ? [second, first] : [first, second];
  return `/compare?baseline=${encodeURIComponent(older.id)}&candidate=${encodeURIComponent(newer.id)}`;
}

function begun(run: Evaluation): number {
  return run.started_at ? Date.parse(run.started_at) : 0;
}
