import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { api, graderApi } from "../../api/client.ts";
import type { Evaluation, PreviewGrader, PreviewInput, Result } from "../../api/types.ts";
import { Button } from "../../components/Button.tsx";
import { Field } from "../../components/Field.tsx";
import { ErrorNotice, Loading } from "../../components/Notice.tsx";
import { TextBlock } from "../../components/SafeText.tsx";
import { formatAgo, formatCount } from "../../lib/format.ts";
import { useDebounced } from "../../lib/hooks.ts";
import { runTitle } from "../../lib/run.ts";
import { GraderCard } from "../run/GraderCard.tsx";
import { BatchPreview } from "./BatchPreview.tsx";
import type { ChangePreview, PreviewState } from "./families.ts";

interface Props {
  /** Null while the definition is invalid. */
  grader: PreviewGrader | null;
  /** Grading calls a model: only on request. */
  callsModel: boolean;
  state: PreviewState;
  onChange: ChangePreview;
}

/** Grades a stored response or typed text; nothing is stored. */
export function PreviewPanel({ grader, callsModel, state, onChange }: Props) {
  const { runs, run, samples, loading, error } = useRunSamples(state.run);
  const at = Math.min(state.at, Math.max(0, samples.length - 1));
  const sample = samples[at];
  const ownText = state.from === "text" || (!loading && run === "");
  return (
    <section aria-label="Preview" className="card flex flex-col gap-3 p-3">
      <div className="flex flex-wrap items-center gap-2">
        <h2 className="mr-auto font-semibold">Preview</h2>
        <Button
          aria-pressed={!ownText}
          variant={ownText ? "ghost" : "secondary"}
          disabled={!loading && run === ""}
          onClick={() => onChange({ from: "run" }, { replace: true })}
        >
          Stored results
        </Button>
        <Button
          aria-pressed={ownText}
          variant={ownText ? "secondary" : "ghost"}
          onClick={() => onChange({ from: "text" }, { replace: true })}
        >
          Your own text
        </Button>
      </div>
      {error && <ErrorNotice error={error} />}
      {ownText ? (
        <TextPreview grader={grader} costly={callsModel} />
      ) : (
        <>
          <div className="flex flex-wrap items-center gap-2">
            <select
              className="field min-w-40 flex-1"
              aria-label="Run"
              value={run}
              onChange={(event) => onChange({ run: event.target.value, at: 0 }, { replace: true })}
            >
              {runs.map((one) => (
                <option key={one.id} value={one.id}>
                  {runTitle(one)} · {formatCount(one.result_count)} results · {formatAgo(one.started_at)}
                </option>
              ))}
            </select>
            <Button
              disabled={at <= 0}
              aria-label="Previous result"
              onClick={() => onChange({ at: at - 1 }, { replace: true })}
            >
              ◀
            </Button>
            <span className="num text-sm text-muted">
              {samples.length === 0 ? "none" : `${at + 1} of ${samples.length}`}
            </span>
            <Button
              disabled={at >= samples.length - 1}
              aria-label="Next result"
              onClick={() => onChange({ at: at + 1 }, { replace: true })}
            >
              ▶
            </Button>
          </div>
          {loading && <Loading what="Loading results" />}
          {sample && <SampleTexts sample={sample} />}
          {sample && <PreviewResult grader={grader} costly={callsModel} subject={storedResult(run, sample)} />}
          {!loading && samples.length === 0 && <p className="text-sm text-muted">This run has no responses.</p>}
          {samples.length > 1 && (
            <BatchPreview
              key={run}
              grader={grader}
              run={run}
              samples={samples}
              onOpen={(index) => onChange({ at: index }, { replace: true })}
            />
          )}
        </>
      )}
    </section>
  );
}

function storedResult(run: string, sample: Result): PreviewInput {
  return { evaluation_id: run, result_id: sample.result_id };
}

function SampleTexts({ sample }: { sample: Result }) {
  return (
    <dl className="flex flex-col gap-2 text-sm">
      <div>
        <dt className="text-muted">Input</dt>
        <dd>
          <TextBlock text={sample.test_case_input} label="Input" className="max-h-28" />
        </dd>
      </div>
      {sample.test_case_expected !== null && (
        <div>
          <dt className="text-muted">Expected output</dt>
          <dd>
            <TextBlock text={sample.test_case_expected} label="Expected output" className="max-h-28" />
          </dd>
        </div>
      )}
      <div>
        <dt className="text-muted">Response</dt>
        <dd>
          <TextBlock text={sample.agent_response ?? ""} label="Response" className="max-h-44" />
        </dd>
      </div>
    </dl>
  );
}

