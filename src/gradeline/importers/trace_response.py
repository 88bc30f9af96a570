"""From the spans of a trace to a response: its text, trajectory, usage and latency."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite

from gradeline.errors import Fault
from gradeline.importers.json_values import decoded, json_text, messages_of, output_text
from gradeline.importers.trace_spool import Span
from gradeline.model import Document, ErrorInfo, Message, Response, ToolCall, Trajectory, Usage, clean_text
from gradeline.model.response import usage_of_calls

_MAX_ERROR = 2_000
_DOCUMENT_KEYS = ("page_content", "content", "text", "document", "pageContent")


def root_of(spans: Sequence[Span]) -> Span:
    """The span whose input and output are those of the agent.

    It is the trace itself or the outermost agent if it has an input or an output, else the first span without a parent.
    """
    known = {span.id for span in spans}
    outer = sorted((span for span in spans if span.parent not in known), key=_order)
    agents = sorted((span for span in spans if span.kind == "agent"), key=_order)
    candidates = (*(span for span in outer if span.kind == "trace"), *agents[:1], *outer, *spans)
    useful = (span for span in candidates if span.input is not None or span.output is not None or span.error)
    return next(useful, candidates[0])


def root_ids(spans: Sequence[Span]) -> frozenset[str]:
    """The ids under which the response as a whole is scored.

    They are those of the root, of the trace, and of the only step around all others.
    """
    known = {span.id for span in spans}
    outer = [span.id for span in spans if span.parent not in known and span.kind != "trace"]
    traces = (span.id for span in spans if span.kind == "trace")
    return frozenset({root_of(spans).id, *traces, *(outer if len(outer) == 1 else ())})


def response_of(spans: Sequence[Span]) -> Response:
    """The response that a trace has recorded; an error if the agent failed or the trace has no output."""
    root = root_of(spans)
    steps = sorted((span for span in spans if span is not root and span.kind != "trace"), key=_order)
    usage = _usage(root, spans)
    latency = _milliseconds(root) or _milliseconds_of(spans)
    text = _answer(root, steps)
    trajectory = _trajectory(root, steps)
    if root.error is not None or text is None:
        message = clean_text((root.error or "the trace has no output")[:_MAX_ERROR]).text
        error = ErrorInfo("agent_error" if root.error else "bad_response", message, Fault.AGENT)
        return Response("error", text, trajectory, usage, latency, error)
    documents = _documents(steps)
    return Response("success", text, trajectory, usage, latency, documents=documents)


def span_times(spans: Iterable[Span]) -> Iterator[float]:
    """The known times of spans, in seconds since the epoch."""
    for span in spans:
        yield from (time for time in (span.start, span.end) if time is not None)


def _order(span: Span) -> float:
    return float("inf") if span.start is None else span.start


def _answer(root: Span, steps: Sequence[Span]) -> str | None:
    if root.output is not None:
        return output_text(root.output).text
    written = [step.output for step in steps if step.kind == "llm" and step.output is not None]
    return output_text(written[-1]).text if written else None


def _trajectory(root: Span, steps: Sequence[Span]) -> Trajectory | None:
    """The messages and tool calls; None if neither the steps nor the output have any."""
    recorded = [step for step in (root, *steps) if step.kind in ("llm", "tool")]
    if not recorded:
        return _reported(root)
    executed = [step for step in recorded if step.kind == "tool"]
    ids = {_call_id(step) for step in executed}
    names = {step.name for step in executed}
    messages: list[Message] = []
    for step in recorded:
        messages += _tool_messages(step) if step.kind == "tool" else _model_messages(step, ids, names)
    return Trajectory((tuple(messages),))


def _reported(root: Span) -> Trajectory | None:
    """The messages in the output that follow the last one of the user, if they use tools."""
    messages = messages_of(root.output)
    asked = max((number for number, message in enumerate(messages) if message.role == "user"), default=-1)
    own = messages[asked + 1 :]
    uses_tools = any(message.tool_calls or message.role == "tool" for message in own)
    return Trajectory((own,)) if uses_tools else None


def _tool_messages(step: Span) -> list[Message]:
    """A tool that was executed: the call, and its result."""
    name, ident = clean_text(step.name or "tool").text, clean_text(_call_id(step)).text
    result = step.error if step.error is not None else _tool_result(step.output)
    return [
        Message("assistant", tool_calls=(ToolCall(name, _arguments(step.input), ident),)),
        Message("tool", clean_text(result).text, tool_call_id=ident, name=name, is_error=step.error is not None),
    ]


def _tool_result(output: object) -> str:
    """The content of a tool's message, or the whole output as JSON."""
    output = decoded(output)
    written = [message.content for message in messages_of(output) if message.role == "tool"]
    if len(written) == 1:
        return written[0]
    if isinstance(output, Mapping) and set(output) == {"output"}:
        output = output["output"]
    return "" if output is None else json_text(output)


