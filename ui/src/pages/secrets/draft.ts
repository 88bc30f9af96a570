import type { Secret, SecretBody } from "./calls.ts";

/** The fields of the form as they are typed. */
export interface SecretDraft {
  name: string;
  value: string;
  hosts: string;
  scheme: NonNullable<SecretBody["scheme"]>;
  place: NonNullable<SecretBody["place"]>;
  /** Every key of scope `run` may use it. */
  run: boolean;
  keys: string;
}

export type SecretFaults = Partial<Record<keyof SecretDraft, string>>;

const SHORTEST = 8;
const EMPTY: SecretDraft = { name: "", value: "", hosts: "", scheme: "https", place: "header", run: false, keys: "" };

/** What the form begins with: nothing, or everything of a stored secret except its value. */
export function secretDraftOf(secret: Secret | undefined): SecretDraft {
  if (secret === undefined) return EMPTY;
  const { name, scheme, place } = secret;
  const run = secret.scopes.includes("run");
  return { name, value: "", hosts: secret.hosts.join("\n"), scheme, place, run, keys: secret.keys.join("\n") };
}

/** What to send, or what is wrong; `taken` are the names of other secrets. */
export function secretOf(
  draft: SecretDraft,
  taken: readonly string[] = [],
): { name: string; body: SecretBody; faults: null } | { body: null; faults: SecretFaults } {
  const faults: SecretFaults = {};
  const name = draft.name.trim();
  const hosts = words(draft.hosts);
  if (!/^[A-Za-z0-9_.-]{1,100}$/.test(name)) faults.name = "Letters, digits, _, - and ., at most 100";
  else if (taken.includes(name)) faults.name = "A secret has this name already; replace it in the list";
  if ([...draft.value].length < SHORTEST) faults.value = "At least 8 characters: a shorter value cannot be masked";
  if (hosts.length === 0) faults.hosts = "Name at least one host";
  if (Object.keys(faults).length > 0) return { body: null, faults };
  const { value, scheme, place } = draft;
  const scopes: SecretBody["scopes"] = draft.run ? ["admin", "run"] : ["admin"];
  return { name, body: { value, hosts, scheme, place, scopes, keys: words(draft.keys) }, faults: null };
}

function words(text: string): string[] {
  return [...new Set(text.split(/[\s,]+/).filter(Boolean))];
}
