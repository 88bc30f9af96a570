import { useEffect, useRef } from "react";

export type Keys = Record<string, () => void>;

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
export function useKeys(keys: Keys, { inDialog = false }: { inDialog?: boolean } = {}): void {
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
