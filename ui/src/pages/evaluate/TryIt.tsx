import { useMutation } from "@tanstack/react-query";
import { useEffect, useRef, useState, type ReactNode } from "react";
import { api } from "../../api/calls.ts";
import type { Exchange, Tried } from "../../api/types.ts";
import { cost, count, counted, duration } from "../../lib/format.ts";
import { Badge, ResponseBadge } from "../../parts/Badge.tsx";
import { Button } from "../../parts/Button.tsx";
import { Field } from "../../parts/Field.tsx";
import { Failure } from "../../parts/Notice.tsx";
import { SafeText, TextBlock } from "../../parts/SafeText.tsx";
import { agentKey, tryBody, type Draft } from "./draft.ts";

interface Props {
  draft: Draft;
  blocked: boolean;
  onTried: (tried: { key: string; cost: number | null }) => void;
}

/** Asks the agent once, before anything is saved, and shows what went over the wire. */
export function TryIt({ draft, blocked, onTried }: Props) {
  const [input, setInput] = useState("Hello");
  const abort = useRef<AbortController>(null);
  const ask = useMutation({
    mutationFn: async (asked: string) => {
      abort.current?.abort();
      abort.current = new AbortController();
      const key = agentKey(draft);
      const told = await api.tryAgent(tryBody(draft, asked), abort.current.signal);
      return { key, told };
    },
    onSuccess: ({ key, told }) => onTried({ key, cost: told.usage?.cost ?? null }),
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
        {ask.error && <Failure error={ask.error} />}
        {ask.data && !ask.isPending && <Told told={ask.data.told} stale={ask.data.key !== agentKey(draft)} />}
      </div>
    </section>
  );
}

function Told({ told, stale }: { told: Tried; stale: boolean }) {
  const [last] = told.exchanges.slice(-1);
  const before = told.exchanges.slice(0, -1);
  return (
    <div className="flex flex-col gap-3">
      {stale && <p className="text-sm text-warn">The form has changed since; try it again.</p>}
      <Read told={told} />
      {last && <OnTheWire exchange={last} />}
      {before.length > 0 && (
        <details>
          <summary className="text-sm text-muted">
            {counted(before.length + told.exchanges_omitted, "call")} before that
            {told.exchanges_omitted > 0 && `, ${count(told.exchanges_omitted)} of them not shown`}
          </summary>
          <div className="mt-2 flex flex-col gap-4">
            {before.map((exchange, index) => (
              // oxlint-disable-next-line react/no-array-index-key -- one answer's calls never move
              <OnTheWire key={index} exchange={exchange} />
            ))}
          </div>
        </details>
      )}
    </div>
  );
}

/** What the mapping made of the answer, or why there is none. */
function Read({ told }: { told: Tried }) {
  return (
    <div>
      <Head title="Read from the answer">
        <ResponseBadge status={told.response_status} />
        <span className="num font-normal text-muted">
          {[duration(told.response_latency_ms), ...used(told)].join(" · ")}
        </span>
      </Head>
      {told.error_message !== null && (
        <p role="alert" className="rounded-md border border-fail bg-fail-soft p-3 text-sm">
          <span className="font-semibold text-fail">{told.error_type}: </span>
          <SafeText text={told.error_message} />
        </p>
      )}
      {told.agent_response !== null && <TextBlock text={told.agent_response} label="Read from the answer" />}
      {told.agent_response_truncated && <Cut />}
      {told.tool_calls === null && told.response_status === "success" && (
        <p className="text-xs text-muted">Tool calls: unknown. Graders of tool use need them mapped in the answer.</p>
      )}
      {told.tool_calls?.length === 0 && <p className="text-xs text-muted">Tool calls: none.</p>}
      {told.tool_calls !== null && told.tool_calls.length > 0 && (
        <ul aria-label="Tool calls" className="mt-2 flex flex-col gap-1 font-mono text-[13px]">
          {told.tool_calls.map((call, index) => (
            // oxlint-disable-next-line react/no-array-index-key -- one answer's calls never move
            <li key={index}>
              <SafeText text={`${call.name}(${call.arguments})`} />
            </li>
          ))}
        </ul>
      )}
      {told.tool_calls_omitted > 0 && (
        <p className="text-xs text-muted">{counted(told.tool_calls_omitted, "more tool call")} not shown.</p>
      )}
    </div>
  );
}

function used({ usage }: Tried): string[] {
  if (!usage) return [];
  const tokens = [
    usage.input_tokens == null ? null : `${count(usage.input_tokens)} tokens in`,
    usage.output_tokens == null ? null : `${count(usage.output_tokens)} tokens out`,
    usage.cost == null ? null : cost(usage.cost),
  ];
  return tokens.filter((part) => part !== null);
}

function OnTheWire({ exchange: { request, answer } }: { exchange: Exchange }) {
  return (
    <div className="grid gap-3 md:grid-cols-2">
      <div className="min-w-0">
        <Head title="Sent to the agent" />
        <TextBlock
          label="Sent to the agent"
          text={written([`${request.method} ${request.url}`], request.headers, request.body)}
        />
        {request.body_truncated && <Cut />}
      </div>
      <div className="min-w-0">
        <Head title="Its raw answer">{answer && <Badge tone={toneOf(answer.status)}>{answer.status}</Badge>}</Head>
        {answer === null ? (
          <p className="rounded-md border border-line p-3 text-sm text-muted">No answer came.</p>
        ) : (
          <>
            <TextBlock label="Its raw answer" text={written([], answer.headers, answer.body)} />
            {answer.body === null && <p className="mt-1 text-xs text-muted">Its body was not read to the end.</p>}
            {answer.body_truncated && <Cut />}
          </>
        )}
      </div>
    </div>
  );
}

function toneOf(status: number): "good" | "open" | "none" {
  return status < 300 ? "good" : status < 400 ? "none" : "open";
}

/** Headers and body as they went over the wire. Nothing is spread out: long numbers and keys that come twice would change. */
function written(first: string[], headers: Readonly<Record<string, string>>, body: string | null): string {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  return [...first, ...lines, ...(body === null ? [] : ["", body])].join("\n");
}

function Head({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <h3 className="mb-1 flex flex-wrap items-center gap-2 text-sm font-medium">
      {title} {children}
    </h3>
  );
}

function Cut() {
  return <p className="mt-1 text-xs text-muted">Only the first 100,000 bytes are shown.</p>;
}
