import { diffChars, diffWordsWithSpace } from "diff";

export interface Change {
  kind: "same" | "added" | "removed";
  text: string;
}

export interface Diff {
  changes: Change[];
  /** The texts were too long to compare word by word within a moment. */
  gaveUp: boolean;
}

const MOST_EDITS = 1_000;
const LONGEST_BY_CHARACTER = 40;

/** What to remove from `before` and add to it to get `after`; short texts by character, others by word. */
export function wordDiff(before: string, after: string): Diff {
  const short =
    before.length <= LONGEST_BY_CHARACTER && after.length <= LONGEST_BY_CHARACTER && !/\s/.test(before.trim());
  const parts = short
    ? diffChars(before, after, { maxEditLength: MOST_EDITS })
    : diffWordsWithSpace(before, after, { maxEditLength: MOST_EDITS });
  if (parts === undefined) {
    const changes: Change[] = [
      { kind: "removed", text: before },
      { kind: "added", text: after },
    ];
    return { changes: changes.filter((change) => change.text !== ""), gaveUp: true };
  }
  const changes = parts.map((part): Change => ({
    kind: part.added ? "added" : part.removed ? "removed" : "same",
    text: part.value,
  }));
  return { changes, gaveUp: false };
}
