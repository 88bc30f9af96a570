import { useSyncExternalStore } from "react";
import type { Session } from "./types.ts";

/** Who is signed in, as far as the page knows. The cookie itself is out of a script's reach. */
interface SessionState {
  /** The service said 401: a key is wanted. */
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
  /** The token that writes in a session must carry. */
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
