import { expect, test } from "vitest";
import {
  formatAgo,
  formatElapsed,
  formatBytes,
  formatCost,
  formatCount,
  pluralize,
  formatDuration,
  formatMean,
  formatPercent,
  formatRate,
  formatScore,
} from "../src/lib/format.ts";

test("a rate comes with its interval", () => {
  expect(formatRate({ value: 0.82, low: 0.741, high: 0.879 })).toBe("82 % (74–88 %)");
  expect(formatRate({ value: 0.82, low: null, high: null })).toBe("82 %");
  expect(formatMean({ value: 0.8234, low: 0.7, high: 0.9 })).toBe("0.82 (0.70–0.90)");
});

test("a missing value is not zero", () => {
  expect([
    formatRate({ value: null, low: null, high: null }),
    formatPercent(null),
    formatScore(null),
    formatDuration(null),
    formatCount(null),
    formatCost(null),
  ]).toEqual(Array.from({ length: 6 }, () => "–"));
});

test("a share is 0 % or 100 % only if it is exact", () => {
  expect([1, 0.999, 0.9996, 0.001, 0, 0.5].map((share) => formatPercent(share))).toEqual([
    "100 %",
    "99.9 %",
    "99.96 %",
    "0.1 %",
    "0 %",
    "50 %",
  ]);
});

test("elapsed time has a resolution of a second", () => {
  const start = "2026-01-15T10:00:00Z";
  expect([start, "2026-01-15T10:00:01Z", "2026-01-15T10:02:05Z"].map((end) => formatElapsed(start, end))).toEqual([
    "under 1 s",
    "1 s",
    "2 min 5 s",
  ]);
});

test("durations have a suitable unit", () => {
  expect([0, 0.4, 12.4, 999, 1500, 59_000, 61_000, 3_700_000].map(formatDuration)).toEqual([
    "0 ms",
    "< 1 ms",
    "12 ms",
    "999 ms",
    "1.5 s",
    "59 s",
    "1 min 1 s",
    "1 h 1 min",
  ]);
});

test("nouns agree with their number", () => {
  expect([pluralize(1, "case"), pluralize(0, "case"), pluralize(12_345, "case")]).toEqual([
    "1 case",
    "0 cases",
    "12,345 cases",
  ]);
});

test("time ago is rounded", () => {
  const now = Date.parse("2026-01-15T12:00:00Z");
  const at = (iso: string | null) => formatAgo(iso, now);
  expect([
    at("2026-01-15T11:59:40Z"),
    at("2026-01-15T11:30:00Z"),
    at("2026-01-15T02:00:00Z"),
    at("2026-01-12T12:00:00Z"),
    at(null),
  ]).toEqual(["just now", "30 min ago", "10 h ago", "3 days ago", "–"]);
});

test("sizes have a suitable unit", () => {
  expect([0, 512, 1536, 20_480, 12.4 * 1024 ** 2, 3 * 1024 ** 4].map(formatBytes)).toEqual([
    "0 B",
    "512 B",
    "1.5 KiB",
    "20 KiB",
    "12 MiB",
    "3.0 TiB",
  ]);
});
