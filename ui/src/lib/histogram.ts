export interface Bin {
  low: number;
  /** Excluded, but for the last bin. */
  high: number;
  count: number;
}

/** Counts values into bins of equal width from `low` to `high`; what lies outside goes to the outermost bins. */
export function binned(values: readonly number[], low: number, high: number, bins: number): Bin[] {
  const width = (high - low) / bins;
  const result = Array.from({ length: bins }, (_, index) => ({
    low: rounded(low + index * width),
    high: rounded(low + (index + 1) * width),
    count: 0,
  }));
  for (const value of values) {
    const index = Math.min(bins - 1, Math.max(0, Math.floor(rounded((value - low) / width))));
    const bin = result[index];
    if (bin) bin.count += 1;
  }
  return result;
}

// 0.1 + 0.2 must not fall below its bin.
function rounded(value: number): number {
  return Number(value.toPrecision(12));
}
