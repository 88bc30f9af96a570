import { useSyncExternalStore } from "react";

export type Theme = "system" | "light" | "dark";

const KEY = "gradeline.theme";
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

function currentTheme(): Theme {
  const stored = localStorage.getItem(KEY);
  return stored === "light" || stored === "dark" ? stored : "system";
}

function applyTheme(): void {
  const chosen = currentTheme();
  document.documentElement.dataset["theme"] = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
  for (const listener of listeners) listener();
}

/** Follows the system until the user chooses a theme. */
export function startTheme(): void {
  applyTheme();
  dark.addEventListener("change", applyTheme);
  window.addEventListener("storage", applyTheme);
}

export function chooseTheme(theme: Theme): void {
  localStorage.setItem(KEY, theme);
  applyTheme();
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useTheme(): Theme {
  return useSyncExternalStore(subscribe, currentTheme);
}

export function nextTheme(theme: Theme): Theme {
  return theme === "system" ? "light" : theme === "light" ? "dark" : "system";
}
