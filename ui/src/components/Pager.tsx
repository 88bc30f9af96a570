import type { Page } from "../api/types.ts";
import { formatCount } from "../lib/format.ts";
import { Button } from "./Button.tsx";

export function Pager({
  page,
  size,
  shown,
  onPage,
}: {
  page: number;
  size: number;
  shown: Page;
  onPage: (page: number) => void;
}) {
  const first = (page - 1) * size + 1;
  return (
    <nav aria-label="Pages" className="flex flex-wrap items-center justify-between gap-2 py-2 text-sm text-muted">
      <span className="num">
        {shown.count === 0 ? "None" : `${formatCount(first)}–${formatCount(first + shown.count - 1)}`} of{" "}
        {formatCount(shown.total)}
        {shown.total_is_capped && "+"}
      </span>
      <span className="flex gap-2">
        <Button disabled={page <= 1} onClick={() => onPage(page - 1)}>
          Previous
        </Button>
        <Button disabled={shown.next_cursor === null} onClick={() => onPage(page + 1)}>
          Next
        </Button>
      </span>
    </nav>
  );
}
