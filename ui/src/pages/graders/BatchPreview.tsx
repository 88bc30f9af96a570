import { useMutation } from "@tanstack/react-query";
import { graderApi } from "../../api/client.ts";
import type { Outcome, PreviewGrader, Result, Score } from "../../api/types.ts";
import { ScoreBadge } from "../../components/Badge.tsx";
import { Button } from "../../components/Button.tsx";
import { ErrorNotice } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { formatCount } from "../../lib/format.ts";

const MAX_PREVIEWS = 10;
const BATCH_SIZE = 4;

interface Props {
  grader: PreviewGrader | null;
  run: string;
  samples: readonly Result[];
  onOpen: (index: number) => void;
}

/** Grades of the first results of a run. */
export function BatchPreview({ grader, run, samples, onOpen }: Props) {
  const first = samples.slice(0, MAX_PREVIEWS);
  const batch = useMutation({
    mutationFn: (one: PreviewGrader) =>
      mapInBatches(first, (sample) => graderApi.preview(one, { evaluation_id: run, result_id: sample.result_id })),
  });
  return (
    <div className="flex flex-col gap-2 border-t border-line pt-3">
      <div className="flex flex-wrap items-center gap-2">
        <Button disabled={grader === null || batch.isPending} onClick={() => grader && batch.mutate(grader)}>
          {batch.isPending ? "Grading…" : `Grade first ${formatCount(first.length)}`}
        </Button>
        {batch.data && <span className="num text-sm text-muted">{tally(batch.data)}</span>}
      </div>
      {batch.error && <ErrorNotice error={batch.error} />}
      {batch.data && (
        <ol className="flex flex-col text-sm">
          {first.map((sample, index) => {
            const graded = batch.data[index];
            return graded === undefined ? null : (
              <li key={sample.result_id}>
                <button
                  type="button"
                  className="flex w-full items-baseline gap-2 rounded px-1 py-1 text-start hover:bg-raised"
                  onClick={() => onOpen(index)}
                >
                  <ScoreBadge grade={graded} />
                  <SafeText text={(sample.agent_response ?? "").slice(0, 200)} className="line-clamp-1" />
                </button>
              </li>
            );
          })}
        </ol>
      )}
    </div>
  );
}

/** "7 pass, 2 fail, 1 error". */
export function tally(scores: readonly Pick<Score, "score_status">[]): string {
  const outcomes: readonly Outcome[] = ["pass", "fail", "error", "skipped"];
  return outcomes
    .map((outcome) => [scores.filter((one) => one.score_status === outcome).length, outcome] as const)
    .filter(([number]) => number > 0)
    .map(([number, outcome]) => `${number} ${outcome}`)
    .join(", ");
}

/** Limits concurrency, because each call may call a judge model. */
export async function mapInBatches<T, R>(items: readonly T[], act: (item: T) => Promise<R>): Promise<R[]> {
  const done: R[] = [];
  for (let from = 0; from < items.length; from += BATCH_SIZE) {
    // oxlint-disable-next-line no-await-in-loop -- batches are sequential
    done.push(...(await Promise.all(items.slice(from, from + BATCH_SIZE).map(act))));
  }
  return done;
}
