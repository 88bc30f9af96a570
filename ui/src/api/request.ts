import { ApiFailure, isCode } from "./failure.ts";
import { session } from "./session.ts";
import type { JsonObject } from "./types.ts";

export type Query = Record<string, string | number | boolean | null | undefined>;

export interface Options {
  query?: Query;
  /** Sent as JSON; a `Blob` as it is, with its own type. */
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** The address of an endpoint, relative to the page. Empty parameters are left out. */
export function address(path: string, query: Query = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return `api/${path}${text && `?${text}`}`;
}

/** Sends a request and takes the data out of the envelope, or throws an `ApiFailure`. */
export async function request<T>(method: string, path: string, options: Options = {}): Promise<T> {
  const response = await send(method, path, options);
  if (response.status === 204) return undefined as T;
  const envelope = await response.json().catch(() => null);
  if (response.ok && isEnvelope(envelope) && envelope.success) return envelope.data as T;
  const failure = failureOf(response, envelope);
  // a wrong key is a 401 too, but there somebody is signing in already
  if (failure.status === 401 && !(method === "POST" && path === "session")) session.lost();
  throw failure;
}

/** Sends a request whose answer is no envelope. */
export async function requestText(path: string, query: Query = {}): Promise<string> {
  const response = await send("GET", path, { query });
  const text = await response.text();
  if (response.ok) return text;
  throw failureOf(response, parsed(text));
}

async function send(method: string, path: string, options: Options): Promise<Response> {
  const headers = new Headers({ Accept: "application/json", ...options.headers });
  const init: RequestInit = { method, headers, credentials: "same-origin" };
  if (options.signal) init.signal = options.signal;
  if (options.body instanceof Blob) {
    init.body = options.body;
  } else if (options.body !== undefined) {
    headers.set("Content-Type", "application/json");
    init.body = JSON.stringify(options.body);
  }
  if (method !== "GET" && session.csrf !== null) headers.set("X-CSRF-Token", session.csrf);
  try {
    return await fetch(address(path, options.query), init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiFailure("NETWORK", "Check that `gradeline serve` is running, then try again.", 0);
  }
}

interface Envelope {
  success: boolean;
  data: unknown;
  error: { code?: unknown; message?: unknown; details?: JsonObject } | null;
}

function isEnvelope(value: unknown): value is Envelope {
  return typeof value === "object" && value !== null && "success" in value && "data" in value;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function failureOf(response: Response, body: unknown): ApiFailure {
  const error = isEnvelope(body) ? body.error : null;
  const code = isCode(error?.code) ? error.code : "UNKNOWN";
  const message = typeof error?.message === "string" ? error.message : `The service answered ${response.status}.`;
  const seconds = Number(response.headers.get("Retry-After") ?? Number.NaN);
  const retryAfterMs = Number.isFinite(seconds) && seconds >= 0 ? seconds * 1000 : null;
  return new ApiFailure(code, message, response.status, error?.details ?? null, retryAfterMs);
}
