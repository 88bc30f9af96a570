import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { sampleApi } from "../../api/client.ts";
import type { Evaluation, NewSample } from "../../api/types.ts";
import { Button } from "../../components/Button.tsx";
import { Field } from "../../components/Field.tsx";
import { ErrorNotice } from "../../components/Notice.tsx";
import { visibleText } from "../../lib/visibleText.ts";
import { useSummary } from "../run/useRun.ts";
import { type DrawProblems, drawProblems } from "./labelling.ts";

const METHODS = [
  ["", "choose by the judge's verdicts"],
  ["random", "random"],
  ["stratified", "stratified by the judge's verdict"],
  ["disagreement", "disagreements of judges first"],
] as const;

/** Draws a sample of a run. The same seed gives everyone the same results. */
export function DrawForm({ run, onDrawn }: { run: Evaluation; onDrawn: (sample: string) => void }) {
  const summary = useSummary(run.id);
  const graders = Object.keys(summary.data?.pass_rates ?? {});
  const judges = Object.keys(summary.data?.calibration ?? {});
  const [chosen, setChosen] = useState<string | null>(null);
  const [draft, setDraft] = useState({ n: "100", seed: "1", method: "" });
  const [problems, setProblems] = useState<DrawProblems>({});
  const queries = useQueryClient();
  const question = chosen ?? judges[0] ?? graders[0] ?? "";
  const draw = useMutation({
    mutationFn: (body: NewSample) => sampleApi.draw(run.id, body),
    onSuccess: (sample) => {
      void queries.invalidateQueries({ queryKey: ["label-samples", run.id] });
      onDrawn(sample.sample);
    },
  });
  return (
    <form
      className="card flex flex-col gap-3 p-3"
      aria-label="Draw a sample"
      onSubmit={(event) => {
        event.preventDefault();
        const found = drawProblems({ question, ...draft });
        setProblems(found);
        if (Object.keys(found).length > 0) return;
        draw.mutate({
          question,
          n: Number(draft.n),
          seed: Number(draft.seed),
          ...(draft.method === "" ? {} : { method: draft.method as NonNullable<NewSample["method"]> }),
        });
      }}
    >
      <h2 className="text-lg font-semibold">Draw a sample</h2>
      <p className="text-sm text-muted">
        At least 100 labels calibrate a judge; from 30 of a random or stratified sample, its pass rate is corrected.
      </p>
      <Field label="Grader" help="Your labels answer its question" problem={problems.question}>
        <select className="field" value={question} onChange={(event) => setChosen(event.target.value)}>
          {graders.map((grader) => (
            <option key={grader} value={grader}>
              {visibleText(grader)}
            </option>
          ))}
        </select>
      </Field>
      <div className="flex flex-wrap gap-4">
        <Field label="Results" help="Number of results to label" problem={problems.n}>
          <input
            className="field num max-w-28"
            inputMode="numeric"
            value={draft.n}
            onChange={(event) => setDraft({ ...draft, n: event.target.value })}
          />
        </Field>
        <Field label="Seed" help="The same seed draws the same results" problem={problems.seed}>
          <input
            className="field num max-w-28"
            inputMode="numeric"
            value={draft.seed}
            onChange={(event) => setDraft({ ...draft, seed: event.target.value })}
          />
        </Field>
        <Field label="Method" help="Labels of disagreements first correct no rates">
          <select
            className="field"
            value={draft.method}
            onChange={(event) => setDraft({ ...draft, method: event.target.value })}
          >
            {METHODS.map(([method, label]) => (
              <option key={method} value={method}>
                {label}
              </option>
            ))}
          </select>
        </Field>
      </div>
      {summary.error && <ErrorNotice error={summary.error} onRetry={() => void summary.refetch()} />}
      {draw.error && <ErrorNotice error={draw.error} />}
      <div>
        <Button variant="primary" type="submit" disabled={draw.isPending || graders.length === 0}>
          {draw.isPending ? "Drawing…" : "Draw and label"}
        </Button>
        {summary.data && graders.length === 0 && (
          <span className="ms-3 text-sm text-muted">This run has no grader, so there is no question to label.</span>
        )}
      </div>
    </form>
  );
}
