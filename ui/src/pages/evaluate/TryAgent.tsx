import { useMutation } from "@tanstack/react-query";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { api } from "../../api/client.ts";
import type { Exchange, TryResult } from "../../api/types.ts";
import { Badge, ResponseBadge } from "../../components/Badge.tsx";
import { Button } from "../../components/Button.tsx";
import { Field } from "../../components/Field.tsx";
import { ErrorNotice } from "../../components/Notice.tsx";
import { SafeText, TextBlock } from "../../components/SafeText.tsx";
import { formatCost, formatCount, formatDuration, pluralize } from "../../lib/format.ts";
import { agentKey, type Draft, tryRequest } from "./draft.ts";

interface Props {
  draft: Draft;
  blocked: boolean;
  onTestCall: (testCall: { key: string; cost: number | null }) => void;
}

/** Makes a single test call to the agent and shows the request and the response. */
export function TryAgent({ draft, blocked, onTestCall }: Props) {
  const [input, setInput] = useState("Hello");
  const abort = useRef<AbortController>(null);
  const testCall = useMutation({
    mutationFn: async (text: string) => {
      abort.current?.abort();
      abort.current = new AbortController();
      const key = agentKey(draft);
      const result = await api.tryAgent(tryRequest(draft, text), abort.current.signal);
      return { key, result };
    },
    onSuccess: ({ key, result }) => onTestCall({ key, cost: result.usage?.cost ?? null }),
  });
  useEffect(() => () => abort.current?.abort(), []);
  const ready = !blocked && !testCall.isPending && input.trim() !== "";
  return (
    <section aria-label="Test the agent" className="rounded-md border border-line p-3">
      <div className="flex flex-wrap items-end gap-2">
        <div className="min-w-40 flex-1">
          <Field label="Test input">
            <input
              className="field"
              value={input}
              maxLength={10_000}
              onChange={(event) => setInput(event.target.value)}
              onKeyDown={(event) => {
                if (event.key !== "Enter") return;
                // Enter makes the test call; it does not start the run
                event.preventDefault();
                if (ready) testCall.mutate(input);
              }}
            />
          </Field>
        </div>
        <Button disabled={!ready} onClick={() => testCall.mutate(input)}>
          {testCall.isPending ? "Calling…" : "Send test call"}
        </Button>
      </div>
      <p className="mt-1 text-xs text-muted">Calls the agent once. Nothing is stored.</p>
      <div aria-live="polite" className="mt-2">
        {testCall.error && <ErrorNotice error={testCall.error} />}
        {testCall.data && !testCall.isPending && (
          <TryResultView result={testCall.data.result} stale={testCall.data.key !== agentKey(draft)} />
        )}
      </div>
    </section>
  );
}

function TryResultView({ result, stale }: { result: TryResult; stale: boolean }) {
  const [last] = result.exchanges.slice(-1);
  const before = result.exchanges.slice(0, -1);
  return (
    <div className="flex flex-col gap-3">
      {stale && <p className="text-sm text-warn">The form has changed since this call; send it again.</p>}
      <ParsedResponse result={result} />
      {last && <ExchangeView exchange={last} />}
      {before.length > 0 && (
        <details>
          <summary className="text-sm text-muted">
            {pluralize(before.length + result.exchanges_omitted, "earlier call")}
            {result.exchanges_omitted > 0 && `, ${formatCount(result.exchanges_omitted)} of them not shown`}
          </summary>
          <div className="mt-2 flex flex-col gap-4">
            {before.map((exchange, index) => (
              // oxlint-disable-next-line react/no-array-index-key -- the order never changes
              <ExchangeView key={index} exchange={exchange} />
            ))}
          </div>
        </details>
      )}
    </div>
  );
}

/** What was parsed from the response, or the error. */
function ParsedResponse({ result }: { result: TryResult }) {
  return (
    <div>
      <PartHeading title="Parsed response">
        <ResponseBadge status={result.response_status} />
        <span className="num font-normal text-muted">
          {[formatDuration(result.response_latency_ms), ...usageParts(result)].join(" · ")}
        </span>
      </PartHeading>
      {result.error_message !== null && (
        <p role="alert" className="rounded-md border border-fail bg-fail-soft p-3 text-sm">
          <span className="font-semibold text-fail">{result.error_type}: </span>
          <SafeText text={result.error_message} />
        </p>
      )}
      {result.agent_response !== null && <TextBlock text={result.agent_response} label="Parsed response" />}
      {result.agent_response_truncated && <TruncationNote />}
      {result.tool_calls === null && result.response_status === "success" && (
        <p className="text-xs text-muted">
          Tool calls: unknown. Graders of tool calls require the path of the tool calls.
        </p>
      )}
      {result.tool_calls?.length === 0 && <p className="text-xs text-muted">Tool calls: none.</p>}
      {result.tool_calls !== null && result.tool_calls.length > 0 && (
        <ul aria-label="Tool calls" className="mt-2 flex flex-col gap-1 font-mono text-[13px]">
          {result.tool_calls.map((call, index) => (
            // oxlint-disable-next-line react/no-array-index-key -- the order never changes
            <li key={index}>
              <SafeText text={`${call.name}(${call.arguments})`} />
            </li>
          ))}
        </ul>
      )}
      {result.tool_calls_omitted > 0 && (
        <p className="text-xs text-muted">{pluralize(result.tool_calls_omitted, "more tool call")} not shown.</p>
      )}
    </div>
  );
}

function usageParts({ usage }: TryResult): string[] {
  if (!usage) return [];
  const tokens = [
    usage.input_tokens == null ? null : `${formatCount(usage.input_tokens)} tokens in`,
    usage.output_tokens == null ? null : `${formatCount(usage.output_tokens)} tokens out`,
    usage.cost == null ? null : formatCost(usage.cost),
  ];
  return tokens.filter((part) => part !== null);
}

function ExchangeView({ exchange: { request, answer } }: { exchange: Exchange }) {
  return (
    <div className="grid gap-3 md:grid-cols-2">
      <div className="min-w-0">
        <PartHeading title="Request" />
        <TextBlock
          label="Request"
          text={httpText([`${request.method} ${request.url}`], request.headers, request.body)}
        />
        {request.body_truncated && <TruncationNote />}
      </div>
      <div className="min-w-0">
        <PartHeading title="Raw response">
          {answer && <Badge tone={statusTone(answer.status)}>{answer.status}</Badge>}
        </PartHeading>
        {answer === null ? (
          <p className="rounded-md border border-line p-3 text-sm text-muted">No response.</p>
        ) : (
          <>
            <TextBlock label="Raw response" text={httpText([], answer.headers, answer.body)} />
            {answer.body === null && <p className="mt-1 text-xs text-muted">The body was not read to its end.</p>}
            {answer.body_truncated && <TruncationNote />}
          </>
        )}
      </div>
    </div>
  );
}

function statusTone(status: number): "good" | "open" | "none" {
  return status < 300 ? "good" : status < 400 ? "none" : "open";
}

/** Headers and body unchanged: reformatting JSON would alter long numbers and duplicate keys. */
function httpText(first: string[], headers: Readonly<Record<string, string>>, body: string | null): string {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  return [...first, ...lines, ...(body === null ? [] : ["", body])].join("\n");
}

function PartHeading({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <h3 className="mb-1 flex flex-wrap items-center gap-2 text-sm font-medium">
      {title} {children}
    </h3>
  );
}

function TruncationNote() {
  return <p className="mt-1 text-xs text-muted">Only the first 100,000 bytes are shown.</p>;
}
