import { expect, test } from "vitest";
import { EventParser, followEvents, type Connection, type ServerEvent } from "../src/api/events.ts";

test("events are parsed however the stream is split", () => {
  const stream =
    'retry: 2000\n\n: beat\n\nid: 7\nevent: progress\ndata: {"a":1,\ndata: "b":2}\n\nid: 8\r\nevent: done\r\ndata: {}\r\n\r\n';
  const whole = new EventParser().push(stream);
  const parser = new EventParser();
  const cut = [...stream].flatMap((sign) => parser.push(sign));
  expect(cut).toEqual(whole);
  expect(whole).toEqual([
    { id: "7", event: "progress", data: '{"a":1,\n"b":2}' },
    { id: "8", event: "done", data: "{}" },
  ]);
});

test("an incomplete event is not reported", () => {
  expect(new EventParser().push("id: 1\nevent: progress\ndata: {}\n")).toEqual([]);
});

/** A service with scripted responses: each is the text of one connection, or a status. */
function service(responses: (string | number)[]) {
  const requests: (string | null)[] = [];
  const fake = (_: unknown, init?: RequestInit) => {
    requests.push(new Headers(init?.headers).get("Last-Event-ID"));
    const response = responses.shift();
    if (response === undefined) return Promise.reject(new TypeError("refused"));
    if (typeof response === "number") return Promise.resolve(new Response(null, { status: response }));
    return Promise.resolve(new Response(response));
  };
  return { requests, fetch: fake as typeof fetch };
}

async function followed(responses: (string | number)[], stopAfterPauses = 20) {
  const { requests, fetch } = service(responses);
  const events: ServerEvent[] = [];
  const states: Connection[] = [];
  const abort = new AbortController();
  let polls = 0;
  let pauses = 0;
  await followEvents({
    url: "api/events",
    fetch,
    signal: abort.signal,
    onEvent: (event) => events.push(event),
    onConnection: (state) => states.push(state),
    onPoll: () => {
      polls += 1;
    },
    pause: async () => {
      pauses += 1;
      if (pauses >= stopAfterPauses) abort.abort();
    },
  });
  return { requests, ids: events.map((event) => event.id), states, polls };
}

const event = (id: number, kind = "progress") => `id: ${id}\nevent: ${kind}\ndata: {}\n\n`;

test("a complete stream is read once", async () => {
  expect(await followed([event(1, "snapshot") + event(2) + event(3, "done")])).toEqual({
    requests: [null],
    ids: ["1", "2", "3"],
    states: ["connecting", "live", "ended"],
    polls: 0,
  });
});

test("an interrupted stream resumes after its last event, without gaps or duplicates", async () => {
  const { requests, ids, polls } = await followed([
    event(1) + event(2) + "id: 3\nevent: prog",
    event(3) + event(4, "done"),
  ]);
  expect({ requests, ids, polls }).toEqual({ requests: [null, "2"], ids: ["1", "2", "3", "4"], polls: 0 });
});

test("an event that is sent twice is delivered once", async () => {
  const { ids } = await followed([event(1) + event(2), event(2) + event(3, "done")]);
  expect(ids).toEqual(["1", "2", "3"]);
});

test("it polls while there is no stream, and returns to the stream", async () => {
  const { requests, states, polls } = await followed([503, 503, 503, event(1, "done")]);
  expect({ requests, polls }).toEqual({ requests: [null, null, null, null], polls: 2 });
  expect(states).toEqual(["connecting", "connecting", "polling", "polling", "live", "ended"]);
});

test("a run that was read to its end has no more events", async () => {
  expect((await followed([204])).requests).toEqual([null]);
});

test.each([401, 403, 404])("%i is final", async (status) => {
  const { requests, states } = await followed([status]);
  expect({ requests, states }).toEqual({ requests: [null], states: ["connecting", "ended"] });
});

test("leaving the page ends the stream", async () => {
  const { requests } = await followed([], 3);
  expect(requests.length).toBe(3);
});
