import { expect, test } from "vitest";
import type { Evaluation } from "../src/api/types.ts";
import { compareUrl, toggleRun } from "../src/pages/runs/CompareBar.tsx";

function run(id: string, started_at: string | null): Evaluation {
  return { id, started_at } as Evaluation;
}

test("two runs can be selected, a third one is ignored", () => {
  expect(toggleRun([], "a")).toEqual(["a"]);
  expect(toggleRun(["a"], "b")).toEqual(["a", "b"]);
  expect(toggleRun(["a", "b"], "c")).toEqual(["a", "b"]);
  expect(toggleRun(["a", "b"], "a")).toEqual(["b"]);
});

test("the older run is the baseline, in any order of selection", () => {
  const older = run("o", "2026-01-01T00:00:00Z");
  const newer = run("n/1", "2026-01-01T00:00:09Z");
  const address = "/compare?baseline=o&candidate=n%2F1";
  expect(compareUrl([older, newer], [])).toBe(address);
  expect(compareUrl([newer, older], [])).toBe(address);
});

test("the order of the list decides between two runs that started in the same second", () => {
  const [newer, older] = [run("n", "2026-01-01T00:00:00Z"), run("o", "2026-01-01T00:00:00Z")];
  const address = "/compare?baseline=o&candidate=n";
  expect(compareUrl([newer, older], [newer, older])).toBe(address);
  expect(compareUrl([older, newer], [newer, older])).toBe(address);
});
