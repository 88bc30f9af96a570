import { useEffect, useRef } from "react";
import { Dialog } from "../components/Dialog.tsx";

export type Shortcuts = Record<string, () => void>;

/**
 * What a key press is called here: `j`, `/`, `?`, `Escape`, `mod+k`. A letter with a modifier other than Shift has no
 * name, so the browser's own keys stay its own.
 */
export function keyName(event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey">): string | null {
  if ((event.ctrlKey || event.metaKey) && !event.altKey) return `mod+${event.key.toLowerCase()}`;
  return event.altKey ? null : event.key;
}

/** Whether the keyboard belongs to what has the focus: somebody is typing there. */
export function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement)
    return true;
  // an editor's own element is behind its shadow root
  if (target.shadowRoot !== null) return true;
  return target instanceof HTMLInputElement && !["checkbox", "radio", "button", "submit", "file"].includes(target.type);
}

/** Listens for keys while mounted. Not while somebody types, nor, unless `inDialog`, while a dialog is open. */
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

/** `j` and `k` move the focus over the page's rows: the elements marked `data-row`. */
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
  ["⌘K or Ctrl K", "go to any page or run"],
  ["/", "search in this page"],
  ["j / k", "next / previous row; in an open result, the next or previous result"],
  ["Enter", "open the row"],
  ["x", "in the list of runs: choose the run, to compare two"],
  ["Esc", "close what is open"],
  ["?", "this list"],
];

export function ShortcutHelp({ open, onClose }: { open: boolean; onClose: () => void }) {
  return (
    <Dialog open={open} onClose={onClose} title="Keys" width="max-w-md">
      <dl className="grid grid-cols-[auto_1fr] gap-x-4 gap-y-2 text-sm">
        {SHORTCUTS.map(([key, does]) => (
          <div key={key} className="contents">
            <dt>
              <kbd className="rounded border border-line bg-raised px-1.5 py-0.5 font-mono text-xs">{key}</kbd>
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
