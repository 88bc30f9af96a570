import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import type { Result } from "../../api/types.ts";
import { ago, count } from "../../lib/format.ts";
import { visibleText } from "../../lib/visible.ts";
import { Button } from "../../parts/Button.tsx";
import { Field } from "../../parts/Field.tsx";
import { Failure, Loading } from "../../parts/Notice.tsx";
import { TextBlock } from "../../parts/SafeText.tsx";
import { GraderCard } from "../run/GraderCard.tsx";
import { graderCalls, type Previewed, type Subject } from "./calls.ts";
import { ManyPreviews } from "./ManyPreviews.tsx";
import type { ChangePreview, PreviewState } from "./state.ts";
import { useSamples, useSettled } from "./useSamples.ts";

interface Props {
  /** Null while the definition is not fit to be tried. */
  grader: Previewed | null;
  /** Grading asks a model: only when somebody says so. */
  costly: boolean;
  state: PreviewState;
  onChange: ChangePreview;
}

/** What the grader says of a real answer; nothing of it is stored. */
export function PreviewPanel({ grader, costly, state, onChange }: Props) {
  const { runs, run, samples, loading, error } = useSamples(state.run);
  const at = Math.min(state.at, Math.max(0, samples.length - 1));
  const sample = samples[at];
  const ownTexts = state.from === "texts" || (!loading && run === "");
  return (
    <section aria-label="Preview" className="card flex flex-col gap-3 p-3">
      <div className="flex flex-wrap items-center gap-2">
        <h2 className="mr-auto font-semibold">Preview</h2>
        <Button
          aria-pressed={!ownTexts}
          look={ownTexts ? "quiet" : "plain"}
          disabled={!loading && run === ""}
          onClick={() => onChange({ from: "run" }, { replace: true })}
        >
          On real results
        </Button>
        <Button
          aria-pressed={ownTexts}
          look={ownTexts ? "plain" : "quiet"}
          onClick={() => onChange({ from: "texts" }, { replace: true })}
        >
          On your own text
        </Button>
      </div>
      {error && <Failure error={error} />}
      {ownTexts ? (
        <TypedPreview grader={grader} costly={costly} />
      ) : (
        <>
          <div className="flex flex-wrap items-center gap-2">
            <select
              className="field min-w-40 flex-1"
              aria-label="Results of"
              value={run}
              onChange={(event) => onChange({ run: event.target.value, at: 0 }, { replace: true })}
            >
              {runs.map((one) => (
                <option key={one.id} value={one.id}>
                  {visibleText(one.name || one.id.slice(0, 8))} · {count(one.result_count)} results ·{" "}
                  {ago(one.started_at)}
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
          {sample && <Outcome grader={grader} costly={costly} subject={subjectOf(run, sample)} />}
          {!loading && samples.length === 0 && <p className="text-sm text-muted">This run has no answers.</p>}
          {samples.length > 1 && (
            <ManyPreviews
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

function subjectOf(run: string, sample: Result): Subject {
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
          <dt className="text-muted">Expected</dt>
          <dd>
            <TextBlock text={sample.test_case_expected} label="Expected output" className="max-h-28" />
          </dd>
        </div>
      )}
      <div>
        <dt className="text-muted">Output</dt>
        <dd>
          <TextBlock text={sample.agent_response ?? ""} label="Output" className="max-h-44" />
        </dd>
      </div>
    </dl>
  );
}

function TypedPreview({ grader, costly }: { grader: Previewed | null; costly: boolean }) {
  const [texts, setTexts] = useState({ input: "", expected: "", answer: "" });
  const subject = useMemo<Subject>(
    () => ({
      agent_response: texts.answer,
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
      <Field label="Answer to grade">
        <textarea
          className="field font-mono text-sm"
          rows={3}
          value={texts.answer}
          onChange={(event) => setTexts({ ...texts, answer: event.target.value })}
        />
      </Field>
      {texts.answer === "" ? (
        <p className="text-sm text-muted">Write an answer to see what the grader says of it.</p>
      ) : (
        <Outcome grader={grader} costly={costly} subject={subject} />
      )}
    </>
  );
}

/** Graded at once where that costs nothing, else when asked to; a change makes the last word stale. */
function Outcome({ grader, costly, subject }: { grader: Previewed | null; costly: boolean; subject: Subject }) {
  const now = JSON.stringify({ grader, subject });
  const settled = useSettled(now);
  const [asked, setAsked] = useState<string | null>(null);
  const wanted = costly ? now : settled;
  const enabled = grader !== null && (!costly || asked === now);
  const graded = useQuery({
    queryKey: ["preview", wanted],
    queryFn: ({ signal }) => {
      const { grader, subject } = JSON.parse(wanted) as { grader: Previewed; subject: Subject };
      return graderCalls.preview(grader, subject, signal);
    },
    enabled,
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });
  if (grader === null) return <p className="text-sm text-muted">Fill in what is required to see what it says.</p>;
  return (
    <div role="status" aria-live="polite" className="flex flex-col gap-2">
      <h3 className="text-sm font-semibold">What it says</h3>
      {costly && graded.data === undefined && (
        <div className="flex flex-wrap items-center gap-2">
          <Button
            look="main"
            disabled={graded.isFetching}
            onClick={() => (asked === wanted ? void graded.refetch() : setAsked(wanted))}
          >
            Ask the judge
          </Button>
          <span className="text-sm text-muted">This calls the model, which may cost money.</span>
        </div>
      )}
      {graded.isFetching && <Loading what="Grading" />}
      {graded.error && <Failure error={graded.error} />}
      {graded.data && <GraderCard score={graded.data} grade={undefined} submission={undefined} />}
    </div>
  );
}
