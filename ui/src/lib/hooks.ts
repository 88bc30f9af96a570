import { useCallback, useEffect, useState, useSyncExternalStore } from "react";

export function usePageTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} · gradeline`;
  }, [title]);
}

export function useMediaQuery(query: string): boolean {
  return useSyncExternalStore(
    (listener) => {
      const media = window.matchMedia(query);
      media.addEventListener("change", listener);
      return () => media.removeEventListener("change", listener);
    },
    () => window.matchMedia(query).matches,
  );
}

/** A preference stored in this browser, not in the URL. */
export function useLocalStorage<T extends string>(
  key: string,
  choices: readonly T[],
  initial: T,
): [T, (value: T) => void] {
  const [value, setValue] = useState<T>(
    () => choices.find((choice) => choice === localStorage.getItem(key)) ?? initial,
  );
  const change = useCallback(
    (next: T) => {
      localStorage.setItem(key, next);
      setValue(next);
    },
    [key],
  );
  return [value, change];
}

/** The value after it has not changed for `ms` milliseconds. */
export function useDebounced<T>(value: T, ms = 350): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}
