import { useKeys } from "./keys.ts";

/** `j` and `k` move the focus over the page's rows: the elements marked `data-row`. */
export function useRowKeys(): void {
  useKeys({ j: () => moveFocus(1), k: () => moveFocus(-1) });
}

function moveFocus(step: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>("[data-row]")];
  const at = rows.findIndex((row) => row === document.activeElement);
  const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}
