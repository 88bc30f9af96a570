import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { sampleApi } from "../../api/client.ts";
import type { QuestionLabels } from "../../api/types.ts";
import { Badge } from "../../components/Badge.tsx";
import { ErrorNotice } from "../../components/Notice.tsx";
import { SafeText } from "../../components/SafeText.tsx";
import { formatScore, pluralize } from "../../lib/format.ts";

const MOST_DISAGREEMENTS = 20;

/** Who labelled results of a run, how well the raters agree, and where they do not. */
export function AgreementPanel({ run }: { run: string }) {
  const agreement = useQuery({
    queryKey: ["label-agreement", run],
    queryFn: ({ signal }) => sampleApi.agreement(run, signal),
  });
  if (agreement.error) return <ErrorNotice error={agreement.error} onRetry={() => void agreement.refetch()} />;
  const questions = agreement.data?.questions.filter((one) => one.results > 0 || one.stale > 0) ?? [];
  if (questions.length === 0) return null;
  return (
    <section aria-labelledby="raters" className="flex flex-col gap-2">
      <h2 id="raters" className="text-lg font-semibold">
        Raters
      </h2>
      {questions.map((one) => (
        <Question key={one.question} run={run} found={one} />
      ))}
    </section>
  );
}

function Question({ run, found }: { run: string; found: QuestionLabels }) {
  return (
    <article className="card flex flex-col gap-2 p-3 text-sm" aria-label={`Raters of ${found.question}`}>
      <h3 className="font-medium">
        <SafeText text={found.question} />: {pluralize(found.results, "result")} with labels
      </h3>
      <ul>
        {found.raters.map((rater) => (
          <li key={rater.author}>
            <SafeText text={raterName(rater.author)} />: {pluralize(rater.labels, "label")}
            {rater.adjudications > 0 && `, ${pluralize(rater.adjudications, "adjudication")}`}
          </li>
        ))}
      </ul>
      {found.alpha && <p className="num">Krippendorff&apos;s alpha: {intervalText(found.alpha)}</p>}
      {found.pairs.map((pair) => (
        <p key={pair.authors.join(" ")} className="num">
          <SafeText text={pair.authors.map(raterName).join(" and ")} />: same label on {pair.same} of{" "}
          {pluralize(pair.results, "result")}
          {pair.kappa && `, kappa ${intervalText(pair.kappa)}`}
        </p>
      ))}
      {found.stale > 0 && (
        <p className="text-muted">
          {pluralize(found.stale, "result")} with labels of a response that was replaced since; they do not count
        </p>
      )}
      <Disagreements run={run} found={found} />
    </article>
  );
}

function Disagreements({ run, found }: { run: string; found: QuestionLabels }) {
  if (found.disagreements.length === 0) return null;
  return (
    <details>
      <summary>
        {pluralize(found.disagreements.length, "disagreement")}, {found.unresolved} unresolved
      </summary>
      <ul className="mt-1 flex flex-col gap-1">
        {found.disagreements.slice(0, MOST_DISAGREEMENTS).map((one) => (
          <li key={one.result_id} className="flex flex-wrap items-center gap-2">
            <Link
              className="text-accent underline"
              to={`/runs/${encodeURIComponent(run)}?row=${encodeURIComponent(one.result_id)}`}
            >
              <SafeText text={one.test_case_id} />
            </Link>
            <SafeText
              text={Object.entries(one.labels)
                .map(([rater, label]) => `${raterName(rater)}: ${label}`)
                .join(", ")}
            />
            {!one.resolved && <Badge tone="open">unresolved</Badge>}
          </li>
        ))}
      </ul>
      {found.disagreements.length > MOST_DISAGREEMENTS && (
        <p className="text-muted">and {found.disagreements.length - MOST_DISAGREEMENTS} more</p>
      )}
    </details>
  );
}

/** A rater has no name in local mode. */
function raterName(author: string | null): string {
  return author === null || author === "" ? "without a name" : author;
}

function intervalText({ estimate, low, high }: { estimate: number; low: number; high: number }): string {
  return `${formatScore(estimate)} (${formatScore(low)}–${formatScore(high)})`;
}
