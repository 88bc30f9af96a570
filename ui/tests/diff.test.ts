import { expect, test } from "vitest";
import { wordDiff } from "../src/lib/diff.ts";

test("texts are compared word by word", () => {
  expect(wordDiff("the capital is Paris", "the capital is Lyon today")).toEqual({
    gaveUp: false,
    changes: [
      { kind: "same", text: "the capital is " },
      { kind: "removed", text: "Paris" },
      { kind: "added", text: "Lyon today" },
    ],
  });
});

test("a single short word is compared by character", () => {
  expect(wordDiff("42", "43").changes).toEqual([
    { kind: "same", text: "4" },
    { kind: "removed", text: "2" },
    { kind: "added", text: "3" },
  ]);
});

test("equal texts have no change, and an empty one is all added", () => {
  expect(wordDiff("same text here", "same text here").changes).toEqual([{ kind: "same", text: "same text here" }]);
  expect(wordDiff("", "new text").changes).toEqual([{ kind: "added", text: "new text" }]);
});

test("what is kept and removed is the one text, what is kept and added the other", () => {
  const before = "one  two\nthree four\t five";
  const after = "zero one two\nthree  five six";
  const { changes } = wordDiff(before, after);
  const without = (kind: string) =>
    changes
      .filter((change) => change.kind !== kind)
      .map((change) => change.text)
      .join("");
  expect(without("added")).toBe(before);
  expect(without("removed")).toBe(after);
});

test("texts that have nothing in common are not compared for ever", () => {
  const words = (sign: string) => Array.from({ length: 6_000 }, (_, index) => `${sign}${index}`).join(" ");
  const { gaveUp, changes } = wordDiff(words("a"), words("b"));
  expect(gaveUp).toBe(true);
  expect(changes.map((change) => change.kind)).toEqual(["removed", "added"]);
});
