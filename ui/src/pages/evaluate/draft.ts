import type { Evaluation, Grader, GraderChoice, Json, JsonObject, NewEvaluation, TryRequest } from "../../api/types.ts";
import { fieldsFromSchema, validateFields, withoutDefaults } from "../../lib/jsonSchema.ts";

/** A selected grader with its options. */
export interface ChosenGrader {
  /** Unique also if a grader is used twice. */
  key: string;
  id: string;
  config: JsonObject;
}

/** Request and response format of the agent, as typed. */
export interface Mapping {
  method: string;
  /** JSON, as text. */
  headers: string;
  request: string;
  /** JMESPath expressions; empty to detect. */
  output: string;
  toolCalls: string;
}

export interface Draft {
  by: "tag" | "ids" | "all";
  tag: string;
  ids: readonly string[];
  url: string;
  mapping: Mapping;
  graders: readonly ChosenGrader[];
  name: string;
  repeats: number | null;
  concurrency: number | null;
  timeout: number | null;
  baseline: string;
  /** Stop when the comparison with the baseline is decided; ignored without a baseline. */
  stopEarly: boolean;
}

/** The service's limit for a test call. */
const MAX_TRY_S = 60;

const DEFAULT_REQUEST = '{\n  "input": "{{input}}"\n}';
export const DEFAULT_MAPPING: Mapping = {
  method: "POST",
  headers: "{}",
  request: DEFAULT_REQUEST,
  output: "",
  toolCalls: "",
};

export function chosenGraders(choices: readonly GraderChoice[]): ChosenGrader[] {
  return choices.map((choice) =>
    typeof choice === "string"
      ? { key: choice, id: choice, config: {} }
      : { key: choice.name ?? choice.id, id: choice.id, config: choice.config ?? {} },
  );
}

/** The id, with a number if another chosen grader has it already. */
export function uniqueKey(id: string, chosen: readonly ChosenGrader[]): string {
  const taken = new Set(chosen.map((one) => one.key));
  if (!taken.has(id)) return id;
  let number = 2;
  while (taken.has(`${id}-${number}`)) number += 1;
  return `${id}-${number}`;
}

/** The selected graders for the request, without options equal to their defaults. */
export function graderChoices(chosen: readonly ChosenGrader[], graders: readonly Grader[]): GraderChoice[] {
  return chosen.map(({ key, id, config }) => {
    const schema = graders.find((grader) => grader.id === id)?.config_schema;
    const set = schema ? withoutDefaults(fieldsFromSchema(schema), config) : config;
    const choice: Exclude<GraderChoice, string> = { id };
    if (key !== id) choice.name = key;
    if (Object.keys(set).length > 0) choice.config = set;
    return Object.keys(choice).length === 1 ? id : choice;
  });
}

type ParsedJson = { value: Json; problem: null } | { value: null; problem: string };

function parseJson(text: string): ParsedJson {
  try {
    return { value: JSON.parse(text) as Json, problem: null };
  } catch (error) {
    return { value: null, problem: `is not valid JSON: ${error instanceof Error ? error.message : String(error)}` };
  }
}

/** The agent as a target of the suite format; null if the URL is enough. */
export function targetFromDraft(draft: Pick<Draft, "url" | "mapping" | "timeout">): JsonObject | null {
  const { method, headers, request, output, toolCalls } = draft.mapping;
  const parsedRequest = parseJson(request).value;
  const target: JsonObject = {};
  if (method !== "POST") target["method"] = method;
  const parsedHeaders = parseJson(headers || "{}").value;
  if (parsedHeaders !== null && JSON.stringify(parsedHeaders) !== "{}") target["headers"] = parsedHeaders;
  if (parsedRequest !== null && JSON.stringify(parsedRequest) !== JSON.stringify(JSON.parse(DEFAULT_REQUEST)))
    target["request"] = parsedRequest;
  const response: JsonObject = {};
  if (output.trim()) response["output"] = output.trim();
  if (toolCalls.trim()) response["tool_calls"] = toolCalls.trim();
  if (Object.keys(response).length > 0) target["response"] = response;
  if (Object.keys(target).length === 0) return null;
  return {
    kind: "http",
    url: draft.url.trim(),
    ...target,
    ...(draft.timeout === null ? {} : { timeout: draft.timeout }),
  };
}

