import type { ErrorCode, Json, JsonObject, RowError } from "./types.ts";

/** A headline for each error code, shown above the server's own message. */
const HEADLINES: Record<ErrorCode | "NETWORK" | "UNKNOWN", string> = {
  MISSING_FIELD: "A required field is missing",
  INVALID_LENGTH: "A value is too short or too long",
  INVALID_INPUT: "Invalid input",
  INVALID_JSON: "Invalid JSON",
  INVALID_URL: "Invalid URL",
  URL_NOT_ALLOWED: "The service is not allowed to call this URL",
  INVALID_TEST_CASE_ID: "A test case no longer exists",
  INVALID_GRADER_ID: "A grader no longer exists",
  INVALID_GRADER: "Invalid grader options",
  DUPLICATE_ID: "Duplicate id",
  NOT_FOUND: "Not found",
  METHOD_NOT_ALLOWED: "Method not allowed",
  CONFLICT: "Not possible in the current state",
  IDEMPOTENCY_KEY_REUSED: "The idempotency key was already used for a different request",
  UNAUTHORIZED: "Not signed in",
  FORBIDDEN: "Your API key does not allow this",
  PAYLOAD_TOO_LARGE: "Too large",
  UNSUPPORTED_MEDIA_TYPE: "Unsupported file type",
  RATE_LIMITED: "Too many requests; try again in a moment",
  STORAGE_UNAVAILABLE: "The store is unavailable",
  INTERNAL_ERROR: "Internal server error",
  NETWORK: "The service cannot be reached",
  UNKNOWN: "Unexpected response from the service",
};

/** A failed request. `message` comes from the server and may quote untrusted text: show it only as text. */
export class ApiError extends Error {
  constructor(
    readonly code: keyof typeof HEADLINES,
    message: string,
    readonly status: number,
    readonly details: JsonObject | null = null,
    readonly retryAfterMs: number | null = null,
  ) {
    super(message);
    this.name = "ApiError";
  }

  get headline(): string {
    return HEADLINES[this.code];
  }

  /** True if the same request may succeed later. */
  get retryable(): boolean {
    return this.code === "NETWORK" || this.status === 429 || this.status >= 500;
  }

  /** The invalid rows of an imported file. */
  get rows(): RowError[] {
    return this.errors.flatMap(asRowError);
  }

  /** Messages by field of the request. */
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

/** A headline and a message for any thrown value. */
export function describeError(error: unknown): { headline: string; message: string } {
  if (error instanceof ApiError) return { headline: error.headline, message: error.message };
  return { headline: "Something went wrong", message: error instanceof Error ? error.message : String(error) };
}
