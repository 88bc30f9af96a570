import { request } from "../../api/request.ts";
import type { components } from "../../api/schema.ts";

type Schemas = components["schemas"];

/** A secret without its value, which the service never gives out. */
export type Secret = Schemas["SecretInfo"];
export type SecretBody = Schemas["SecretBody"];

export const secretCalls = {
  all: async (signal?: AbortSignal) =>
    (await request<Schemas["SecretList"]>("GET", "secrets", signal ? { signal } : {})).secrets,
  put: (name: string, body: SecretBody) => request<Secret>("PUT", `secrets/${encodeURIComponent(name)}`, { body }),
  remove: (name: string) => request<void>("DELETE", `secrets/${encodeURIComponent(name)}`),
};
