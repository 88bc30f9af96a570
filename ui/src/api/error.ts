import type { ErrorCode, Json, JsonObject, RowError } from "./types.ts";

/** What an error code means to a person, and what to do about it. The server's own message stands beside it. */
const HEADLINES: Record<ErrorCode | "NETWORK" | "UNKNOWN", string> = {
  MISSING_FIELD: "Something is missing",
  INVALID_LENGTH: "A text is too short or too long",
  INVALID_INPUT: "This is not accepted",
  INVALID_JSON: "This is not valid JSON",
  INVALID_URL: "This is not a usable address",
  URL_NOT_ALLOWED: "The service may not reach this address",
  INVALID_TEST_CASE_ID: "A test case is no longer there",
  INVALID_GRADER_ID: "A grader is no longer there",
  INVALID_GRADER: "A grader's options are not valid",
  DUPLICATE_ID: "The same thing is named twice",
  NOT_FOUND: "Not found",
  METHOD_NOT_ALLOWED: "The service does not offer this",
  CONFLICT: "This cannot be done in the present state",
  IDEMPOTENCY_KEY_REUSED: "This request was sent before with other content",
  UNAUTHORIZED: "Not signed in",
  FORBIDDEN: "Your key does not allow this",
  PAYLOAD_TOO_LARGE: "Too large",
  UNSUPPORTED_MEDIA_TYPE: "This kind of file is not read",
  RATE_LIMITED: "Too many requests; try again in a moment",
  STORAGE_UNAVAILABLE: "The store cannot be used right now",
  INTERNAL_ERROR: "The service failed",
  NETWORK: "The service cannot be reached",
  UNKNOWN: "The service gave an answer that is not understood",
};

/** A request that did not succeed. `message` is the server's and may quote foreign text: show it as text alone. */
export class ApiError extends Error {
  constructor(
    readonly code: keyof typeof HEADLINES,
    message: string,
    readonly status: number,
    readonly details: JsonObject | null = null,
    readonly retryAfterMs: number | null = null,
  ) {
    super(message);
    this.name = "ApiFailure";
  }

  get headline(): string {
    return HEADLINES[this.code];
  }

  /** Whether asking again later may help. */
  get retryable(): boolean {
    return this.code === "NETWORK" || this.status === 429 || this.status >= 500;
  }

  /** The bad rows of an imported file. */
  get rows(): RowError[] {
    return this.errors.flatMap(asRowError);
  }

  /** What is wrong, by the field of the request. */
  get fields(): Record<string, string> {
    return Object.fromEntries(this.errors.flatMap(asFieldError));
  }

  private get errors(): Json[] {
    const errors = this.details?.["errors"];
    return Array.isArray(errors) ? errors : [];
  }
}

function asFieldError(value: Json): [string, string][] {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [];
  const { field, message } = value;
  return typeof field === "string" && typeof message === "string" ? [[field, message]] : [];
}

function asRowError(value: Json): RowError[] {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [];
  const { line, field, message } = value;
  if (typeof line !== "number" || typeof message !== "string") return [];
  return [{ line, field: typeof field === "string" ? field : null, message }];
}

export function isErrorCode(code: unknown): code is ErrorCode {
  return typeof code === "string" && code in HEADLINES && code !== "NETWORK" && code !== "UNKNOWN";
}

/** A headline and the rest, for whatever was thrown. */
export function describeError(error: unknown): { headline: string; message: string } {
  if (error instanceof ApiError) return { headline: error.headline, message: error.message };
  return { headline: "Something went wrong here", message: error instanceof Error ? error.message : String(error) };
}
