import { afterEach, expect, test, vi } from "vitest";
import { ApiError } from "../src/api/error.ts";
import { apiUrl, request } from "../src/api/request.ts";
import { session } from "../src/api/session.ts";

function answering(status: number, body: unknown, headers: Record<string, string> = {}) {
  const calls: [string, RequestInit][] = [];
  vi.stubGlobal("fetch", (url: string, init: RequestInit) => {
    calls.push([url, init]);
    const text = body === undefined ? null : typeof body === "string" ? body : JSON.stringify(body);
    return Promise.resolve(new Response(text, { status, headers }));
  });
  return calls;
}

async function failing(act: Promise<unknown>): Promise<ApiError> {
  const error = await act.catch((thrown: unknown) => thrown);
  if (!(error instanceof ApiError)) throw new Error("it did not fail");
  return error;
}

afterEach(() => vi.unstubAllGlobals());

test("the data is taken out of the envelope", async () => {
  answering(200, { success: true, data: { id: "1" }, error: null });
  expect(await request("GET", "things")).toEqual({ id: "1" });
  answering(204, undefined);
  expect(await request("DELETE", "things/1")).toBeUndefined();
});

test("what is wrong is known by field", async () => {
  const details = { errors: [{ field: "stop_early", message: "needs a run" }, { field: 1, message: "x" }, "nonsense"] };
  answering(400, { success: false, data: null, error: { code: "INVALID_INPUT", message: "Field", details } });
  expect((await failing(request("POST", "evaluations"))).fields).toEqual({ stop_early: "needs a run" });
  answering(500, "no envelope");
  expect((await failing(request("POST", "evaluations"))).fields).toEqual({});
});

test("an error has its code, its message and what goes with it", async () => {
  const details = { errors: [{ line: 2, field: "input", message: "is required" }, "nonsense"] };
  answering(400, { success: false, data: null, error: { code: "INVALID_INPUT", message: "2 bad rows", details } });
  const failure = await failing(request("POST", "things"));
  expect([failure.code, failure.message, failure.status, failure.headline, failure.retryable]).toEqual([
    "INVALID_INPUT",
    "2 bad rows",
    400,
    "This is not accepted",
    false,
  ]);
  expect(failure.rows).toEqual([{ line: 2, field: "input", message: "is required" }]);
});

test("what is no envelope is a failure too", async () => {
  answering(502, "<html>bad gateway</html>");
  const failure = await failing(request("GET", "things"));
  expect([failure.code, failure.message, failure.retryable]).toEqual(["UNKNOWN", "The service answered 502.", true]);
  answering(200, { hello: 1 });
  expect((await failing(request("GET", "things"))).code).toBe("UNKNOWN");
});

test("when to ask again is the service's word", async () => {
  answering(
    429,
    { success: false, data: null, error: { code: "RATE_LIMITED", message: "slow down" } },
    { "Retry-After": "3" },
  );
  expect((await failing(request("GET", "things"))).retryAfterMs).toBe(3000);
});

test("a service that is not there is told as such", async () => {
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("Failed to fetch")));
  expect((await failing(request("GET", "things"))).code).toBe("NETWORK");
});

test("writes in a session carry its token, reads do not", async () => {
  session.start({ local: false, scope: "run", key_id: "k", csrf_token: "t0k", expires_at: null });
  const calls = answering(200, { success: true, data: null, error: null });
  await request("POST", "things", { body: { a: 1 } });
  await request("GET", "things");
  const sent = calls.map(([, init]) => new Headers(init.headers));
  expect(sent.map((headers) => headers.get("X-CSRF-Token"))).toEqual(["t0k", null]);
  expect(sent[0]?.get("Content-Type")).toBe("application/json");
});

test("401 ends the session; a wrong key at the door does not count as one", async () => {
  const unauthorized = { success: false, data: null, error: { code: "UNAUTHORIZED", message: "no" } };
  session.start({ local: false, scope: "run", key_id: "k", csrf_token: "t0k", expires_at: null });
  answering(401, unauthorized);
  await failing(request("POST", "session", { body: { key: "wrong" } }));
  expect(session.csrf).toBe("t0k");
  await failing(request("GET", "things"));
  expect(session.csrf).toBeNull();
});

test("empty parameters are not sent", () => {
  expect(apiUrl("things", { q: "", tag: null, page: 0, text: "a&b ü" })).toBe("api/things?page=0&text=a%26b+%C3%BC");
  expect(apiUrl("things")).toBe("api/things");
});
