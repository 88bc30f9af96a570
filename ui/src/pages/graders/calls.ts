import { api } from "../../api/calls.ts";
import { request } from "../../api/request.ts";
import type { Grader, JsonObject, Score } from "../../api/types.ts";
import type { Definition } from "./draft.ts";

/** What is graded in a preview: a stored result, or texts that somebody typed. */
export type Subject =
  { evaluation_id: string; result_id: string } | { agent_response: string; expected_output?: string; input?: string };

/** A stored grader with options over its own, or a definition that is not stored. */
export type Previewed = { id: string; config: JsonObject } | { definition: Definition };

export const graderCalls = {
  all: async (signal?: AbortSignal) => (await api.graders(signal)).graders,
  version: (id: string, version: number, signal?: AbortSignal) =>
    request<Grader>("GET", `graders/${encodeURIComponent(id)}`, { query: { version }, ...(signal ? { signal } : {}) }),
  create: (id: string, definition: Definition) =>
    request<Grader>("POST", "graders", { body: id === "" ? definition : { id, ...definition } }),
  update: (id: string, definition: Partial<Definition>) =>
    request<Grader>("PUT", `graders/${encodeURIComponent(id)}`, { body: definition }),
  remove: (id: string) => request<void>("DELETE", `graders/${encodeURIComponent(id)}`),
  preview: (grader: Previewed, subject: Subject, signal?: AbortSignal) => {
    const [id, with_] =
      "definition" in grader ? ["new", { definition: grader.definition }] : [grader.id, { config: grader.config }];
    return request<Score>("POST", `graders/${encodeURIComponent(id)}/preview`, {
      body: { ...with_, ...subject },
      ...(signal ? { signal } : {}),
    });
  },
};
