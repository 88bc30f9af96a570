/** Server-sent events over `fetch`, so that a reload can resume and a 401 is seen as one. */

export interface ServerEvent {
  id: string | null;
  event: string;
  data: string;
}

/** Cuts a stream of text into events, as the HTML standard says. */
export class EventParser {
  private rest = "";
  private event = "";
  private data: string[] = [];
  private id: string | null = null;

  push(chunk: string): ServerEvent[] {
    const lines = (this.rest + chunk).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.line(line));
  }

  private line(line: string): ServerEvent[] {
    if (line === "") return this.dispatch();
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.event = value;
    else if (field === "data") this.data.push(value);
    else if (field === "id" && !value.includes("\0")) this.id = value;
    return [];
  }

  private dispatch(): ServerEvent[] {
    const { data, event } = this;
    this.data = [];
    this.event = "";
    return data.length === 0 ? [] : [{ id: this.id, event: event || "message", data: data.join("\n") }];
  }
}

export type Connection = "connecting" | "live" | "polling" | "ended";

export interface FollowOptions {
  url: string;
  /** The last event that was seen before, if any. */
  lastId?: string | null;
  onEvent: (event: ServerEvent) => void;
  onConnection: (state: Connection) => void;
  /** Asked for while there is no stream. */
  onPoll: () => void;
  signal: AbortSignal;
  fetch?: typeof fetch;
  /** Waits, or returns early once the signal is aborted. */
  pause?: (ms: number, signal: AbortSignal) => Promise<void>;
}

export const POLL_MS = 5_000;
const FIRST_PAUSE_MS = 500;
const FAILURES_BEFORE_POLLING = 2;
const FINAL_STATUSES = new Set([401, 403, 404]);

/**
 * Follows a run until its `done` event: takes up the stream where it broke off, never hands an event on twice, and
 * polls while there is no stream.
 */
export async function followEvents(options: FollowOptions): Promise<void> {
  const { signal, pause = wait } = options;
  let lastId = options.lastId ?? null;
  let failures = 0;
  options.onConnection("connecting");
  while (!signal.aborted) {
    const before = lastId;
    const end = await readOnce(options, lastId, (event) => {
      failures = 0;
      if (event.id !== null && event.id === lastId) return;
      lastId = event.id ?? lastId;
      options.onEvent(event);
    });
    if (end === "done" || end === "refused" || signal.aborted) break;
    failures += lastId === before ? 1 : 0;
    if (failures < FAILURES_BEFORE_POLLING) {
      options.onConnection("connecting");
      await pause(FIRST_PAUSE_MS, signal);
    } else {
      options.onConnection("polling");
      options.onPoll();
      await pause(POLL_MS, signal);
    }
  }
  options.onConnection("ended");
}

type StreamEnd = "done" | "refused" | "broken";

async function readOnce(
  options: FollowOptions,
  lastId: string | null,
  onEvent: (event: ServerEvent) => void,
): Promise<StreamEnd> {
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (lastId !== null) headers["Last-Event-ID"] = lastId;
  try {
    const response = await (options.fetch ?? fetch)(options.url, {
      headers,
      signal: options.signal,
      credentials: "same-origin",
      cache: "no-store",
    });
    if (FINAL_STATUSES.has(response.status)) return "refused";
    // nothing is to come: all of it was read before
    if (response.status === 204) return "done";
    if (!response.ok || !response.body) return "broken";
    options.onConnection("live");
    const parser = new EventParser();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      for (const event of parser.push(part.value)) {
        onEvent(event);
        if (event.event === "done") {
          await reader.cancel().catch(() => undefined);
          return "done";
        }
      }
    }
  } catch {
    // cut off: the caller decides whether to try again
  }
  return "broken";
}

function wait(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        resolve();
      },
      { once: true },
    );
  });
}