function TextPreview({ grader, costly }: { grader: PreviewGrader | null; costly: boolean }) {
  const [texts, setTexts] = useState({ input: "", expected: "", response: "" });
  const subject = useMemo<PreviewInput>(
    () => ({
      agent_response: texts.response,
      ...(texts.expected === "" ? {} : { expected_output: texts.expected }),
      ...(texts.input === "" ? {} : { input: texts.input }),
    }),
    [texts],
  );
  return (
    <>
      <Field label="Input">
        <textarea
          className="field font-mono text-sm"
          rows={2}
          value={texts.input}
          onChange={(event) => setTexts({ ...texts, input: event.target.value })}
        />
      </Field>
      <Field label="Expected output">
        <textarea
          className="field font-mono text-sm"
          rows={2}
          value={texts.expected}
          onChange={(event) => setTexts({ ...texts, expected: event.target.value })}
        />
      </Field>
      <Field label="Response to grade">
        <textarea
          className="field font-mono text-sm"
          rows={3}
          value={texts.response}
          onChange={(event) => setTexts({ ...texts, response: event.target.value })}
        />
      </Field>
      {texts.response === "" ? (
        <p className="text-sm text-muted">Enter a response to see its grade.</p>
      ) : (
        <PreviewResult grader={grader} costly={costly} subject={subject} />
      )}
    </>
  );
}

/** Grades immediately if that is free, else on request; a change makes the last grade stale. */
function PreviewResult({
  grader,
  costly,
  subject,
}: {
  grader: PreviewGrader | null;
  costly: boolean;
  subject: PreviewInput;
}) {
  const now = JSON.stringify({ grader, subject });
  const settled = useDebounced(now);
  const [requested, setRequested] = useState<string | null>(null);
  const key = costly ? now : settled;
  const enabled = grader !== null && (!costly || requested === now);
  const graded = useQuery({
    queryKey: ["preview", key],
    queryFn: ({ signal }) => {
      const { grader, subject } = JSON.parse(key) as { grader: PreviewGrader; subject: PreviewInput };
      return graderApi.preview(grader, subject, signal);
    },
    enabled,
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });
  if (grader === null) return <p className="text-sm text-muted">Fill in the required options to see the grade.</p>;
  return (
    <div role="status" aria-live="polite" className="flex flex-col gap-2">
      <h3 className="text-sm font-semibold">Grade</h3>
      {costly && graded.data === undefined && (
        <div className="flex flex-wrap items-center gap-2">
          <Button
            variant="primary"
            disabled={graded.isFetching}
            onClick={() => (requested === key ? void graded.refetch() : setRequested(key))}
          >
            Call the judge
          </Button>
          <span className="text-sm text-muted">This calls a model, which may cost money.</span>
        </div>
      )}
      {graded.isFetching && <Loading what="Grading" />}
      {graded.error && <ErrorNotice error={graded.error} />}
      {graded.data && <GraderCard score={graded.data} grade={undefined} submission={undefined} />}
    </div>
  );
}

const RUNS = 50;
const SAMPLES = 50;
const NO_RUNS: readonly Evaluation[] = [];
const NO_RESULTS: readonly Result[] = [];

/** Results to preview a grader on, from the given run or else the latest run with results. */
function useRunSamples(run: string) {
  const runs = useQuery({
    queryKey: ["runs", "latest", RUNS],
    queryFn: ({ signal }) => api.runs({ limit: RUNS }, signal),
  });
  const listed = runs.data?.evaluations ?? NO_RUNS;
  const chosen = run || (listed.find((one) => one.result_count > 0)?.id ?? "");
  const results = useQuery({
    queryKey: ["samples", chosen],
    queryFn: async ({ signal }) => (await api.results(chosen, { limit: SAMPLES, status: "success" }, signal)).results,
    enabled: chosen !== "",
    staleTime: 60_000,
  });
  return {
    runs: listed,
    run: chosen,
    samples: results.data ?? NO_RESULTS,
    loading: runs.isPending || (chosen !== "" && results.isPending),
    error: runs.error ?? results.error,
  };
}
