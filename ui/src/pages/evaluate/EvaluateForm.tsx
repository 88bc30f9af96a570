import { useMutation, useQuery } from "@tanstack/react-query";
import { type ReactNode, useRef, useState } from "react";
import { useNavigate } from "react-router";
import { api } from "../../api/client.ts";
import { ApiError } from "../../api/error.ts";
import { newIdempotencyKey } from "../../api/request.ts";
import { Button } from "../../components/Button.tsx";
import { CheckboxField, Field } from "../../components/Field.tsx";
import { ErrorNotice } from "../../components/Notice.tsx";
import { baselineSuffix, runTitle } from "../../lib/run.ts";
import { AgentForm } from "./AgentForm.tsx";
import { CaseChooser } from "./CaseChooser.tsx";
import { agentKey, type Draft, runRequest, stopsEarly, validateDraft } from "./draft.ts";
import { GraderChooser, useGraders } from "./GraderChooser.tsx";
import { RunPlan } from "./RunPlan.tsx";

interface LinkState {
  tag?: string;
  cases?: readonly string[];
  url?: string;
  graders?: readonly string[];
  name?: string;
  baseline?: string;
  early?: "on" | "off";
}

/** The form; `onLink` reports the part of the state that is kept in the URL. */
export function EvaluateForm({ initial, onLink }: { initial: Draft; onLink: (link: LinkState) => void }) {
  const [draft, setDraft] = useState(initial);
  const [submitted, setSubmitted] = useState(false);
  const [testCall, setTestCall] = useState<{ key: string; cost: number | null } | null>(null);
  const graders = useGraders();
  const navigate = useNavigate();
  // the same request, sent again after a connection error, must not start a second run
  const attempt = useRef({ body: "", key: "" });
  const problems = validateDraft(draft, graders.data ?? []);
  const shown = submitted ? problems : {};
  const change = (next: Partial<Draft>) => {
    const now = { ...draft, ...next };
    setDraft(now);
    onLink({
      tag: now.by === "tag" ? now.tag : "",
      cases: now.by === "ids" ? now.ids : [],
      url: now.url,
      graders: now.graders.map((one) => one.id),
      name: now.name,
      baseline: now.baseline,
      early: stopsEarly(now) ? "on" : "off",
    });
    // an earlier error was about another draft
    start.reset();
  };
  const start = useMutation({
    mutationFn: async () => {
      const ids = draft.by === "all" ? await allCases() : draft.ids;
      const body = runRequest(draft, graders.data ?? [], ids);
      const serialized = JSON.stringify(body);
      if (attempt.current.body !== serialized) attempt.current = { body: serialized, key: newIdempotencyKey() };
      return api.startRun(body, attempt.current.key);
    },
    onSuccess: (run) => navigate(`/runs/${encodeURIComponent(run.id)}`),
  });
  return (
    <form
      noValidate
      className="flex flex-col gap-4"
      onSubmit={(event) => {
        event.preventDefault();
        setSubmitted(true);
        if (Object.keys(problems).length === 0) start.mutate();
      }}
    >
      <Step number={1} title="Cases">
        <CaseChooser chosen={draft} onChange={change} problem={shown["cases"]} />
      </Step>
      <Step number={2} title="Agent">
        <AgentForm
          draft={draft}
          problems={submitted ? problems : onlyIf(draft.url !== "", problems)}
          onChange={change}
          onTestCall={setTestCall}
        />
      </Step>
      <Step number={3} title="Graders">
        <GraderChooser
          chosen={draft.graders}
          onChange={(chosen) => change({ graders: chosen })}
          showProblems={submitted}
        />
        {shown["graders"] && <p className="text-xs font-medium text-fail">{shown["graders"]}</p>}
      </Step>
      <Step number={4} title="Run options">
        <RunOptions
          draft={draft}
          onChange={change}
          problems={start.error instanceof ApiError ? start.error.fields : {}}
        />
      </Step>
      <RunPlan draft={draft} costOfCall={testCall?.key === agentKey(draft) ? testCall.cost : null} />
      {submitted && Object.keys(problems).length > 0 && (
        <p role="alert" className="text-sm font-medium text-fail">
          Cannot start:{" "}
          {Object.entries(problems)
            .map(([part, problem]) => `${part}: ${problem}`)
            .join("; ")}
        </p>
      )}
      {start.error && <ErrorNotice error={start.error} />}
      <div className="flex justify-end">
        <Button variant="primary" type="submit" disabled={start.isPending}>
          {start.isPending ? "Starting…" : "Start evaluation"}
        </Button>
      </div>
    </form>
  );
}

