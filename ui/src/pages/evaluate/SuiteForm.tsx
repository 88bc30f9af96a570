import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";
import { api } from "../../api/client.ts";
import { ApiError } from "../../api/error.ts";
import { newIdempotencyKey } from "../../api/request.ts";
import { Button } from "../../components/Button.tsx";
import { CodeEditor } from "../../components/CodeEditor.tsx";
import { ErrorNotice } from "../../components/Notice.tsx";
import { JsonBlock, SafeText } from "../../components/SafeText.tsx";

const STARTER = `name: capitals
dataset:
  - input: What is the capital of France?
    ground_truth: Paris
# or: dataset: {tag: smoke} for stored test cases
target:
  kind: http
  url: http://127.0.0.1:9000/ask
graders:
  correct:
    kind: contains
`;

/** Starts a run from a suite in YAML or JSON, without files. */
export function SuiteForm() {
  const [text, setText] = useState(STARTER);
  const [problem, setProblem] = useState<string | null>(null);
  const navigate = useNavigate();
  const start = useMutation({
    mutationFn: async () => {
      // the YAML parser is loaded on demand
      const { parseSuite } = await import("./parseSuite.ts");
      const parsed = parseSuite(text);
      setProblem(parsed.problem);
      return parsed.suite === null ? null : api.startRun({ suite: parsed.suite }, newIdempotencyKey());
    },
    onSuccess: (run) => {
      if (run !== null) void navigate(`/runs/${encodeURIComponent(run.id)}`);
    },
  });
  return (
    <div className="flex flex-col gap-3">
      <p className="text-sm text-muted">
        A suite in YAML or JSON, as for <code className="font-mono">gradeline run</code>. List cases in the suite or
        select them by tag; files and Python code are not available here.
      </p>
      <CodeEditor language="yaml" label="Suite" value={text} onChange={setText} />
      {problem && (
        <p role="alert" className="text-sm font-medium text-fail">
          <SafeText text={problem} />
        </p>
      )}
      {start.error && <ErrorNotice error={start.error} />}
      {start.error instanceof ApiError && start.error.details && (
        <JsonBlock value={start.error.details} label="Details" />
      )}
      <div className="flex justify-end">
        <Button variant="primary" disabled={start.isPending || text.trim() === ""} onClick={() => start.mutate()}>
          {start.isPending ? "Starting…" : "Start evaluation"}
        </Button>
      </div>
    </div>
  );
}
