import { CodeEditor } from "../../components/CodeEditor.tsx";
import { Field } from "../../components/Field.tsx";
import type { Draft, Mapping } from "./draft.ts";
import { TryAgent } from "./TryAgent.tsx";

interface Props {
  draft: Draft;
  problems: Readonly<Record<string, string>>;
  onChange: (change: Partial<Draft>) => void;
  /** What a try of the agent cost, and which agent it was. */
  onTried: (tried: { key: string; cost: number | null }) => void;
}

/** Where the agent is, how it is asked, and a button that asks it. */
export function AgentForm({ draft, problems, onChange, onTried }: Props) {
  const { mapping } = draft;
  const map = (change: Partial<Mapping>) => onChange({ mapping: { ...mapping, ...change } });
  return (
    <div className="flex flex-col gap-3">
      <Field
        label="Endpoint"
        help='By default it is sent POST {"input": "…"} and answers with text, or with JSON that has response, output, answer, text, content or message.'
        problem={problems["url"]}
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
          <LabelledEditor
            label="Request body, as JSON"
            help="{{input}} stands for the case's input; {{id}} and {{metadata.x}} work too."
            problem={problems["request"]}
          >
            <CodeEditor
              language="json"
              label="Request body"
              value={mapping.request}
              onChange={(request) => map({ request })}
            />
          </LabelledEditor>
          <LabelledEditor
            label="Headers, as JSON"
            help='A stored secret is named, not written: {"Authorization": {"secret": "NAME"}}. It must be stored for this address, for headers and for your key.'
            problem={problems["headers"]}
          >
            <CodeEditor
              language="json"
              label="Headers"
              value={mapping.headers}
              onChange={(headers) => map({ headers })}
            />
          </LabelledEditor>
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
      <TryAgent
        draft={draft}
        onTried={onTried}
        blocked={
          problems["url"] !== undefined || problems["request"] !== undefined || problems["headers"] !== undefined
        }
      />
    </div>
  );
}

function LabelledEditor({
  label,
  help,
  problem,
  children,
}: {
  label: string;
  help: string;
  problem: string | undefined;
  children: React.ReactNode;
}) {
  return (
    <div className="flex flex-col gap-1">
      <span className="text-sm font-medium">{label}</span>
      {children}
      <span className="text-xs text-muted">{help}</span>
      {problem && <span className="text-xs font-medium text-fail">{problem}</span>}
    </div>
  );
}
