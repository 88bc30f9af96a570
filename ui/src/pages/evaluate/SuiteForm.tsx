import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { api } from "../../api/calls.ts";
import { ApiFailure } from "../../api/failure.ts";
import { randomToken } from "../../lib/token.ts";
import { Button } from "../../parts/Button.tsx";
import { CodeEditor } from "../../parts/CodeEditor.tsx";
import { JsonBlock } from "../../parts/JsonBlock.tsx";
import { Failure } from "../../parts/Notice.tsx";
import { SafeText } from "../../parts/SafeText.tsx";

const STARTER = `name: capitals
dataset:
  - input: What is the capital of France?
    ground_truth: Paris
# or: dataset: {tag: smoke} for stored test cases
target:
  kind: http
  url: http://127.0.0.1:9000/ask
graders:
  right:
    kind: contains
`;

/** A suite as the command line reads it, but with nothing from files. */
export function SuiteForm() {
  const [text, setText] = useState(STARTER);
  const [fault, setFault] = useState<string | null>(null);
  const navigate = useNavigate();
  const start = useMutation({
    mutationFn: async () => {
      // the reader is loaded when it is needed
      const { suiteFrom } = await import("./suiteText.ts");
      const read = suiteFrom(text);
      setFault(read.fault);
      return read.suite === null ? null : api.startRun({ suite: read.suite }, randomToken());
    },
    onSuccess: (run) => {
      if (run !== null) void navigate(`/runs/${encodeURIComponent(run.id)}`);
    },
  });
  return (
    <div className="flex flex-col gap-3">
      <p className="text-sm text-muted">
        YAML or JSON: the same suite that <code className="font-mono">gradeline run</code> takes. Cases stand in it, or
        are chosen by tag; files and Python code are not read here.
      </p>
      <CodeEditor language="yaml" label="Suite" value={text} onChange={setText} />
      {fault && (
        <p role="alert" className="text-sm font-medium text-fail">
          <SafeText text={fault} />
        </p>
      )}
      {start.error && <Failure error={start.error} />}
      {start.error instanceof ApiFailure && start.error.details && (
        <JsonBlock value={start.error.details} label="Details" />
      )}
      <div className="flex justify-end">
        <Button look="main" disabled={start.isPending || text.trim() === ""} onClick={() => start.mutate()}>
          {start.isPending ? "Starting…" : "Start evaluation"}
        </Button>
      </div>
    </div>
  );
}
