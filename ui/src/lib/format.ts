/** Formats numbers and times. Show every rate with its interval and its denominator. */

const NONE = "–";
const WHOLE = new Intl.NumberFormat("en");
const DATE_TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

export function formatCount(value: number | null | undefined): string {
  return value === null || value === undefined ? NONE : WHOLE.format(value);
}

/** "1 case", "2 cases". */
export function pluralize(value: number, noun: string, plural = `${noun}s`): string {
  return `${WHOLE.format(value)} ${value === 1 ? noun : plural}`;
}

/** " in 24 clusters"; empty if no case has a cluster. */
export function inClusters(clusters: number | null | undefined): string {
  return clusters === null || clusters === undefined ? "" : ` in ${pluralize(clusters, "cluster")}`;
}

/** A share as a percentage; 0 % and 100 % only for exactly 0 and 1. */
export function formatPercent(share: number | null | undefined, digits = 0): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return NONE;
  return `${percentDigits(share, digits)} %`;
}

function percentDigits(share: number, digits: number): string {
  const text = (share * 100).toFixed(digits);
  const rounded = Number(text) / 100;
  if ((rounded === 1 && share < 1) || (rounded === 0 && share > 0)) {
    return digits >= 4 ? text : percentDigits(share, digits + 1);
  }
  return text;
}

export interface Estimate {
  value: number | null;
  low: number | null;
  high: number | null;
}

/** "82 % (74–88 %)"; only the value if there is no interval. */
export function formatRate({ value, low, high }: Estimate): string {
  if (value === null) return NONE;
  if (low === null || high === null) return formatPercent(value);
  return `${formatPercent(value)} (${percentDigits(low, 0)}–${formatPercent(high)})`;
}

/** "0.82 (0.74–0.88)". */
export function formatMean({ value, low, high }: Estimate): string {
  if (value === null) return NONE;
  if (low === null || high === null) return formatScore(value);
  return `${formatScore(value)} (${formatScore(low)}–${formatScore(high)})`;
}

export function formatScore(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  return Number.isInteger(value) ? value.toFixed(0) : value.toFixed(2);
}

/** A duration in the unit that needs the fewest digits. */
export function formatDuration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return NONE;
  if (ms > 0 && ms < 1) return "< 1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** The time between two timestamps with a resolution of one second. */
export function formatElapsed(start: string, end: string): string {
  const ms = Date.parse(end) - Date.parse(start);
  return ms < 1000 ? "under 1 s" : formatDuration(ms).replace(".0 s", " s");
}

export function formatDateTime(iso: string | null | undefined): string {
  const time = iso ? new Date(iso) : null;
  return time === null || Number.isNaN(time.getTime()) ? NONE : DATE_TIME.format(time);
}

/** "just now", "5 min ago", "3 days ago". */
export function formatAgo(iso: string | null | undefined, now = Date.now()): string {
  const time = iso ? Date.parse(iso) : Number.NaN;
  if (Number.isNaN(time)) return NONE;
  const minutes = Math.floor((now - time) / 60_000);
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${minutes} min ago`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ago`;
  return `${pluralize(Math.floor(hours / 24), "day")} ago`;
}

/** "512 B", "1.5 KiB", "12 MiB". */
export function formatBytes(size: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = size;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 10 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export function formatCost(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  return `$${value.toFixed(value < 0.01 ? 5 : value < 1 ? 3 : 2)}`;
}
