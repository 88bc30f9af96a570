import type { JsonObject } from "../../api/types.ts";

export interface Starter {
  title: string;
  config: JsonObject;
}

/** Something to begin with, by the kind of the grader. */
export const STARTERS: Record<string, readonly Starter[] | undefined> = {
  "custom-rules": [
    { title: "Holds the expected text", config: { rules: [{ condition: "contains", value: "$expected" }] } },
    {
      title: "Short, and no apology",
      config: {
        rules: [
          { condition: "length_max", value: 400 },
          { condition: "not_contains", value: "sorry" },
        ],
      },
    },
    { title: "Valid JSON", config: { rules: [{ condition: "is_json" }] } },
  ],
  model_judge: [
    { title: "Facts as expected", config: { rubric: "factuality", model: "gpt-6-luna" } },
    { title: "Helpful", config: { rubric: "helpfulness", model: "gpt-6-luna" } },
    {
      title: "A rubric of your own",
      config: {
        model: "gpt-6-luna",
        prompt:
          "Question: {input}\nExpected: {ground_truth}\nAnswer: {submission}\n\nIs the answer right and complete? 1.0 if it is, 0.0 if not.",
      },
    },
    {
      title: "A checklist",
      config: {
        model: "gpt-6-luna",
        prompt: "Question: {input}\nAnswer: {submission}",
        checklist: ["Does the answer address the question?", "Is the answer free of claims without a source?"],
      },
    },
  ],
};
