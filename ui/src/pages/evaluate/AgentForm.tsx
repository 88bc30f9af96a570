import { CodeEditor } from "../../components/CodeEditor.tsx";
import { Field } from "../../components/Field.tsx";
import type { Draft, Mapping } from "./draft.ts";
import { TryAgent } from "./TryAgent.tsx";

interface Props {
  draft: Draft;
  problems: Readonly<Record<string, string>>;
  onChange: (change: Partial<Draft>) => void;
  /** Reports the cost of a test call and the agent it was made to. */
  onTestCall: (testCall: { key: string; cost: number | null }) => void;
}

/** The agent's URL, its request and response format, and a test call. */
export function AgentForm({ draft, problems, onChange, onTestCall }: Props) {
  const { mapping } = draft;
  const map = (change: Partial<Mapping>) => onChange({ mapping: { ...mapping, ...change } });
  return (
    <div className="flex flex-col gap-3">
      <Field
        label="Endpoint URL"
        help='By default, the request is POST {"input": "…"}, and the response is plain text or JSON with one of the keys response, output, answer, text, content or message.'
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
        <summary className="text-sm text-muted">Request and response format</summary>
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
            label="Request body (JSON)"
            help="{{input}} is replaced by the input of the case; {{id}} and {{metadata.x}} are available too."
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
            label="Headers (JSON)"
            help='Refer to a stored secret by name: {"Authorization": {"secret": "NAME"}}. The secret must allow this host, headers and your API key.'
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
            label="Path of the response text"
            help="A JMESPath expression such as result.messages[-1].text. Leave empty to detect it."
          >
            <input
              className="field font-mono text-sm"
              value={mapping.output}
              onChange={(event) => map({ output: event.target.value })}
            />
          </Field>
          <Field
            label="Path of the tool calls"
            help="A JMESPath expression for a list of {name, arguments}. Only needed for graders of tool calls."
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
        onTestCall={onTestCall}
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
