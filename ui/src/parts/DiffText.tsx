import { useMemo } from "react";
import { wordDiff } from "../lib/diff.ts";
import { SafeText } from "./SafeText.tsx";

const LOOKS = {
  same: "",
  added: "bg-pass-soft text-pass no-underline",
  removed: "bg-fail-soft text-fail line-through",
} as const;

/** How `after` differs from `before`, word by word. */
export function DiffText({ before, after, label }: { before: string; after: string; label: string }) {
  const { changes, gaveUp } = useMemo(() => wordDiff(before, after), [before, after]);
  return (
    <div>
      {gaveUp && <p className="mb-1 text-sm text-muted">The texts are too different to compare word by word.</p>}
      {/* it scrolls, and must do so by keyboard too */}
      <div
        role="region"
        aria-label={label}
        tabIndex={0}
        className="max-h-96 overflow-auto rounded-md border border-line bg-bg p-3 font-mono text-[13px] leading-5 whitespace-pre-wrap"
      >
        {changes.map((change, index) => {
          const Tag = change.kind === "added" ? "ins" : change.kind === "removed" ? "del" : "span";
          return (
            // oxlint-disable-next-line react/no-array-index-key -- the changes of one pair of texts never move
            <Tag key={index} className={LOOKS[change.kind]}>
              <SafeText text={change.text} />
            </Tag>
          );
        })}
      </div>
    </div>
  );
}
