import { useSyncExternalStore } from "react";

interface Toast {
  id: number;
  text: string;
}

const DURATION_MS = 5_000;
const listeners = new Set<() => void>();
let toasts: readonly Toast[] = [];
let last = 0;

function change(next: readonly Toast[]): void {
  toasts = next;
  for (const listener of listeners) listener();
}

/** Briefly confirms an action. Show errors where they happened instead. */
export function toast(text: string): void {
  last += 1;
  const id = last;
  change([...toasts, { id, text }]);
  setTimeout(() => change(toasts.filter((one) => one.id !== id)), DURATION_MS);
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function Toasts() {
  const shown = useSyncExternalStore(subscribe, () => toasts);
  return (
    <div role="status" className="fixed right-4 bottom-4 z-50 flex flex-col gap-2">
      {shown.map((one) => (
        <p key={one.id} className="rounded-md border border-line bg-ink px-4 py-2 text-sm text-bg shadow-lg">
          {one.text}
        </p>
      ))}
    </div>
  );
}