/** The request for a test call. */
export function tryRequest(draft: Pick<Draft, "url" | "mapping" | "timeout">, input: string): TryRequest {
  const target = targetFromDraft(draft);
  if (target !== null) return { target, input };
  return {
    agent_endpoint_url: draft.url.trim(),
    input,
    ...(draft.timeout === null ? {} : { timeout_s: Math.min(draft.timeout, MAX_TRY_S) }),
  };
}

/** Identifies the agent and its request format, to detect changes. */
export function agentKey(draft: Pick<Draft, "url" | "mapping">): string {
  return JSON.stringify([draft.url.trim(), draft.mapping]);
}

/** Messages by part of the form. */
export function validateDraft(draft: Draft, graders: readonly Grader[]): Record<string, string> {
  const problems: Record<string, string> = {};
  if (draft.by === "tag" && draft.tag.trim() === "") problems["cases"] = "Enter a tag";
  if (draft.by === "ids" && draft.ids.length === 0) problems["cases"] = "Select at least one case";
  if (!/^https?:\/\/[^\s/]+/i.test(draft.url.trim()))
    problems["url"] = "Enter a URL that starts with http:// or https://";
  for (const part of ["request", "headers"] as const) {
    const { problem } = parseJson(draft.mapping[part] || "null");
    if (problem) problems[part] = problem;
  }
  if (draft.graders.length === 0) problems["graders"] = "Add at least one grader";
  for (const { key, id, config } of draft.graders) {
    const schema = graders.find((grader) => grader.id === id)?.config_schema;
    const wrong = schema ? Object.entries(validateFields(fieldsFromSchema(schema), config)) : [];
    if (wrong.length > 0) problems[`grader ${key}`] = wrong.map(([field, problem]) => `${field} ${problem}`).join("; ");
  }
  return problems;
}

export function stopsEarly(draft: Pick<Draft, "baseline" | "stopEarly">): boolean {
  return draft.stopEarly && draft.baseline !== "";
}

/** The request that starts the run. `ids`: the cases, unless selected by tag. */
export function runRequest(draft: Draft, graders: readonly Grader[], ids: readonly string[]): NewEvaluation {
  const target = targetFromDraft(draft);
  return {
    ...(draft.by === "tag" ? { tag: draft.tag.trim() } : { test_case_ids: [...ids] }),
    ...(target === null ? { agent_endpoint_url: draft.url.trim() } : { target }),
    grader_ids: graderChoices(draft.graders, graders),
    ...(draft.name.trim() ? { name: draft.name.trim() } : {}),
    ...(draft.repeats !== null && draft.repeats > 1 ? { repeats: draft.repeats } : {}),
    ...(draft.concurrency === null ? {} : { concurrency: draft.concurrency }),
    // a target has its own timeout
    ...(draft.timeout === null || target !== null ? {} : { timeout_s: draft.timeout }),
    ...(draft.baseline ? { baseline_id: draft.baseline } : {}),
    ...(stopsEarly(draft) ? { stop_early: true } : {}),
  };
}

/** A draft that repeats a run. */
export function draftFromRun(run: Evaluation): Partial<Draft> {
  const target = run.target ?? {};
  const url = run.agent_endpoint_url ?? (typeof target["url"] === "string" ? target["url"] : "");
  const response = target["response"];
  const paths = typeof response === "object" && response !== null && !Array.isArray(response) ? response : {};
  return {
    by: run.tag ? "tag" : "ids",
    tag: run.tag ?? "",
    ids: run.test_case_ids ?? [],
    url,
    mapping: {
      method: typeof target["method"] === "string" ? target["method"] : "POST",
      headers: JSON.stringify(target["headers"] ?? {}, null, 2),
      request: target["request"] == null ? DEFAULT_REQUEST : JSON.stringify(target["request"], null, 2),
      output: typeof paths["output"] === "string" ? paths["output"] : "",
      toolCalls: typeof paths["tool_calls"] === "string" ? paths["tool_calls"] : "",
    },
    name: run.name ?? "",
    repeats: run.repeats ?? null,
    concurrency: run.concurrency ?? null,
    timeout: run.timeout_s ?? null,
    baseline: run.baseline_id ?? "",
    stopEarly: run.stop_early ?? false,
  };
}
