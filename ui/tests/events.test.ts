import { expect, test } from "vitest";
import { EventParser, followEvents, type Connection, type ServerEvent } from "../src/api/events.ts";

test("events are read however the stream is cut", () => {
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

test("an event that is not finished is not told", () => {
  expect(new EventParser().push("id: 1\nevent: progress\ndata: {}\n")).toEqual([]);
});

/** A service whose answers are written down; each is the text of one connection, or a status. */
function service(answers: (string | number)[]) {
  const asked: (string | null)[] = [];
  const fake = (_: unknown, init?: RequestInit) => {
    asked.push(new Headers(init?.headers).get("Last-Event-ID"));
    const answer = answers.shift();
    if (answer === undefined) return Promise.reject(new TypeError("refused"));
    if (typeof answer === "number") return Promise.resolve(new Response(null, { status: answer }));
    return Promise.resolve(new Response(answer));
  };
  return { asked, fetch: fake as typeof fetch };
}

async function followed(answers: (string | number)[], stopAfterPauses = 20) {
  const { asked, fetch } = service(answers);
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
  return { asked, ids: events.map((event) => event.id), states, polls };
}

const event = (id: number, kind = "progress") => `id: ${id}\nevent: ${kind}\ndata: {}\n\n`;

test("a stream that ends well is read once", async () => {
  expect(await followed([event(1, "snapshot") + event(2) + event(3, "done")])).toEqual({
    asked: [null],
    ids: ["1", "2", "3"],
    states: ["connecting", "live", "ended"],
    polls: 0,
  });
});

test("a stream that is cut is taken up behind its last event, without a gap or a repeat", async () => {
  const { asked, ids, polls } = await followed([
    event(1) + event(2) + "id: 3\nevent: prog",
    event(3) + event(4, "done"),
  ]);
  expect({ asked, ids, polls }).toEqual({ asked: [null, "2"], ids: ["1", "2", "3", "4"], polls: 0 });
});

test("an event that is sent again is not handed on again", async () => {
  const { ids } = await followed([event(1) + event(2), event(2) + event(3, "done")]);
  expect(ids).toEqual(["1", "2", "3"]);
});

test("while there is no stream it polls, and goes back to the stream when there is one", async () => {
  const { asked, states, polls } = await followed([503, 503, 503, event(1, "done")]);
  expect({ asked, polls }).toEqual({ asked: [null, null, null, null], polls: 2 });
  expect(states).toEqual(["connecting", "connecting", "polling", "polling", "live", "ended"]);
});

test("a run that was read to its end has nothing to come", async () => {
  expect((await followed([204])).asked).toEqual([null]);
});

test.each([401, 403, 404])("%i is final", async (status) => {
  const { asked, states } = await followed([status]);
  expect({ asked, states }).toEqual({ asked: [null], states: ["connecting", "ended"] });
});

test("who leaves the page is not followed any longer", async () => {
  const { asked } = await followed([], 3);
  expect(asked.length).toBe(3);
});
