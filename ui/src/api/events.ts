/** Server-sent events over `fetch`, which unlike `EventSource` can resume after a reload and sees a 401. */

export interface ServerEvent {
  id: string | null;
  event: string;
  data: string;
}

/** Parses a text stream into events, as the HTML standard specifies. */
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

interface FollowOptions {
  url: string;
  /** Id of the last event already received. */
  lastId?: string | null;
  onEvent: (event: ServerEvent) => void;
  onConnection: (state: Connection) => void;
  /** Called at intervals while there is no stream. */
  onPoll: () => void;
  signal: AbortSignal;
  fetch?: typeof fetch;
  /** Waits; returns early when the signal is aborted. */
  pause?: (ms: number, signal: AbortSignal) => Promise<void>;
}

const POLL_MS = 5_000;
const FIRST_PAUSE_MS = 500;
const FAILURES_BEFORE_POLLING = 2;
const FINAL_STATUSES = new Set([401, 403, 404]);

/**
 * Follows a run until its `done` event: resumes the stream after the last event, delivers no event twice, and polls
 * while there is no stream.
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
    // no more events: the stream was read to its end before
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
    // the connection was lost: the caller decides whether to retry
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
