import { useState } from "react";
import type { RetrievedDocument } from "../../api/types.ts";
import { Button } from "../../components/Button.tsx";
import { SafeText, TextBlock } from "../../components/SafeText.tsx";
import { formatCount } from "../../lib/format.ts";

const PAGE_SIZE = 10;

/** The documents that the agent retrieved, in its order. */
export function DocumentList({ documents }: { documents: readonly RetrievedDocument[] }) {
  const [shown, setShown] = useState(PAGE_SIZE);
  if (documents.length === 0) return <p className="text-sm text-muted">The agent retrieved nothing.</p>;
  return (
    <div className="flex flex-col gap-2">
      <ol className="flex flex-col gap-2">
        {documents.slice(0, shown).map((document, index) => (
          // oxlint-disable-next-line react/no-array-index-key -- the documents of a response never change
          <li key={index} className="card p-2">
            <p className="num flex items-center gap-2 text-xs text-muted">
              <span>{formatCount(index + 1)}</span>
              {typeof document.id === "string" && <SafeText text={document.id} />}
              {typeof document.score === "number" && <span>score {document.score.toPrecision(4)}</span>}
            </p>
            {document.text !== undefined && document.text !== "" && (
              <TextBlock text={document.text} label={`Document ${formatCount(index + 1)}`} className="mt-1" />
            )}
          </li>
        ))}
      </ol>
      {documents.length > shown && (
        <Button onClick={() => setShown(shown + PAGE_SIZE)}>
          Show {formatCount(Math.min(PAGE_SIZE, documents.length - shown))} more
        </Button>
      )}
    </div>
  );
}
