import { useMutation } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { duration } from "../../lib/format.ts";
import { ResponseBadge } from "../../parts/Badge.tsx";
import { Button } from "../../parts/Button.tsx";
import { CodeEditor } from "../../parts/CodeEditor.tsx";
import { Field } from "../../parts/Field.tsx";
import { Failure } from "../../parts/Notice.tsx";
import { TextBlock } from "../../parts/SafeText.tsx";
import { requestFor, type Draft, type Mapping } from "./draft.ts";
import { tryAgent } from "./tryAgent.ts";

interface Props {
  draft: Draft;
  faults: Readonly<Record<string, string>>;
  onChange: (change: Partial<Draft>) => void;
}

/** Where the agent is, how it is asked, and a button that asks it. */
export function AgentForm({ draft, faults, onChange }: Props) {
  const { mapping } = draft;
  const map = (change: Partial<Mapping>) => onChange({ mapping: { ...mapping, ...change } });
  return (
    <div className="flex flex-col gap-3">
      <Field
        label="Endpoint"
        help='By default it is sent POST {"input": "…"} and answers with text, or with JSON that has response, output, answer, text, content or message.'
        fault={faults["url"]}
        required
      >
        <input
          className="field font-mono text-sm"
          type="url"
          placeholder="http://127.0.0.1:9000/ask"
          value={draft.url}
          onChange={(event) => onChange({ url: event.target.value })}
        />
      </Field>
      <details>
        <summary className="text-sm text-muted">Request and answer</summary>
        <div className="mt-2 flex flex-col gap-3">
          <Field label="Method">
            <select
              className="field max-w-32"
              value={mapping.method}
              onChange={(event) => map({ method: event.target.value })}
            >
              {["POST", "PUT", "GET"].map((method) => (
                <option key={method}>{method}</option>
              ))}
            </select>
          </Field>
          <Labelled
            label="Request body, as JSON"
            help="{{input}} stands for the case's input; {{id}} and {{metadata.x}} work too."
            fault={faults["request"]}
          >
            <CodeEditor
              language="json"
              label="Request body"
              value={mapping.request}
              onChange={(request) => map({ request })}
            />
          </Labelled>
          <Labelled
            label="Headers, as JSON"
            help='A stored secret is named, not written: {"Authorization": {"secret": "NAME"}}.'
            fault={faults["headers"]}
          >
            <CodeEditor
              language="json"
              label="Headers"
              value={mapping.headers}
              onChange={(headers) => map({ headers })}
            />
          </Labelled>
          <Field
            label="Where the text is"
            help="A JMESPath into the answer, such as result.messages[-1].text; empty: found by itself."
          >
            <input
              className="field font-mono text-sm"
              value={mapping.output}
              onChange={(event) => map({ output: event.target.value })}
            />
          </Field>
          <Field
            label="Where the tool calls are"
            help="A JMESPath to a list of {name, arguments}; only where graders look at them."
          >
            <input
              className="field font-mono text-sm"
              value={mapping.toolCalls}
              onChange={(event) => map({ toolCalls: event.target.value })}
            />
          </Field>
        </div>
      </details>
      <TryIt
        draft={draft}
        blocked={faults["url"] !== undefined || faults["request"] !== undefined || faults["headers"] !== undefined}
      />
    </div>
  );
}

function Labelled({
  label,
  help,
  fault,
  children,
}: {
  label: string;
  help: string;
  fault: string | undefined;
  children: React.ReactNode;
}) {
  return (
    <div className="flex flex-col gap-1">
      <span className="text-sm font-medium">{label}</span>
      {children}
      <span className="text-xs text-muted">{help}</span>
      {fault && <span className="text-xs font-medium text-fail">{fault}</span>}
    </div>
  );
}

function TryIt({ draft, blocked }: { draft: Draft; blocked: boolean }) {
  const [input, setInput] = useState("Hello");
  const abort = useRef<AbortController>(null);
  const ask = useMutation({
    mutationFn: (asked: string) => {
      abort.current = new AbortController();
      return tryAgent(draft, asked, abort.current.signal).then((result) => ({
        asked: requestFor(draft.mapping, asked),
        result,
      }));
    },
  });
  useEffect(() => () => abort.current?.abort(), []);
  const { data } = ask;
  return (
    <div className="rounded-md border border-line p-3">
      <div className="flex flex-wrap items-end gap-2">
        <div className="min-w-40 flex-1">
          <Field label="Try it with">
            <input className="field" value={input} onChange={(event) => setInput(event.target.value)} />
          </Field>
        </div>
        <Button disabled={blocked || ask.isPending || input.trim() === ""} onClick={() => ask.mutate(input)}>
          {ask.isPending ? "Asking…" : "Try it"}
        </Button>
      </div>
      <div aria-live="polite" className="mt-2">
        {ask.error && <Failure error={ask.error} />}
        {data && (
          <div className="grid gap-3 md:grid-cols-2">
            <div>
              <p className="mb-1 text-sm font-medium">Sent to the agent</p>
              <TextBlock text={data.asked} label="Sent to the agent" />
            </div>
            <div>
              <p className="mb-1 flex items-center gap-2 text-sm font-medium">
                Read from its answer <ResponseBadge status={data.result.response_status} />
                <span className="num font-normal text-muted">{duration(data.result.response_latency_ms)}</span>
              </p>
              <TextBlock
                text={data.result.agent_response ?? data.result.error_message ?? ""}
                label="Read from the agent's answer"
              />
            </div>
          </div>
        )}
      </div>
    </div>
  );
}
