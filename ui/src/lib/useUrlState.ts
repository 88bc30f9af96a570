import { useCallback, useMemo } from "react";
import { useSearchParams } from "react-router";
import { readState, writeState, type Spec, type StateOf } from "./urlState.ts";

/** State of the address and how to change it. A change is a step "back" undoes, unless `replace` is said. */
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
