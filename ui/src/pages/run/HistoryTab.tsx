import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";
import { api } from "../../api/client.ts";
import type { CaseRun, Evaluation, ResultDetail } from "../../api/types.ts";
import { ResponseBadge, ScoreBadge } from "../../components/Badge.tsx";
import { ErrorNotice, Loading } from "../../components/Notice.tsx";
import { SafeText, TextBlock } from "../../components/SafeText.tsx";
import { formatAgo, formatCount } from "../../lib/format.ts";

const MAX_RUNS = 10;

/** The same case in other runs, and replaced responses of this run. */
export function HistoryTab({ detail, run }: { detail: ResultDetail; run: Evaluation }) {
  return (
    <div className="flex flex-col gap-5">
      <OtherRuns detail={detail} run={run} />
      <ReplacedResponses detail={detail} />
    </div>
  );
}

function OtherRuns({ detail, run }: { detail: ResultDetail; run: Evaluation }) {
  const history = useQuery({
    queryKey: ["case-history", run.id, detail.result_id],
    queryFn: ({ signal }) => api.caseHistory(run.id, detail.result_id, MAX_RUNS, signal),
    staleTime: 60_000,
  });
  if (history.error) return <ErrorNotice error={history.error} />;
  if (history.isPending) return <Loading what="Loading other runs of this case" />;
  const rows: CaseRun[] = [
    { evaluation_id: run.id, name: run.name, started_at: run.started_at, result: detail },
    ...history.data.runs,
  ];
  return (
    <section>
      <h3 className="mb-1 text-sm font-semibold">This case in other runs</h3>
      {rows.length === 1 && <p className="mb-1 text-sm text-muted">No other run of this suite has this case.</p>}
      <div className="overflow-x-auto">
        <table className="w-full text-sm">
          <thead className="text-muted">
            <tr>
              <th className="p-1.5">Run</th>
              <th className="p-1.5">Response</th>
              <th className="p-1.5">Grades</th>
              <th className="p-1.5">Started</th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ evaluation_id: id, name, started_at: started, result }) => (
              <tr key={id} className="border-t border-line">
                <td className="p-1.5">
                  {id === run.id ? (
                    <span className="font-medium">This run</span>
                  ) : (
                    <Link
                      className="text-accent underline"
                      to={`/runs/${encodeURIComponent(id)}?row=${encodeURIComponent(result.result_id)}`}
                    >
                      <SafeText text={name || id.slice(0, 8)} />
                    </Link>
                  )}
                </td>
                <td className="p-1.5">
                  <ResponseBadge status={result.response_status} />
                </td>
                <td className="p-1.5">
                  <span className="flex flex-wrap gap-1">
                    {result.scores.map((score) => (
                      <span key={score.grader_id} title={score.grader_name}>
                        <ScoreBadge grade={score} />
                      </span>
                    ))}
                  </span>
                </td>
                <td className="p-1.5 text-muted">{formatAgo(started)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function ReplacedResponses({ detail }: { detail: ResultDetail }) {
  if (detail.history.length === 0) return null;
  return (
    <section>
      <h3 className="mb-1 text-sm font-semibold">Replaced responses in this run</h3>
      <ol className="flex flex-col gap-2">
        {detail.history.map((attempt) => (
          <li key={attempt.attempt} className="card p-2 text-sm">
            <p className="mb-1 flex gap-2 text-muted">
              <ResponseBadge status={attempt.response.status ?? "success"} /> attempt {formatCount(attempt.attempt)}
            </p>
            <TextBlock
              text={attempt.response.text ?? attempt.response.error?.message ?? ""}
              label="Replaced response"
            />
          </li>
        ))}
      </ol>
    </section>
  );
}
