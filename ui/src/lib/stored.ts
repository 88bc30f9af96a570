import { useCallback, useState } from "react";

/** A preference that this browser remembers; links do not carry it. */
export function useStored<T extends string>(key: string, choices: readonly T[], initial: T): [T, (value: T) => void] {
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
