import { api } from "../../api/calls.ts";
import type { JsonObject, ResultDetail } from "../../api/types.ts";
import { isGoing } from "../../lib/progress.ts";
import { randomToken } from "../../lib/token.ts";
import { targetOf, type Draft } from "./draft.ts";

const CASE = "try";
const PAUSE_MS = 300;

/**
 * Asks the agent once: a run of one case that is taken away again. (Who may not delete runs sees it in the list, by its
 * name.)
 */
export async function tryAgent(
  draft: Pick<Draft, "url" | "mapping" | "timeout">,
  input: string,
  signal: AbortSignal,
): Promise<ResultDetail> {
  const target: JsonObject = targetOf(draft) ?? { kind: "http", url: draft.url.trim() };
  const suite: JsonObject = {
    name: "Try the agent",
    dataset: [{ id: CASE, input }],
    target: { retries: 0, ...target },
    graders: { latency: { kind: "latency" } },
  };
  const run = await api.startRun({ suite }, randomToken());
  try {
    let status = run.status;
    while (isGoing(status)) {
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      signal.throwIfAborted();
      status = (await api.run(run.id, signal)).status;
    }
    return await api.result(run.id, `${CASE}~0`, signal);
  } finally {
    await api.deleteRun(run.id).catch(() => undefined);
  }
}
