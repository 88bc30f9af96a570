// Runs assertions of promptfoo as graders: reads a case per line from standard input, and writes its verdict.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { isDeepStrictEqual } from "node:util";

// code for promptfoo loads modules in this way too
process.mainModule ??= { require: createRequire(import.meta.url) };

/** The function of a module: the one with this name, else its default export, else the only one. */
export function exported(module, name) {
  const inner = module.default && typeof module.default === "object" ? module.default : {};
  const found = name ? (module[name] ?? inner[name]) : (module.default ?? module);
  const check = found?.default ?? found;
  if (typeof check !== "function") {
    throw new Error(name ? `the file exports no function ${name}` : "the file exports no function");
  }
  return check;
}

/** Whether an output is a value: text as it is, an object as the JSON in the output. */
export function same(output, value) {
  if (value === null || typeof value !== "object") {
    return String(output) === String(value);
  }
  try {
    return isDeepStrictEqual(typeof output === "string" ? JSON.parse(output) : output, value);
  } catch {
    return false;
  }
}

/** Answer each case on standard input with what `check(output, context)` returns. */
export async function grade(check) {
  for await (const line of createInterface({ input: process.stdin })) {
    if (line.trim()) {
      const request = JSON.parse(line);
      const result = await check(request.submission, contextOf(request));
      process.stdout.write(JSON.stringify({ id: request.id, ...verdict(result, request.config) }) + "\n");
    }
  }
}

function contextOf({ sample, submission, response, config }) {
  const vars = sample.metadata?.promptfoo?.vars ?? {};
  const prompt = Array.isArray(sample.input) ? sample.input.join("\n\n") : sample.input;
  return {
    vars,
    prompt,
    config: config.config ?? {},
    test: { vars, metadata: sample.metadata ?? {} },
    providerResponse: {
      output: submission,
      latencyMs: response?.latency_ms ?? undefined,
      cost: response?.usage?.cost ?? undefined,
      finishReason: response?.stop_reason ?? undefined,
    },
  };
}

function verdict(result, config) {
  const { passed, score, reason } = read(typeof result === "string" ? parsed(result) : result, config);
  const own = config.negate ? { passed: !passed, score: 1 - score } : { passed, score };
  const text = reason === undefined ? {} : { rationale: String(reason) };
  // gradeline derives the pass from the score, so a score that says otherwise is only kept as metadata
  if (own.score >= 0 && own.score <= 1 && own.score >= config.pass_threshold === own.passed) {
    return { score: own.score, ...text };
  }
  return { passed: own.passed, ...text, metadata: { score: own.score } };
}

function read(result, { threshold }) {
  if (typeof result === "boolean") {
    return { passed: result, score: result ? 1 : 0 };
  }
  if (typeof result === "number" && Number.isFinite(result)) {
    return { passed: threshold === undefined ? result > 0 : result >= threshold, score: result };
  }
  if (result && typeof result === "object" && typeof (result.pass ?? result.pass_) === "boolean") {
    const passed = result.pass ?? result.pass_;
    const score = typeof result.score === "number" ? result.score : passed ? 1 : 0;
    return { passed: passed && !(score < threshold), score, reason: result.reason };
  }
  throw new Error(`the assertion returned ${JSON.stringify(result)}; return a boolean, a number or {pass, score}`);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
