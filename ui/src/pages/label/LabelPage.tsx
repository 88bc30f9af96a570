import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "react-router";
import { sampleApi } from "../../api/client.ts";
import { ApiError } from "../../api/error.ts";
import type { DrawnSample, Evaluation } from "../../api/types.ts";
import { Button, LinkButton } from "../../components/Button.tsx";
import { EmptyState, ErrorNotice, Loading } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { formatCount } from "../../lib/format.ts";
import { usePageTitle } from "../../lib/hooks.ts";
import { isInProgress } from "../../lib/run.ts";
import { useUrlState } from "../../lib/urlState.ts";
import { visibleText } from "../../lib/visibleText.ts";
import { useRun } from "../run/useRun.ts";
import { AgreementPanel } from "./AgreementPanel.tsx";
import { BlindItem } from "./BlindItem.tsx";
import { DrawForm } from "./DrawForm.tsx";
import { type ChangeLabelState, LABEL_STATE, type LabelState } from "./labelling.ts";

/** Labels results of a run one after the other, without what any grader decided. */
export function LabelPage() {
  const { id = "" } = useParams();
  const run = useRun(id);
  const [state, change] = useUrlState(LABEL_STATE);
  usePageTitle(run.data ? `Label ${visibleText(run.data.name ?? "run")}` : "Label");
  if (run.error instanceof ApiError && run.error.code === "NOT_FOUND") {
    return (
      <EmptyState title="Run not found" actions={<LinkButton to="/runs">Go to runs</LinkButton>}>
        It may have been deleted, or it is in another store.
      </EmptyState>
    );
  }
  if (run.error && !run.data) return <ErrorNotice error={run.error} onRetry={() => void run.refetch()} />;
  if (!run.data) return <Loading what="Loading the run" />;
  return <LabelledRun run={run.data} state={state} change={change} />;
}

function LabelledRun({ run, state, change }: { run: Evaluation; state: LabelState; change: ChangeLabelState }) {
  return (
    <div className="mx-auto flex w-full max-w-4xl flex-col gap-4">
      <header>
        <h1 className="text-xl font-semibold">
          Label results of <SafeText text={run.name || run.id.slice(0, 8)} />
        </h1>
        <p className="text-sm text-muted">
          <Link className="text-accent underline" to={`/runs/${encodeURIComponent(run.id)}`}>
            Back to the run
          </Link>
          {". What graders decided is not shown here, so that it cannot influence you."}
        </p>
      </header>
      {isInProgress(run.status) ? (
        <EmptyState title="The run is in progress">Draw a sample when it has ended.</EmptyState>
      ) : state.sample === "" ? (
        <ChooseSample run={run} change={change} />
      ) : (
        <BlindItem key={state.sample} run={run.id} state={state} change={change} />
      )}
    </div>
  );
}

function ChooseSample({ run, change }: { run: Evaluation; change: ChangeLabelState }) {
  const samples = useQuery({
    queryKey: ["label-samples", run.id],
    queryFn: ({ signal }) => sampleApi.all(run.id, signal),
  });
  return (
    <>
      {samples.error && <ErrorNotice error={samples.error} onRetry={() => void samples.refetch()} />}
      {samples.isPending && <Loading what="Loading samples" />}
      {samples.data && samples.data.samples.length > 0 && (
        <section aria-labelledby="samples" className="flex flex-col gap-2">
          <h2 id="samples" className="text-lg font-semibold">
            Samples
          </h2>
          <ul className="flex flex-col gap-2">
            {samples.data.samples.map((sample) => (
              <SampleRow
                key={`${sample.question} ${sample.sample}`}
                sample={sample}
                onOpen={() => change({ sample: sample.sample, place: -1 })}
              />
            ))}
          </ul>
        </section>
      )}
      <DrawForm run={run} onDrawn={(sample) => change({ sample, place: -1 })} />
      <AgreementPanel run={run.id} />
    </>
  );
}

function SampleRow({ sample, onOpen }: { sample: DrawnSample; onOpen: () => void }) {
  const left = sample.size - sample.labelled_by_you;
  return (
    <li className="card flex flex-wrap items-center gap-3 p-3 text-sm">
      <div className="mr-auto">
        <p className="font-medium">
          <SafeText text={sample.question} />
        </p>
        <p className="num text-muted">
          {sample.method}, seed {sample.seed}: {formatCount(sample.labelled)} of {formatCount(sample.size)} labelled,{" "}
          {formatCount(sample.labelled_by_you)} by you
        </p>
      </div>
      <Button variant={left > 0 ? "primary" : "secondary"} onClick={onOpen}>
        {left > 0 ? (sample.labelled_by_you > 0 ? "Continue" : "Start") : "Review"}
        <span className="sr-only">
          {" "}
          labelling {visibleText(sample.question)}, {sample.method}, seed {sample.seed}
        </span>
      </Button>
    </li>
  );
}
