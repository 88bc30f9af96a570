import { useEffect, useRef } from "react";
import { Dialog } from "../components/Dialog.tsx";

type Shortcuts = Record<string, () => void>;

/**
 * The name of a key press: `j`, `/`, `?`, `Escape`, `mod+k`. Null with Alt, which is left to the browser.
 */
export function keyName(event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey">): string | null {
  if ((event.ctrlKey || event.metaKey) && !event.altKey) return `mod+${event.key.toLowerCase()}`;
  return event.altKey ? null : event.key;
}

/** True if the focused element takes text input. */
export function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement)
    return true;
  // the editor's text area is inside its shadow root
  if (target.shadowRoot !== null) return true;
  return target instanceof HTMLInputElement && !["checkbox", "radio", "button", "submit", "file"].includes(target.type);
}

/** Handles keys while mounted, except while the user types or, unless `inDialog`, a dialog is open. */
export function useShortcuts(keys: Shortcuts, { inDialog = false }: { inDialog?: boolean } = {}): void {
  const current = useRef(keys);
  useEffect(() => {
    current.current = keys;
  });
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const name = keyName(event);
      const act = name === null ? undefined : current.current[name];
      if (act === undefined || event.defaultPrevented) return;
      if (name?.startsWith("mod+") !== true) {
        if (isTyping(event.target)) return;
        if (!inDialog && document.querySelector("[role=dialog]") !== null) return;
      }
      event.preventDefault();
      act();
    };
    window.addEventListener("keydown", listen);
    return () => window.removeEventListener("keydown", listen);
  }, [inDialog]);
}

/** `j` and `k` move the focus between the elements marked `data-row`. */
export function useRowNavigation(): void {
  useShortcuts({ j: () => moveFocus(1), k: () => moveFocus(-1) });
}

function moveFocus(step: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>("[data-row]")];
  const at = rows.findIndex((row) => row === document.activeElement);
  const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

const SHORTCUTS: readonly [string, string][] = [
  ["⌘K or Ctrl K", "Search pages and runs"],
  ["/", "Search on this page"],
  ["j / k", "Next / previous row or result"],
  ["Enter", "Open the row"],
  ["x", "Select the run for a comparison (list of runs)"],
  ["p / f", "Pass / fail the result (labelling)"],
  ["s / u", "Skip the result / undo the last label (labelling)"],
  ["Esc", "Close the dialog"],
  ["?", "Show this list"],
];

export function ShortcutHelp({ open, onClose }: { open: boolean; onClose: () => void }) {
  return (
    <Dialog open={open} onClose={onClose} title="Keyboard shortcuts" width="max-w-md">
      <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-2 text-sm">
        {SHORTCUTS.map(([key, action]) => (
          <div key={key} className="contents">
            <dt>
              <kbd className="rounded border border-line bg-raised px-1.5 py-0.5 font-mono text-xs">{key}</kbd>
            </dt>
            <dd>{action}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
