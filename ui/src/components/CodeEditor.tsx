import { lazy, Suspense } from "react";

export interface EditorProps {
  value: string;
  onChange: (value: string) => void;
  language: "yaml" | "json";
  label: string;
}

const Editor = lazy(() => import("./CodeMirror.tsx"));

/** A YAML or JSON editor, loaded when first shown. */
export function CodeEditor(props: EditorProps) {
  return (
    <Suspense
      fallback={
        <textarea
          className="field min-h-40 font-mono text-sm"
          aria-label={props.label}
          value={props.value}
          onChange={(event) => props.onChange(event.target.value)}
        />
      }
    >
      <Editor {...props} />
    </Suspense>
  );
}
