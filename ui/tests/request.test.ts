import { afterEach, expect, test, vi } from "vitest";
import { ApiError } from "../src/api/error.ts";
import { apiUrl, request } from "../src/api/request.ts";
import { session } from "../src/api/session.ts";

function respondWith(status: number, body: unknown, headers: Record<string, string> = {}) {
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
  if (!(error instanceof ApiError)) throw new Error("the request did not fail");
  return error;
}

afterEach(() => vi.unstubAllGlobals());

test("the data of the envelope is returned", async () => {
  respondWith(200, { success: true, data: { id: "1" }, error: null });
  expect(await request("GET", "things")).toEqual({ id: "1" });
  respondWith(204, undefined);
  expect(await request("DELETE", "things/1")).toBeUndefined();
});

test("errors are available by field", async () => {
  const details = { errors: [{ field: "stop_early", message: "needs a run" }, { field: 1, message: "x" }, "nonsense"] };
  respondWith(400, { success: false, data: null, error: { code: "INVALID_INPUT", message: "Field", details } });
  expect((await failing(request("POST", "evaluations"))).fields).toEqual({ stop_early: "needs a run" });
  respondWith(500, "no envelope");
  expect((await failing(request("POST", "evaluations"))).fields).toEqual({});
});

test("an error has its code, message and details", async () => {
  const details = { errors: [{ line: 2, field: "input", message: "is required" }, "nonsense"] };
  respondWith(400, { success: false, data: null, error: { code: "INVALID_INPUT", message: "2 bad rows", details } });
  const failure = await failing(request("POST", "things"));
  expect([failure.code, failure.message, failure.status, failure.headline, failure.retryable]).toEqual([
    "INVALID_INPUT",
    "2 bad rows",
    400,
    "Invalid input",
    false,
  ]);
  expect(failure.rows).toEqual([{ line: 2, field: "input", message: "is required" }]);
});

test("a response without an envelope is an error", async () => {
  respondWith(502, "<html>bad gateway</html>");
  const failure = await failing(request("GET", "things"));
  expect([failure.code, failure.message, failure.retryable]).toEqual([
    "UNKNOWN",
    "The service responded with status 502.",
    true,
  ]);
  respondWith(200, { hello: 1 });
  expect((await failing(request("GET", "things"))).code).toBe("UNKNOWN");
});

test("the retry delay comes from the service", async () => {
  respondWith(
    429,
    { success: false, data: null, error: { code: "RATE_LIMITED", message: "slow down" } },
    { "Retry-After": "3" },
  );
  expect((await failing(request("GET", "things"))).retryAfterMs).toBe(3000);
});

test("an unreachable service is a network error", async () => {
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("Failed to fetch")));
  expect((await failing(request("GET", "things"))).code).toBe("NETWORK");
});

test("writes in a session send its CSRF token, reads do not", async () => {
  session.start({ local: false, scope: "run", key_id: "k", csrf_token: "t0k", expires_at: null });
  const calls = respondWith(200, { success: true, data: null, error: null });
  await request("POST", "things", { body: { a: 1 } });
  await request("GET", "things");
  const sent = calls.map(([, init]) => new Headers(init.headers));
  expect(sent.map((headers) => headers.get("X-CSRF-Token"))).toEqual(["t0k", null]);
  expect(sent[0]?.get("Content-Type")).toBe("application/json");
});

test("a 401 ends the session, except at sign-in", async () => {
  const unauthorized = { success: false, data: null, error: { code: "UNAUTHORIZED", message: "no" } };
  session.start({ local: false, scope: "run", key_id: "k", csrf_token: "t0k", expires_at: null });
  respondWith(401, unauthorized);
  await failing(request("POST", "session", { body: { key: "wrong" } }));
  expect(session.csrf).toBe("t0k");
  await failing(request("GET", "things"));
  expect(session.csrf).toBeNull();
});

test("empty parameters are not sent", () => {
  expect(apiUrl("things", { q: "", tag: null, page: 0, text: "a&b ü" })).toBe("api/things?page=0&text=a%26b+%C3%BC");
  expect(apiUrl("things")).toBe("api/things");
});