function onlyIf(condition: boolean, problems: Record<string, string>): Record<string, string> {
  return condition ? problems : { ...problems, url: "" };
}

async function allCases(): Promise<string[]> {
  const ids: string[] = [];
  let cursor: string | null = "";
  while (cursor !== null) {
    const page = await api.cases({ limit: 1000, cursor });
    ids.push(...page.test_cases.map((one) => one.id));
    cursor = page.next_cursor;
  }
  return ids;
}

function Step({ number, title, children }: { number: number; title: string; children: ReactNode }) {
  return (
    <section className="card flex flex-col gap-3 p-4">
      <h2 className="flex items-center gap-2 font-semibold">
        <span
          aria-hidden
          className="num grid size-6 place-items-center rounded-full bg-accent-soft text-sm text-accent"
        >
          {number}
        </span>
        {title}
      </h2>
      {children}
    </section>
  );
}

interface RunOptionsProps {
  draft: Draft;
  onChange: (change: Partial<Draft>) => void;
  /** Errors from the service, by field of the request. */
  problems: Readonly<Record<string, string>>;
}

function RunOptions({ draft, onChange, problems }: RunOptionsProps) {
  const runs = useQuery({
    queryKey: ["runs", "completed"],
    queryFn: ({ signal }) => api.runs({ status: "completed", limit: 50 }, signal),
  });
  return (
    <div className="grid gap-3 sm:grid-cols-2">
      <Field label="Name" help="Shown in the list of runs.">
        <input
          className="field"
          maxLength={200}
          value={draft.name}
          onChange={(event) => onChange({ name: event.target.value })}
        />
      </Field>
      <Field
        label="Compare with"
        help="A finished run as the baseline; the decision is better, worse, not worse or undecided."
        problem={problems["baseline_id"]}
      >
        <select
          className="field"
          value={draft.baseline}
          onChange={(event) => onChange({ baseline: event.target.value })}
        >
          <option value="">No baseline</option>
          {runs.data?.evaluations.map((run) => (
            <option key={run.id} value={run.id}>
              {runTitle(run)} · {run.id.slice(0, 8)}
              {baselineSuffix(run)}
            </option>
          ))}
        </select>
      </Field>
      <NumberField
        label="Repeats"
        help="Calls per case; more than one shows how consistent the agent is."
        value={draft.repeats}
        placeholder="1"
        max={100}
        onChange={(repeats) => onChange({ repeats })}
      />
      <NumberField
        label="Concurrency"
        help="Maximum number of calls in flight."
        value={draft.concurrency}
        placeholder="service default"
        max={200}
        onChange={(concurrency) => onChange({ concurrency })}
      />
      <NumberField
        label="Timeout (seconds)"
        help="Per case, including retries."
        value={draft.timeout}
        placeholder="30"
        max={3600}
        onChange={(timeout) => onChange({ timeout })}
      />
      <CheckboxField
        label="Stop early"
        help={
          draft.baseline === ""
            ? "Choose a run to compare with first."
            : "Runs cases in random order until the comparison is decided. With fewer than 100 cases in common, all cases run."
        }
        problem={problems["stop_early"]}
        checked={stopsEarly(draft)}
        disabled={draft.baseline === ""}
        onChange={(stopEarly) => onChange({ stopEarly })}
      />
    </div>
  );
}

function NumberField({
  label,
  help,
  value,
  placeholder,
  max,
  onChange,
}: {
  label: string;
  help: string;
  value: number | null;
  placeholder: string;
  max: number;
  onChange: (value: number | null) => void;
}) {
  return (
    <Field label={label} help={help}>
      <input
        type="number"
        className="field num"
        min={1}
        max={max}
        placeholder={placeholder}
        value={value ?? ""}
        onChange={(event) => onChange(event.target.value === "" ? null : event.target.valueAsNumber)}
      />
    </Field>
  );
}
