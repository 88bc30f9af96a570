import { memo, useMemo } from "react";
import type { Json } from "../api/types.ts";
import { visible } from "../lib/visibleText.ts";

/** Untrusted text, shown only as text: invisible characters by name, its writing direction isolated. */
export const SafeText = memo(function SafeText({ text, className = "" }: { text: string; className?: string }) {
  const pieces = useMemo(() => visible(text), [text]);
  return (
    <bdi dir="auto" className={`foreign ${className}`}>
      {pieces.map((piece, index) =>
        piece.kind === "text" ? (
          piece.text
        ) : (
          // oxlint-disable-next-line react/no-array-index-key -- the order never changes
          <Mark key={index} name={piece.name} title={piece.title} />
        ),
      )}
    </bdi>
  );
});

function Mark({ name, title }: { name: string; title: string }) {
  return (
    <span className="mx-px rounded-sm bg-warn-soft px-0.5 font-mono text-[0.8em] text-warn" title={title} dir="ltr">
      {name}
    </span>
  );
}

/** A scrollable block of untrusted text. */
export function TextBlock({ text, label, className = "" }: { text: string; label: string; className?: string }) {
  return (
    // focusable, so that it scrolls by keyboard too
    <div
      role="region"
      aria-label={label}
      tabIndex={0}
      className={`max-h-96 overflow-auto rounded-md border border-line bg-bg p-3 font-mono text-[13px] leading-5 ${className}`}
    >
      {text === "" ? <span className="text-muted italic">empty</span> : <SafeText text={text} />}
    </div>
  );
}

export function JsonBlock({ value, label }: { value: Json | object; label: string }) {
  return <TextBlock text={JSON.stringify(value, null, 2)} label={label} />;
}
