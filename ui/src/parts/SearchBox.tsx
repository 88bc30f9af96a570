import { useEffect, useRef, useState } from "react";

const PAUSE_MS = 250;

/** A search that waits until typing pauses. `/` gets here. */
export function SearchBox({
  value,
  onSearch,
  label,
}: {
  value: string;
  onSearch: (text: string) => void;
  label: string;
}) {
  const [typed, setTyped] = useState(value);
  const [known, setKnown] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  if (known !== value) {
    // the address changed by other means: "back", or a filter that was cleared
    setKnown(value);
    setTyped(value);
  }
  useEffect(() => () => clearTimeout(timer.current), []);
  const send = (text: string) => {
    setKnown(text);
    onSearch(text);
  };
  return (
    <input
      type="search"
      className="field max-w-72 min-w-40 flex-1"
      aria-label={label}
      placeholder={`${label} ( / )`}
      value={typed}
      onChange={(event) => {
        const text = event.target.value;
        setTyped(text);
        clearTimeout(timer.current);
        timer.current = setTimeout(() => send(text), PAUSE_MS);
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter") {
          clearTimeout(timer.current);
          send(typed);
        } else if (event.key === "Escape") event.currentTarget.blur();
      }}
    />
  );
}
