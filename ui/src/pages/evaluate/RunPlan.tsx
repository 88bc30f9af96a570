import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/client.ts";
import type { Grader, Json, JsonObject } from "../../api/types.ts";
import { formatCost, formatCount, pluralize } from "../../lib/format.ts";
import { useCaseStats } from "./CaseChooser.tsx";
import { type ChosenGrader, type Draft, stopsEarly } from "./draft.ts";
import { useGraders } from "./GraderChooser.tsx";

/** How many cases a draft chooses; undefined while that is not known. Of very many with a tag, there are `more`. */
function useChosenCases(draft: Draft): { cases: number | undefined; more: boolean } {
  const sample = useCaseStats();
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
export function RunPlan({ draft, costOfCall }: { draft: Draft; costOfCall: number | null }) {
  const { cases, more } = useChosenCases(draft);
  const graders = useGraders();
  const repeats = draft.repeats ?? 1;
  const calls = (cases ?? 0) * repeats;
  const perGrade = draft.graders.reduce(
    (sum, chosen) =>
      sum +
      judgeCallsPerGrade(
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
            {formatCount(cases)}
            {plus} {cases === 1 && !more ? "case" : "cases"}
            {repeats > 1 && ` × ${repeats} repeats`} = {stopsEarly(draft) && "at most "}
            {pluralize(calls, "call")}
            {more && " or more"} to the agent{draft.timeout !== null && `, each within ${draft.timeout} s`}
          </li>
          <li>
            {pluralize(draft.graders.length, "grader")} = {pluralize(calls * draft.graders.length, "grade")}
            {more && " or more"}
          </li>
          {perGrade > 0 && (
            <li>
              {formatCount(calls)}
              {plus} × {perGrade} = {pluralize(calls * perGrade, "call")}
              {more && " or more"} to judge models, retries aside
            </li>
          )}
          <li>
            Cost of the agent:{" "}
            {costOfCall === null
              ? "not known"
              : `about ${formatCost(costOfCall * calls)}${more ? " or more" : ""}, as the try cost ${formatCost(costOfCall)}`}
            {perGrade > 0 && "; of the judges: not known, their provider charges by the token"}
          </li>
        </ul>
      )}
    </section>
  );
}

const DEFAULT_SAMPLES = 5;

/** How many calls of a model one grade by this grader takes; 0 where it asks none. */
export function judgeCallsPerGrade(chosen: ChosenGrader, grader: Grader | undefined): number {
  const config: JsonObject = { ...(grader?.config as JsonObject | undefined), ...chosen.config };
  switch (grader?.type ?? chosen.id) {
    case "model_judge":
    case "rubric":
      return judgeSamples(config);
    case "panel":
      return (Array.isArray(config["judges"]) ? config["judges"].length : 2) * judgeSamples(config);
    case "pairwise":
      // in both orders
      return 2;
    case "baseline":
      return config["judge"] === "llm" ? 1 : 0;
    case "embedding":
      return isAbsent(config["provider"]) || config["provider"] === "wordllama" ? 0 : 1;
    case "letta_judge":
      return 1;
    default:
      return 0;
  }
}

function judgeSamples(config: JsonObject): number {
  if (config["scoring"] !== "samples") return 1;
  return typeof config["samples"] === "number" ? config["samples"] : DEFAULT_SAMPLES;
}

function isAbsent(value: Json | undefined): boolean {
  return value === undefined || value === null || value === "";
}
