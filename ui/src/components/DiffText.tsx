import { diffChars, diffWordsWithSpace } from "diff";
import { useMemo } from "react";
import { SafeText } from "./SafeText.tsx";

interface DiffPart {
  kind: "same" | "added" | "removed";
  text: string;
}

interface Diff {
  parts: DiffPart[];
  /** The texts differ too much for a word diff in reasonable time. */
  tooLong: boolean;
}

const MAX_EDITS = 1_000;
const MAX_CHARACTER_DIFF = 40;

/** The differences between two texts: short ones by character, others by word. */
export function wordDiff(before: string, after: string): Diff {
  const short = before.length <= MAX_CHARACTER_DIFF && after.length <= MAX_CHARACTER_DIFF && !/\s/.test(before.trim());
  const parts = short
    ? diffChars(before, after, { maxEditLength: MAX_EDITS })
    : diffWordsWithSpace(before, after, { maxEditLength: MAX_EDITS });
  if (parts === undefined) {
    const changes: DiffPart[] = [
      { kind: "removed", text: before },
      { kind: "added", text: after },
    ];
    return { parts: changes.filter((change) => change.text !== ""), tooLong: true };
  }
  const changes = parts.map((part): DiffPart => ({
    kind: part.added ? "added" : part.removed ? "removed" : "same",
    text: part.value,
  }));
  return { parts: changes, tooLong: false };
}

const LOOKS = {
  same: "",
  added: "bg-pass-soft text-pass no-underline",
  removed: "bg-fail-soft text-fail line-through",
} as const;

/** A word diff of two texts. */
export function DiffText({ before, after, label }: { before: string; after: string; label: string }) {
  const { parts: changes, tooLong: gaveUp } = useMemo(() => wordDiff(before, after), [before, after]);
  return (
    <div>
      {gaveUp && (
        <p className="mb-1 text-sm text-muted">These texts are too different for a word-by-word comparison.</p>
      )}
      {/* focusable, so that it scrolls by keyboard too */}
      <div
        role="region"
        aria-label={label}
        tabIndex={0}
        className="max-h-96 overflow-auto rounded-md border border-line bg-bg p-3 font-mono text-[13px] leading-5 whitespace-pre-wrap"
      >
        {changes.map((change, index) => {
          const Tag = change.kind === "added" ? "ins" : change.kind === "removed" ? "del" : "span";
          return (
            // oxlint-disable-next-line react/no-array-index-key -- the order never changes
            <Tag key={index} className={LOOKS[change.kind]}>
              <SafeText text={change.text} />
            </Tag>
          );
        })}
      </div>
    </div>
  );
}
