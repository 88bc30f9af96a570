import { useQuery } from "@tanstack/react-query";
import { api } from "../../api/client.ts";
import type { Grader, Json, JsonObject } from "../../api/types.ts";
import { formatCost, formatCount, pluralize } from "../../lib/format.ts";
import { useCaseStats } from "./CaseChooser.tsx";
import { type ChosenGrader, type Draft, stopsEarly } from "./draft.ts";
import { useGraders } from "./GraderChooser.tsx";

/** Number of cases a draft selects; undefined while unknown. `more`: there are more cases than were counted. */
function useChosenCases(draft: Draft): { cases: number | undefined; more: boolean } {
  const sample = useCaseStats();
  const tagged = useQuery({
    queryKey: ["cases", { tag: draft.tag, limit: 1000 }],
    queryFn: async ({ signal }) => {
      const page = await api.cases({ tag: draft.tag, limit: 1000 }, signal);
      // the list matches a part of a tag, a run the whole tag
      const exact = page.test_cases.filter((one) => one.tags.includes(draft.tag)).length;
      return { exact, complete: page.next_cursor === null };
    },
    enabled: draft.by === "tag" && draft.tag !== "",
  });
  if (draft.by === "all") return { cases: sample.data?.total, more: false };
  if (draft.by === "ids") return { cases: draft.ids.length, more: false };
  return { cases: tagged.data?.exact, more: tagged.data?.complete === false };
}

/** The calls a run will make. `costOfCall`: the cost that the agent reported for a test call, if any. */
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
    <section aria-label="Run plan" className="rounded-md border border-line bg-accent-soft p-3 text-sm">
      <h2 className="font-semibold">Run plan</h2>
      {cases === undefined ? (
        <p className="text-muted">Select cases to see the plan.</p>
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
              {more && " or more"} to judge models, excluding retries
            </li>
          )}
          <li>
            Agent cost:{" "}
            {costOfCall === null
              ? "unknown"
              : `about ${formatCost(costOfCall * calls)}${more ? " or more" : ""} (${formatCost(costOfCall)} per call, from the test call)`}
            {perGrade > 0 && "; judge cost: unknown, charged per token by the provider"}
          </li>
        </ul>
      )}
    </section>
  );
}

const DEFAULT_SAMPLES = 5;

/** Number of model calls per grade; 0 for graders without a model. */
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
