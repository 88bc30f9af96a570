import { useEffect, useRef, useState } from "react";

/** Short, because a request is aborted when the search changes. */
const DEBOUNCE_MS = 120;

/** A search field that reports its value when typing pauses. The key `/` focuses it. */
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
  /** Searches reported that have not come back as `value` yet; the user may type meanwhile. */
  const [sent, setSent] = useState<readonly string[]>([]);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  if (known !== value) {
    setKnown(value);
    const at = sent.indexOf(value);
    setSent(at < 0 ? [] : sent.slice(at + 1));
    // else the URL changed otherwise: "back", or a cleared filter
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
      // report now: after leaving the page, a late change of the URL would navigate back to it
      onBlur={() => timer.current !== undefined && send(typed)}
    />
  );
}
