import type { Grader, Json, JsonObject } from "../../api/types.ts";
import type { ChosenGrader } from "./draft.ts";

const SAMPLES = 5;

/** How many calls of a model one grade by this grader takes; 0 where it asks none. */
export function judgeCalls(chosen: ChosenGrader, grader: Grader | undefined): number {
  const config: JsonObject = { ...(grader?.config as JsonObject | undefined), ...chosen.config };
  switch (grader?.type ?? chosen.id) {
    case "model_judge":
    case "rubric":
      return samplesOf(config);
    case "panel":
      return (Array.isArray(config["judges"]) ? config["judges"].length : 2) * samplesOf(config);
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

function samplesOf(config: JsonObject): number {
  if (config["scoring"] !== "samples") return 1;
  return typeof config["samples"] === "number" ? config["samples"] : SAMPLES;
}

function isAbsent(value: Json | undefined): boolean {
  return value === undefined || value === null || value === "";
}
