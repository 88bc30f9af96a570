import { useCallback, useMemo } from "react";
import { useSearchParams } from "react-router";

/** State in the URL: shared by links, kept by reloads, undone by "back". */

interface Codec<T> {
  /** Used if the parameter is absent or invalid. */
  initial: T;
  read: (text: string) => T | undefined;
  write: (value: T) => string;
}

export const text = (initial = ""): Codec<string> => ({ initial, read: (value) => value, write: (value) => value });

export const oneOf = <T extends string>(choices: readonly T[], initial: T): Codec<T> => ({
  initial,
  read: (value) => choices.find((choice) => choice === value),
  write: (value) => value,
});

export const integer = (initial: number, low = 0, high = Number.MAX_SAFE_INTEGER): Codec<number> => ({
  initial,
  read: (value) => {
    const number = Number(value);
    return /^-?\d+$/.test(value) && number >= low && number <= high ? number : undefined;
  },
  write: String,
});

export const list = (): Codec<readonly string[]> => ({
  initial: [],
  read: (value) => value.split(",").map(decodeURIComponent).filter(Boolean),
  write: (value) => value.map(encodeURIComponent).join(","),
});

export interface Range {
  low: number;
  high: number;
}

/** "0.5..0.6". */
export const range = (): Codec<Range | null> => ({
  initial: null,
  read: (value) => {
    const [low, high, ...more] = value.split("..").map((end) => (end.trim() === "" ? Number.NaN : Number(end)));
    if (low === undefined || high === undefined || more.length > 0) return undefined;
    return Number.isFinite(low) && Number.isFinite(high) && low <= high ? { low, high } : undefined;
  },
  write: (value) => (value === null ? "" : `${value.low}..${value.high}`),
});

// oxlint-disable-next-line typescript/no-explicit-any -- each codec has its own type; `StateOf` keeps them apart
type Spec = Record<string, Codec<any>>;
export type StateOf<S extends Spec> = { [K in keyof S]: S[K] extends Codec<infer T> ? T : never };

export function readState<S extends Spec>(spec: S, params: URLSearchParams): StateOf<S> {
  const entries = Object.entries(spec).map(([key, codec]) => {
    const param = params.get(key);
    return [key, param === null ? codec.initial : (safely(() => codec.read(param)) ?? codec.initial)];
  });
  return Object.fromEntries(entries) as StateOf<S>;
}

/** The parameters after a change: initial values are removed, parameters outside the spec are kept. */
export function writeState<S extends Spec>(
  spec: S,
  params: URLSearchParams,
  change: Partial<StateOf<S>>,
): URLSearchParams {
  const next = new URLSearchParams(params);
  for (const [key, value] of Object.entries(change)) {
    const codec = spec[key];
    if (codec === undefined) continue;
    const serialized = value === undefined ? codec.write(codec.initial) : codec.write(value);
    if (serialized === codec.write(codec.initial)) next.delete(key);
    else next.set(key, serialized);
  }
  return next;
}

function safely<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}

/** State in the URL and its setter. Each change adds a history entry, unless `replace` is set. */
export function useUrlState<S extends Spec>(
  spec: S,
): [StateOf<S>, (change: Partial<StateOf<S>>, options?: { replace?: boolean }) => void] {
  const [params, setParams] = useSearchParams();
  const state = useMemo(() => readState(spec, params), [spec, params]);
  const change = useCallback(
    (next: Partial<StateOf<S>>, options?: { replace?: boolean }) =>
      setParams((now) => writeState(spec, now, next), { replace: options?.replace ?? false, preventScrollReset: true }),
    [spec, setParams],
  );
  return [state, change];
}
