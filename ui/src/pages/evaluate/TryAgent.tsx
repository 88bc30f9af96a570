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
  onTried: (tried: { key: string; cost: number | null }) => void;
}

/** Asks the agent once, before anything is saved, and shows what went over the wire. */
export function TryAgent({ draft, blocked, onTried }: Props) {
  const [input, setInput] = useState("Hello");
  const abort = useRef<AbortController>(null);
  const ask = useMutation({
    mutationFn: async (asked: string) => {
      abort.current?.abort();
      abort.current = new AbortController();
      const key = agentKey(draft);
      const result = await api.tryAgent(tryRequest(draft, asked), abort.current.signal);
      return { key, result };
    },
    onSuccess: ({ key, result }) => onTried({ key, cost: result.usage?.cost ?? null }),
  });
  useEffect(() => () => abort.current?.abort(), []);
  const ready = !blocked && !ask.isPending && input.trim() !== "";
  return (
    <section aria-label="Try the agent" className="rounded-md border border-line p-3">
      <div className="flex flex-wrap items-end gap-2">
        <div className="min-w-40 flex-1">
          <Field label="Try it with">
            <input
              className="field"
              value={input}
              maxLength={10_000}
              onChange={(event) => setInput(event.target.value)}
              onKeyDown={(event) => {
                if (event.key !== "Enter") return;
                // Enter here asks the agent; it does not start the run
                event.preventDefault();
                if (ready) ask.mutate(input);
              }}
            />
          </Field>
        </div>
        <Button disabled={!ready} onClick={() => ask.mutate(input)}>
          {ask.isPending ? "Asking…" : "Try it"}
        </Button>
      </div>
      <p className="mt-1 text-xs text-muted">The agent is asked once. Nothing is stored.</p>
      <div aria-live="polite" className="mt-2">
        {ask.error && <ErrorNotice error={ask.error} />}
        {ask.data && !ask.isPending && (
          <TryResultView result={ask.data.result} stale={ask.data.key !== agentKey(draft)} />
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
      {stale && <p className="text-sm text-warn">The form has changed since; try it again.</p>}
      <ParsedResponse result={result} />
      {last && <ExchangeView exchange={last} />}
      {before.length > 0 && (
        <details>
          <summary className="text-sm text-muted">
            {pluralize(before.length + result.exchanges_omitted, "call")} before that
            {result.exchanges_omitted > 0 && `, ${formatCount(result.exchanges_omitted)} of them not shown`}
          </summary>
          <div className="mt-2 flex flex-col gap-4">
            {before.map((exchange, index) => (
              // oxlint-disable-next-line react/no-array-index-key -- one answer's calls never move
              <ExchangeView key={index} exchange={exchange} />
            ))}
          </div>
        </details>
      )}
    </div>
  );
}

/** What the mapping made of the answer, or why there is none. */
function ParsedResponse({ result }: { result: TryResult }) {
  return (
    <div>
      <PartHeading title="Read from the answer">
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
      {result.agent_response !== null && <TextBlock text={result.agent_response} label="Read from the answer" />}
      {result.agent_response_truncated && <TruncationNote />}
      {result.tool_calls === null && result.response_status === "success" && (
        <p className="text-xs text-muted">Tool calls: unknown. Graders of tool use need them mapped in the answer.</p>
      )}
      {result.tool_calls?.length === 0 && <p className="text-xs text-muted">Tool calls: none.</p>}
      {result.tool_calls !== null && result.tool_calls.length > 0 && (
        <ul aria-label="Tool calls" className="mt-2 flex flex-col gap-1 font-mono text-[13px]">
          {result.tool_calls.map((call, index) => (
            // oxlint-disable-next-line react/no-array-index-key -- one answer's calls never move
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
        <PartHeading title="Sent to the agent" />
        <TextBlock
          label="Sent to the agent"
          text={httpText([`${request.method} ${request.url}`], request.headers, request.body)}
        />
        {request.body_truncated && <TruncationNote />}
      </div>
      <div className="min-w-0">
        <PartHeading title="Its raw answer">
          {answer && <Badge tone={statusTone(answer.status)}>{answer.status}</Badge>}
        </PartHeading>
        {answer === null ? (
          <p className="rounded-md border border-line p-3 text-sm text-muted">No answer came.</p>
        ) : (
          <>
            <TextBlock label="Its raw answer" text={httpText([], answer.headers, answer.body)} />
            {answer.body === null && <p className="mt-1 text-xs text-muted">Its body was not read to the end.</p>}
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

/** Headers and body as they went over the wire. Nothing is spread out: long numbers and keys that come twice would change. */
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
