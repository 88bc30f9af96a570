import { expect, test } from "vitest";
import { integer, list, oneOf, range, readState, text, writeState } from "../src/lib/urlState.ts";

const SPEC = {
  q: text(),
  page: integer(1, 1),
  outcome: oneOf(["", "pass", "fail"] as const, ""),
  sel: list(),
  score: range(),
};

test("an empty URL is the initial state", () => {
  expect(readState(SPEC, new URLSearchParams())).toEqual({ q: "", page: 1, outcome: "", sel: [], score: null });
});

test("written state can be read again", () => {
  const state = { q: "a & b=c", page: 3, outcome: "fail" as const, sel: ["x,y", "z%"], score: { low: 0.5, high: 0.6 } };
  const written = writeState(SPEC, new URLSearchParams(), state);
  expect(readState(SPEC, new URLSearchParams(written.toString()))).toEqual(state);
});

test.each([
  ["page=0", { page: 1 }],
  ["page=1e3", { page: 1 }],
  ["outcome=nonsense", { outcome: "" }],
  ["score=1..0", { score: null }],
  ["score=..1", { score: null }],
  ["score=a..b", { score: null }],
  ["sel=%25E0%25A4%25A", { sel: [] }],
])("%s is invalid, so the initial value is used", (address, state) => {
  expect(readState(SPEC, new URLSearchParams(address))).toMatchObject(state);
});

test("initial values are removed from the URL, unknown parameters stay", () => {
  const now = new URLSearchParams("q=old&page=4&other=1");
  expect(writeState(SPEC, now, { q: "", page: 1 }).toString()).toBe("other=1");
});

test("a change does not modify its input", () => {
  const now = new URLSearchParams("q=old");
  writeState(SPEC, now, { q: "new" });
  expect(now.toString()).toBe("q=old");
});
