export function Tags({ tags, onChoose }: { tags: readonly string[]; onChoose?: (tag: string) => void }) {
  return (
    <span className="flex flex-wrap gap-1">
      {tags.map((tag) =>
        onChoose ? (
          <button
            key={tag}
            type="button"
            className="rounded-full bg-raised px-2 py-0.5 text-xs hover:bg-accent-soft"
            title={`Only ${tag}`}
            onClick={() => onChoose(tag)}
          >
            {tag}
          </button>
        ) : (
          <span key={tag} className="rounded-full bg-raised px-2 py-0.5 text-xs">
            {tag}
          </span>
        ),
      )}
    </span>
  );
}
