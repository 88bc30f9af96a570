import { expect, test } from "vitest";
import { binned } from "../src/lib/histogram.ts";

test("values fall into their bins, the ends included", () => {
  const counts = binned([0, 0.05, 0.1, 0.3, 0.30000000000000004, 0.95, 1], 0, 1, 10).map((bin) => bin.count);
  expect(counts).toEqual([2, 1, 0, 2, 0, 0, 0, 0, 0, 2]);
});

test("the ends of bins are numbers that can be read", () => {
  expect(binned([], 0, 1, 10).map((bin) => bin.low)).toEqual([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]);
});