def _model_messages(step: Span, ids: set[str], names: set[str]) -> list[Message]:
    """The messages of a model. Tool calls that are also a step of the trace are left to that step."""
    found = messages_of(step.output) or (Message("assistant", output_text(step.output).text),)
    written = []
    for message in found:
        if message.role not in ("assistant", "reasoning"):
            continue
        calls = tuple(call for call in message.tool_calls if call.id not in ids and call.name not in names)
        if message.content or calls:
            written.append(Message(message.role, message.content, calls))
    return written


def _call_id(step: Span) -> str:
    """The id of the call in the model's message, which LangChain puts into the tool's output; else the span's."""
    output = decoded(step.output)
    for part in (output, output.get("output") if isinstance(output, Mapping) else None):
        ident = part.get("tool_call_id") if isinstance(part, Mapping) else None
        if isinstance(ident, str) and ident:
            return ident
    return step.id


def _arguments(value: object) -> str:
    value = decoded(value)
    if isinstance(value, Mapping) and set(value) == {"input"}:
        inner = decoded(value["input"])
        value = inner if isinstance(inner, Mapping) else value
    if value is None:
        return "{}"
    return json_text(value if isinstance(value, Mapping) else {"input": value})


def _usage(root: Span, spans: Sequence[Span]) -> Usage | None:
    """The sum over the calls of models, because the spans around them repeat it; else that of the root."""
    calls = [span for span in spans if span.kind == "llm"]
    total = usage_of_calls(span.usage for span in calls) if calls else root.usage
    known = next((span.usage.cost for span in (root, *spans) if span.kind == "trace" and span.usage), None)
    if known is not None and (total is None or total.cost is None):
        total = total or Usage()
        return Usage(total.input_tokens, total.output_tokens, total.cached_tokens, known)
    return total


def _milliseconds(span: Span) -> float | None:
    if span.start is None or span.end is None or span.end < span.start:
        return None
    return round((span.end - span.start) * 1000, 3)


def _milliseconds_of(spans: Sequence[Span]) -> float | None:
    times = list(span_times(spans))
    return round((max(times) - min(times)) * 1000, 3) if times and max(times) > min(times) else None


def _documents(steps: Sequence[Span]) -> tuple[Document, ...] | None:
    """The documents that retrievers returned; None if the trace has no retriever."""
    retrievers = [step for step in steps if step.kind == "retriever"]
    if not retrievers:
        return None
    return tuple(document for step in retrievers for document in _documents_in(decoded(step.output)))


def _documents_in(value: object) -> Iterator[Document]:
    if isinstance(value, Mapping):
        value = next((item for item in value.values() if isinstance(item, list)), [])
    for item in value if isinstance(value, list) else ():
        if isinstance(item, str):
            yield Document(clean_text(item).text)
        elif isinstance(item, Mapping):
            text = next((item[key] for key in _DOCUMENT_KEYS if isinstance(item.get(key), str)), None)
            inner, ident, score = item.get("metadata"), item.get("id"), item.get("score")
            if ident is None and isinstance(inner, Mapping):
                ident = inner.get("id")
            yield Document(
                clean_text(json_text(item) if text is None else text).text,
                None if ident is None else clean_text(str(ident)).text,
                float(score) if isinstance(score, int | float) and isfinite(score) else None,
            )
