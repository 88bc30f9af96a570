import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/calls.ts";
import { cost, count, counted } from "../../lib/format.ts";
import { useCaseSample } from "./CaseChooser.tsx";
import { stopsEarly, type Draft } from "./draft.ts";
import { useGraders } from "./GraderChooser.tsx";
import { judgeCalls } from "./judgeCalls.ts";

/** How many cases a draft chooses; undefined while that is not known. Of very many with a tag, there are `more`. */
function useChosenCases(draft: Draft): { cases: number | undefined; more: boolean } {
  const sample = useCaseSample();
  const tagged = useQuery({
    queryKey: ["cases", { tag: draft.tag, limit: 1000 }],
    queryFn: async ({ signal }) => {
      const page = await api.cases({ tag: draft.tag, limit: 1000 }, signal);
      // the list looks for a part of a tag, a run for the whole of it
      const exact = page.test_cases.filter((one) => one.tags.includes(draft.tag)).length;
      return { exact, complete: page.next_cursor === null };
    },
    enabled: draft.by === "tag" && draft.tag !== "",
  });
  if (draft.by === "all") return { cases: sample.data?.total, more: false };
  if (draft.by === "ids") return { cases: draft.ids.length, more: false };
  return { cases: tagged.data?.exact, more: tagged.data?.complete === false };
}

/** What will run, before it does. `costOfCall` is what the agent said of a try, where it said it. */
export function Plan({ draft, costOfCall }: { draft: Draft; costOfCall: number | null }) {
  const { cases, more } = useChosenCases(draft);
  const graders = useGraders();
  const repeats = draft.repeats ?? 1;
  const calls = (cases ?? 0) * repeats;
  const perGrade = draft.graders.reduce(
    (sum, chosen) =>
      sum +
      judgeCalls(
        chosen,
        graders.data?.find((grader) => grader.id === chosen.id),
      ),
    0,
  );
  const plus = more ? "+" : "";
  return (
    <section aria-label="What will run" className="rounded-md border border-line bg-accent-soft p-3 text-sm">
      <h2 className="font-semibold">What will run</h2>
      {cases === undefined ? (
        <p className="text-muted">Choose cases to see it.</p>
      ) : (
        <ul className="num list-inside list-disc">
          <li>
            {count(cases)}
            {plus} {cases === 1 && !more ? "case" : "cases"}
            {repeats > 1 && ` × ${repeats} repeats`} = {stopsEarly(draft) && "at most "}
            {counted(calls, "call")}
            {more && " or more"} to the agent{draft.timeout !== null && `, each within ${draft.timeout} s`}
          </li>
          <li>
            {counted(draft.graders.length, "grader")} = {counted(calls * draft.graders.length, "grade")}
            {more && " or more"}
          </li>
          {perGrade > 0 && (
            <li>
              {count(calls)}
              {plus} × {perGrade} = {counted(calls * perGrade, "call")}
              {more && " or more"} to judge models, retries aside
            </li>
          )}
          <li>
            Cost of the agent:{" "}
            {costOfCall === null
              ? "not known"
              : `about ${cost(costOfCall * calls)}${more ? " or more" : ""}, as the try cost ${cost(costOfCall)}`}
            {perGrade > 0 && "; of the judges: not known, their provider charges by the token"}
          </li>
        </ul>
      )}
    </section>
  );
}
