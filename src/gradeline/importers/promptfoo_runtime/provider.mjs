// Calls a provider of promptfoo, a class or function in a file of its own: prompt and variables are arguments.

const settings = "SETTINGS";
const user = await import(new URL(settings.path, import.meta.url).href);
const inner = user.default && typeof user.default === "object" ? user.default : {};
const found = settings.function ? (user[settings.function] ?? inner[settings.function]) : (user.default ?? user);
const provider = found?.default ?? found;
const [prompt, vars] = process.argv.slice(2);
const context = { vars: JSON.parse(vars || "{}"), prompt: { raw: prompt, label: prompt } };

async function call() {
  if (typeof provider !== "function") {
    return provider.callApi(prompt, context, {});
  }
  if (provider.prototype?.callApi) {
    return new provider(settings.options).callApi(prompt, context, {});
  }
  return provider(prompt, context, settings.options);
}

const result = await call();
const whole = result !== null && typeof result === "object" && ("output" in result || "error" in result);
const response = whole ? result : { output: result };
const text = typeof response.output === "string" ? response.output : JSON.stringify(response.output ?? null);
const tokens = response.tokenUsage ?? {};
const usage = { input_tokens: tokens.prompt, output_tokens: tokens.completion, cost: response.cost };
const answer = response.error ? { error: String(response.error) } : { output: text, usage };
process.stdout.write(`${JSON.stringify(answer)}\n`, () => process.exit(0));
