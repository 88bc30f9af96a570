import { useSyncExternalStore } from "react";
import type { Session } from "./types.ts";

/** The session as the page knows it; scripts cannot read the cookie. */
interface SessionState {
  /** The service responded with 401: a key is required. */
  signedOut: boolean;
  current: Session | null;
}

const listeners = new Set<() => void>();
let state: SessionState = { signedOut: false, current: null };

function change(next: SessionState): void {
  state = next;
  for (const listener of listeners) listener();
}

export const session = {
  /** The CSRF token, required for writes in a session. */
  get csrf(): string | null {
    return state.current?.csrf_token ?? null;
  },
  start(current: Session): void {
    change({ signedOut: false, current });
  },
  end(): void {
    if (!state.signedOut) change({ signedOut: true, current: null });
  },
};

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useSession(): SessionState {
  return useSyncExternalStore(subscribe, () => state);
}
