import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { useShortcuts } from "../../app/shortcuts.tsx";
import { sampleApi } from "../../api/client.ts";
import type { SampleItem } from "../../api/types.ts";
import { Button } from "../../components/Button.tsx";
import { Field } from "../../components/Field.tsx";
import { ErrorNotice, Loading } from "../../components/Notice.tsx";
import { SafeText, TextBlock } from "../../components/SafeText.tsx";
import { formatCount } from "../../lib/format.ts";
import { visibleText } from "../../lib/visibleText.ts";
import { blindLabel, type ChangeLabelState, type LabelState, MAX_COMMENT, placeAfter } from "./labelling.ts";

interface Props {
  run: string;
  state: LabelState;
  change: ChangeLabelState;
}

/** One result of a sample: a key or a button labels it and shows the next one. */
export function BlindItem({ run, state, change }: Props) {
  const queries = useQueryClient();
  const [comment, setComment] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  /** The places labelled on this page, for undo. */
  const labelled = useRef<number[]>([]);
  const place = state.place < 0 ? null : state.place;
  const queryKey = ["label-item", run, state.sample, place];
  const item = useQuery({
    queryKey,
    queryFn: ({ signal }) => sampleApi.item(run, state.sample, place, signal),
    // labels of other results change its progress
    staleTime: 0,
    gcTime: 0,
    // or the first unlabelled result could be another one while the user reads it
    refetchOnWindowFocus: false,
  });
  const goTo = (next: number) => {
    setComment("");
    setProblem(null);
    change({ place: next }, { replace: true });
  };
  const afterChange = (now: SampleItem) => {
    queries.setQueryData(["label-item", run, state.sample, now.place], now);
    for (const changed of ["labels", "label-samples", "label-agreement", "summary", "comparison"]) {
      void queries.invalidateQueries({ queryKey: [changed] });
    }
  };
  const put = useMutation({
    mutationFn: ({ at, verdict }: { at: number; verdict: "pass" | "fail" }) => {
      const label = blindLabel(verdict, comment);
      if (label === null) throw new Error(`The comment has more than ${formatCount(MAX_COMMENT)} characters`);
      return sampleApi.put(run, state.sample, at, label);
    },
    onSuccess: (now) => {
      labelled.current.push(now.place);
      afterChange(now);
      goTo(placeAfter(now));
    },
  });
  const remove = useMutation({
    mutationFn: (at: number) => sampleApi.remove(run, state.sample, at),
    onSuccess: (now) => {
      afterChange(now);
      goTo(now.place);
    },
  });
  const shown = item.data;
  // a key labels the result that is on the screen, and none before that is
  const busy = put.isPending || remove.isPending || shown === undefined;
  const answer = (verdict: "pass" | "fail") => {
    if (busy) return;
    if (blindLabel(verdict, comment) === null) setProblem(`At most ${formatCount(MAX_COMMENT)} characters`);
    else put.mutate({ at: shown.place, verdict });
  };
  const skip = () => {
    if (!busy) goTo(placeAfter(shown));
  };
  const undo = () => {
    if (busy) return;
    const last = labelled.current.pop() ?? (shown.label === null ? undefined : shown.place);
    if (last !== undefined) remove.mutate(last);
  };
  useShortcuts({ p: () => answer("pass"), f: () => answer("fail"), s: skip, u: undo });
  if (item.error && !shown) return <ErrorNotice error={item.error} onRetry={() => void item.refetch()} />;
  if (!shown) return <Loading what="Loading the next result" />;
  return (
    <div className="flex flex-col gap-4">
      <Progress item={shown} />
      {shown.labelled_by_you === shown.size && <AllDone run={run} onLeave={() => change({ sample: "", place: -1 })} />}
      {shown.rubric !== null && (
        <details className="card p-3 text-sm">
          <summary className="font-medium">Instructions of the judge</summary>
          <div className="mt-2">
            <TextBlock text={shown.rubric} label="Instructions of the judge" />
          </div>
        </details>
      )}
      <article aria-label={`Result ${shown.place + 1}`} className="flex flex-col gap-3" data-place={shown.place}>
        {shown.texts.map((one) => (
          <section key={one.title}>
            <h2 className="mb-1 font-medium first-letter:uppercase">{one.title}</h2>
            <TextBlock text={one.text} label={one.title} />
          </section>
        ))}
      </article>
      <Field label="Comment" help="Optional; stored with your next answer" problem={problem}>
        <textarea className="field" rows={2} value={comment} onChange={(event) => setComment(event.target.value)} />
      </Field>
      {put.error && <ErrorNotice error={put.error} />}
      {remove.error && <ErrorNotice error={remove.error} />}
      <div role="group" aria-label="Your label" className="flex flex-wrap items-center gap-2">
        <Button variant="primary" aria-keyshortcuts="p" onClick={() => answer("pass")}>
          Pass <Key name="p" />
        </Button>
        <Button variant="danger" aria-keyshortcuts="f" onClick={() => answer("fail")}>
          Fail <Key name="f" />
        </Button>
        <Button aria-keyshortcuts="s" onClick={skip} disabled={shown.next_place === null}>
          Skip <Key name="s" />
        </Button>
        <Button aria-keyshortcuts="u" onClick={undo}>
          Undo <Key name="u" />
        </Button>
        <Button variant="ghost" className="ms-auto" onClick={() => change({ sample: "", place: -1 })}>
          All samples
        </Button>
      </div>
    </div>
  );
}

function Key({ name }: { name: string }) {
  return (
    <kbd aria-hidden className="rounded border border-current px-1 font-mono text-xs">
      {name}
    </kbd>
  );
}

function Progress({ item }: { item: SampleItem }) {
  const text = `${formatCount(item.labelled_by_you)} of ${formatCount(item.size)} labelled`;
  return (
    <div className="flex flex-col gap-1">
      <p className="flex flex-wrap items-center gap-x-3 text-sm" aria-live="polite">
        <span className="font-medium">
          <SafeText text={item.question} />
        </span>
        <span className="num text-muted">
          result {formatCount(item.place + 1)}, {text}
        </span>
        {item.label && (
          <span data-own-label>
            your label: <SafeText text={ownLabelText(item.label)} />
          </span>
        )}
      </p>
      <div
        role="progressbar"
        aria-label="Labelled results"
        aria-valuenow={item.labelled_by_you}
        aria-valuemin={0}
        aria-valuemax={item.size}
        aria-valuetext={text}
        className="h-2 overflow-hidden rounded-full bg-raised"
      >
        <div className="h-full bg-accent" style={{ width: `${(100 * item.labelled_by_you) / item.size}%` }} />
      </div>
    </div>
  );
}

function ownLabelText({ verdict, score, category, comment }: NonNullable<SampleItem["label"]>): string {
  const value = [verdict, score, category].filter((part) => part !== null).join(" ");
  return comment === "" ? value : `${value} (${comment})`;
}

function AllDone({ run, onLeave }: { run: string; onLeave: () => void }) {
  return (
    <section role="status" className="card flex flex-col items-start gap-2 border-l-4! border-pass p-3 text-sm">
      <p className="font-medium">You have labelled every result of this sample.</p>
      <p>
        Measure the judge against the labels: <code className="font-mono">gradeline calibrate {visibleText(run)}</code>
      </p>
      <Button onClick={onLeave}>See the agreement of raters</Button>
    </section>
  );
}
