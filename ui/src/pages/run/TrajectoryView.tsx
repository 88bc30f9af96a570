import { useMemo, useState } from "react";
import type { Message, ToolCall, Trajectory } from "../../api/types.ts";
import { Badge } from "../../components/Badge.tsx";
import { Button } from "../../components/Button.tsx";
import { SafeText, TextBlock } from "../../components/SafeText.tsx";
import { formatCount, pluralize } from "../../lib/format.ts";

const PAGE_SIZE = 50;
const UNKNOWN = "Unknown: the agent returned only a text, without messages or tool calls.";

/** The messages and tool calls of a response, turn by turn. */
export function TrajectoryView({ trajectory }: { trajectory: Trajectory | null | undefined }) {
  const [query, setSought] = useState("");
  const [shown, setShown] = useState(PAGE_SIZE);
  const messages = useMemo(
    () => (trajectory?.turns ?? []).flatMap((turn, index) => turn.map((message) => ({ turn: index + 1, message }))),
    [trajectory],
  );
  if (messages.length === 0)
    return <p className="text-sm text-muted">{trajectory ? "The agent returned no messages." : UNKNOWN}</p>;
  const matching =
    query === "" ? messages : messages.filter(({ message }) => messageMatches(message, query.toLowerCase()));
  return (
    <div className="flex flex-col gap-2">
      <div className="flex flex-wrap items-center gap-2">
        <input
          className="field max-w-64"
          aria-label="Search the trajectory"
          placeholder="Search"
          value={query}
          onChange={(event) => setSought(event.target.value)}
        />
        <span className="text-sm text-muted">{pluralize(matching.length, "message")}</span>
      </div>
      {trajectory?.tools_known === false && (
        <p className="text-sm text-muted">Tool calls are unknown: the agent did not report them.</p>
      )}
      <ol className="flex flex-col gap-2">
        {matching.slice(0, shown).map(({ turn, message }, index) => (
          // oxlint-disable-next-line react/no-array-index-key -- a trajectory never changes
          <li key={index} className="card p-2">
            <p className="flex items-center gap-2 text-xs text-muted">
              <Badge tone={message.is_error ? "bad" : message.role === "assistant" ? "accent" : "none"}>
                {message.role}
              </Badge>
              {message.name && <SafeText text={message.name} />}
              <span>turn {formatCount(turn)}</span>
            </p>
            <MessageContent message={message} />
            {(message.tool_calls ?? []).map((call, number) => (
              // oxlint-disable-next-line react/no-array-index-key -- nor its calls
              <ToolCallView key={number} call={call} />
            ))}
          </li>
        ))}
      </ol>
      {matching.length > shown && (
        <Button onClick={() => setShown(shown + PAGE_SIZE)}>
          Show {formatCount(Math.min(PAGE_SIZE, matching.length - shown))} more
        </Button>
      )}
    </div>
  );
}

function MessageContent({ message }: { message: Message }) {
  const text = message.content ?? "";
  if (text === "") return null;
  if (message.role !== "system") return <TextBlock text={text} label={`Message of ${message.role}`} className="mt-1" />;
  return (
    <details className="mt-1 text-sm">
      <summary className="text-muted">System prompt, {pluralize(text.length, "character")}</summary>
      <TextBlock text={text} label="System prompt" />
    </details>
  );
}

function ToolCallView({ call }: { call: ToolCall }) {
  return (
    <div className="mt-1 text-sm">
      <p>
        Calls <SafeText text={call.name} className="font-mono font-semibold" />
      </p>
      <TextBlock text={call.arguments ?? "{}"} label={`Arguments of ${call.name}`} />
    </div>
  );
}

function messageMatches({ content, tool_calls, name }: Message, query: string): boolean {
  const texts = [content ?? "", name ?? "", ...(tool_calls ?? []).flatMap((call) => [call.name, call.arguments ?? ""])];
  return texts.some((text) => text.toLowerCase().includes(query));
}
