import { ApiError, isErrorCode } from "./error.ts";
import { session } from "./session.ts";
import type { JsonObject } from "./types.ts";

export type Query = Record<string, string | number | boolean | null | undefined>;

interface RequestOptions {
  query?: Query;
  /** Sent as JSON; a `Blob` is sent unchanged, with its own type. */
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** The URL of an endpoint, relative to the page, without empty parameters. */
export function apiUrl(path: string, query: Query = {}): string {
  const present = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(present.map(([key, value]) => [key, String(value)])).toString();
  return `api/${path}${text && `?${text}`}`;
}

/** Sends a request and returns the data of the envelope, or throws an `ApiError`. */
export async function request<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
  const response = await send(method, path, options);
  if (response.status === 204) return undefined as T;
  const envelope = await response.json().catch(() => null);
  if (response.ok && isEnvelope(envelope) && envelope.success) return envelope.data as T;
  const failure = errorFrom(response, envelope);
  // a wrong key at sign-in is a 401 too, but ends no session
  if (failure.status === 401 && !(method === "POST" && path === "session")) session.end();
  throw failure;
}

/** Sends a request whose response has no envelope. */
export async function requestText(path: string, query: Query = {}): Promise<string> {
  const response = await send("GET", path, { query });
  const text = await response.text();
  if (response.ok) return text;
  throw errorFrom(response, parseJsonOrNull(text));
}

async function send(method: string, path: string, options: RequestOptions): Promise<Response> {
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
    return await fetch(apiUrl(path, options.query), init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("NETWORK", "Check that `gradeline serve` is running, then try again.", 0);
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

function parseJsonOrNull(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function errorFrom(response: Response, body: unknown): ApiError {
  const error = isEnvelope(body) ? body.error : null;
  const code = isErrorCode(error?.code) ? error.code : "UNKNOWN";
  const message =
    typeof error?.message === "string" ? error.message : `The service responded with status ${response.status}.`;
  const seconds = Number(response.headers.get("Retry-After") ?? Number.NaN);
  const retryAfterMs = Number.isFinite(seconds) && seconds >= 0 ? seconds * 1000 : null;
  return new ApiError(code, message, response.status, error?.details ?? null, retryAfterMs);
}

/** A random key that identifies one request. (`crypto.randomUUID` does not exist on plain HTTP.) */
export function newIdempotencyKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
