import { useEffect, useRef, useState } from "react";

/** Short: a request that is typed over is aborted. */
const DEBOUNCE_MS = 120;

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
  /** What was sent from here and has not come back yet as the value; letters may be typed meanwhile. */
  const [sent, setSent] = useState<readonly string[]>([]);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  if (known !== value) {
    setKnown(value);
    const at = sent.indexOf(value);
    setSent(at < 0 ? [] : sent.slice(at + 1));
    // else the address changed by other means: "back", or a filter that was cleared
    if (at < 0) setTyped(value);
  }
  useEffect(() => () => clearTimeout(timer.current), []);
  const send = (text: string) => {
    clearTimeout(timer.current);
    timer.current = undefined;
    setSent((now) => [...now, text]);
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
        timer.current = setTimeout(() => send(text), DEBOUNCE_MS);
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter") send(typed);
        else if (event.key === "Escape") event.currentTarget.blur();
      }}
      // whoever leaves goes elsewhere next: a search that changed the address later would call them back
      onBlur={() => timer.current !== undefined && send(typed)}
    />
  );
}
