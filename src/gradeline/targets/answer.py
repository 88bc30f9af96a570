"""Read an agent's answer: its text, tool calls, messages and usage."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

from gradeline.errors import AgentError, Problem
from gradeline.model import Config, Document, Message, Response, Trajectory, clean_text, described
from gradeline.model.documents import joined_documents, read_documents
from gradeline.model.response import Usage, usage_of_calls
from gradeline.model.text import quote
from gradeline.model.trajectory import ToolCall, Turn, with_answer
from gradeline.parsing.jmespath import BadPathError, JmesPath
from gradeline.parsing.json_text import levels, strict_decoder
from gradeline.targets.answer_values import (
    bad_response,
    call_entries,
    content_text,
    json_string,
    read_messages,
    search,
    tool_calls,
    value_at,
)

TEXT_KEYS = ("response", "output", "answer", "text", "content", "message")
"""Default keys of the text, in order of precedence, before an OpenAI-style choice."""

_STREAMS = {"text/event-stream": "sse", "application/x-ndjson": "ndjson", "application/jsonl": "ndjson"}
_LARGEST = 2**53
_MAX_DEPTH = 200
_DECODER = strict_decoder()


class ResponseMap(Config, frozen=True):
    """JMESPaths of the parts of an answer's JSON."""

    output: Annotated[
        str | None, described(f"Path of the text (default {', '.join(TEXT_KEYS)} or an OpenAI-style choice).")
    ] = None
    tool_calls: Annotated[
        str | None,
        described(
            "Path of the tool calls: a list of {name, arguments, id} or of OpenAI's {function: …}. Without a list tool "
            "use is unknown; write tool_calls || `[]` for an agent that omits the field when it calls none."
        ),
    ] = None
    usage: Annotated[
        str | None, described("Path of the usage: {input_tokens, output_tokens, cached_tokens, cost}.")
    ] = None
    error: Annotated[str | None, described("Path of an error; any value that is not empty counts.")] = None
    stop_reason: Annotated[
        str | None,
        described(
            "Path of the reason why the response ended, such as stop or length (default: as in an OpenAI-style choice)."
        ),
    ] = None
    trajectory: Annotated[
        str | None, described("Path of all messages with tool calls and results: chat messages or Responses items.")
    ] = None
    context: Annotated[
        str | None, described("Path of the texts that the agent retrieved, such as docs[].text: a list, or one text.")
    ] = None
    documents: Annotated[
        str | None,
        described(
            "Path of the documents that the agent retrieved: a list of {text, id, score}. Without a list they are "
            "unknown; write docs || `[]` for an agent that omits the field when it finds nothing."
        ),
    ] = None

    def faults(self) -> Iterator[Problem]:
        for name in self.__struct_fields__:
            yield from path_faults(getattr(self, name), name)
        if self.context is not None and self.documents is not None:
            yield Problem("context", "conflicts with documents, which has texts and ids; keep one of them")


def path_faults(path: str | None, where: str) -> Iterator[Problem]:
    """Problems of a JMESPath."""
    try:
        compiled(path)
    except BadPathError as error:
        yield Problem(where, str(error))


def compiled(path: str | None) -> JmesPath | None:
    return None if path is None else JmesPath(path)


class NoJsonError(AgentError):
    """The answer is not JSON."""

    def __init__(self, reason: str) -> None:
        super().__init__("bad_response", f"no JSON: {reason}")


def is_truthy(value: object) -> bool:
    """Truth as JMESPath defines it: null, false and empty values are false, 0 is true."""
    return value is not None and value is not False and value not in ("", [], {})


class Decoded(NamedTuple):
    """A body as text; ``cleaned``: invalid bytes were replaced."""

    text: str
    cleaned: bool


class ContentType(NamedTuple):
    """Media type and charset of a ``Content-Type``, in lower case."""

    kind: str
    charset: str


@lru_cache(maxsize=64)
def content_type(header: str) -> ContentType:
    """Parse a ``Content-Type``; cached, because the answers of a run have few different ones."""
    kind, _, _ = header.partition(";")
    charset = header.lower().partition("charset=")[2].partition(";")[0].strip(" \"'")
    return ContentType(kind.strip().lower(), charset)


def decode(body: bytes, header: str = "") -> Decoded:
    """Decode UTF-8, or Latin-1 and Windows-1252 if the content type names them; a byte order mark is removed."""
    if content_type(header).charset in ("iso-8859-1", "latin-1", "latin1", "windows-1252", "cp1252"):
        # browsers read both as cp1252; undefined bytes are replaced
        text = body.decode("cp1252", errors="replace")
        return Decoded(text, "\ufffd" in text)
    body = body.removeprefix(BOM_UTF8)
    try:
        return Decoded(body.decode(), False)
    except UnicodeDecodeError:
        return Decoded(body.decode(errors="replace"), True)


def json_text(decoded: Decoded) -> str:
    """The text of a body that must be JSON; raises if bytes were replaced, because they could have been anything."""
    if decoded.cleaned:
        raise NoJsonError("the body is not valid UTF-8, or not of the charset that it names")
    return decoded.text


def parse(text: str) -> Any:
    """Parse a text as JSON; raises an agent error.

    Stricter than Python (no NaN, no overflow, no duplicate keys) and more lenient than msgspec: escapes of lone
    surrogates are cleaned later, with a flag, because real agents send them.
    """
    try:
        data = _DECODER.decode(text)
    except RecursionError:
        raise bad_response("its JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise NoJsonError(f"{error.msg} at character {error.pos}") from None
    except ValueError as error:
        raise NoJsonError(str(error)[:200]) from None
    if text.count("{") + text.count("[") > _MAX_DEPTH and len(levels(data, _MAX_DEPTH + 1)) > _MAX_DEPTH:
        raise bad_response("its JSON is nested too deeply")
    return data


class ParsedAnswer(NamedTuple):
    """The parsed parts of one answer. ``data`` is its JSON (for a stream the list of events), for further reading."""

    text: str
    calls: tuple[ToolCall, ...] | None = None
    """None if the answer does not report tool calls; empty if it reports that there were none."""
    usage: Usage | None = None
    messages: tuple[Message, ...] | None = None
    data: object = None
    cleaned: bool = False
    documents: tuple[Document, ...] | None = None
    stop_reason: str | None = None

    @property
    def reports_tools(self) -> bool:
        return self.calls is not None or self.messages is not None

    @property
    def turn(self) -> Turn:
        calls, text = self.calls or (), clean_text(self.text).text
        if not self.messages:
            return (Message("assistant", text, calls),)
        steps = with_answer(self.messages, text)
        if not calls or any(message.tool_calls for message in steps):
            return steps
        # reported separately from the messages: the calls came before the answer, which is the last message
        return (*steps[:-1], Message("assistant", tool_calls=calls), steps[-1])


def response_of(found: Sequence[ParsedAnswer], latency_ms: float | None = None) -> Response:
    """One response from the answers to all turns: the text is that of the last."""
    last = found[-1]
    if len(found) > 1:
        tools_known = all(one.reports_tools for one in found)
        trajectory = Trajectory(tuple(one.turn for one in found), tools_known=tools_known)
    elif last.reports_tools:
        trajectory = Trajectory(tuple(split_turns(last.turn)))
    else:
        trajectory = None
    return Response(
        text=last.text,
        trajectory=trajectory,
        usage=usage_of_calls(one.usage for one in found),
        latency_ms=latency_ms,
        cleaned=any(one.cleaned for one in found),
        documents=joined_documents([one.documents for one in found]),
        stop_reason=last.stop_reason,
    )


def split_turns(messages: Sequence[Message]) -> Iterator[Turn]:
    """A user message starts a new turn, unless the current turn has no reply yet."""
    turn: list[Message] = []
    for message in messages:
        if message.role == "user" and any(one.role not in ("user", "system") for one in turn):
            yield tuple(turn)
            turn = []
        turn.append(message)
    if turn:
        yield tuple(turn)


@dataclass(slots=True)
class _StreamTotals:
    """The parts of a stream's answer collected so far."""

    texts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] | None = None
    by_index: dict[int, dict[str, Any]] = field(default_factory=dict)
    usage: Usage | None = None
    messages: tuple[Message, ...] | None = None
    documents: tuple[Document, ...] | None = None
    stop_reason: str | None = None

    def add_calls(self, entries: list[dict[str, Any]] | None) -> None:
        """Further fragments of a call, identified by its ``index``, extend its arguments."""
        if entries is None:
            return
        if self.calls is None:
            self.calls = []
        for entry in entries:
            index = entry["index"]
            call = self.by_index.get(index) if isinstance(index, int) else None
            if call is None:
                self.calls.append(entry)
                if isinstance(index, int):
                    self.by_index[index] = entry
            else:
                call["arguments"].extend(entry["arguments"])
                call["name"] = call["name"] or entry["name"]
                call["id"] = call["id"] or entry["id"]


class AnswerReader:
    """Reads answers according to a `ResponseMap`."""

    def __init__(self, paths: ResponseMap) -> None:
        self.explicit = paths.output is not None
        self._output = compiled(paths.output)
        self._calls = compiled(paths.tool_calls)
        self._usage = compiled(paths.usage)
        self._error = compiled(paths.error)
        self._trajectory = compiled(paths.trajectory)
        self._documents = compiled(paths.documents or paths.context)
        self._stop_reason = compiled(paths.stop_reason)
        self._paths = paths
        self._json_only = paths != ResponseMap()

    def read(self, data: object) -> ParsedAnswer:
        """Read the JSON of a whole answer; an agent error if it has neither text nor tool calls."""
        self.check_error(data)
        choice = None if self.explicit else _choice(data)
        text = self._text(data)
        calls = tool_calls(self._call_entries(data, choice))
        if text is None and not calls:
            raise bad_response(self._nothing_found(data))
        usage = _usage(search(self._usage, data) if self._usage or choice is None else value_at(data, "usage"))
        messages = read_messages(search(self._trajectory, data))
        documents = read_documents(search(self._documents, data))
        stopped = self._stopped(data, choice)
        return ParsedAnswer(text or "", calls, usage, messages, data, documents=documents, stop_reason=stopped)

    def read_plain(self, decoded: Decoded, header: str = "") -> ParsedAnswer:
        """Read a body that may be plain text.

        It is parsed as JSON if its content type is JSON, if a path is configured, or if it has no content type and
        starts like an object. Otherwise the text is the answer, unless it is an HTML page.
        """
        text = decoded.text
        if not text.strip():
            raise bad_response('the body is empty; an agent that has nothing to say answers {"response": ""}')
        kind = content_type(header).kind
        bare_object = kind == "" and text.lstrip().startswith("{")
        if self._json_only or bare_object or kind == "application/json" or kind.endswith("+json"):
            return self.read(parse(json_text(decoded)))
        if kind in _STREAMS:
            raise bad_response(f"a stream of {kind}; write stream: {_STREAMS[kind]}")
        if kind in ("text/html", "application/xhtml+xml") and _is_page(text):
            raise bad_response("an HTML page instead of a response")
        return ParsedAnswer(text, cleaned=decoded.cleaned)

    def read_stream(self, events: Iterable[str]) -> ParsedAnswer:
        """Read the events of a stream: their texts joined, their calls merged, the last usage reported."""
        totals = _StreamTotals()
        seen: list[object] = []
        for event in events:
            if not self.explicit and not event.lstrip().startswith(("{", "[", '"')):
                totals.texts.append(event)
                continue
            data = parse(event)
            seen.append(data)
            self.check_error(data)
            choice = None if self.explicit else _choice(data)
            text = self._text(data, streamed=True)
            if text is not None:
                totals.texts.append(text)
            totals.add_calls(self._call_entries(data, choice))
            reported = search(self._usage, data) if self._usage or choice is None else value_at(data, "usage")
            totals.usage = _usage(reported) or totals.usage
            messages = read_messages(search(self._trajectory, data))
            if messages is not None:
                totals.messages = messages or totals.messages or ()
            documents = read_documents(search(self._documents, data))
            if documents is not None:
                totals.documents = documents or totals.documents or ()
            totals.stop_reason = self._stopped(data, choice) or totals.stop_reason
        calls = tool_calls(totals.calls)
        if not totals.texts and not calls:
            raise bad_response(f"no event of the stream has {self._expected_text}")
        return ParsedAnswer(
            "".join(totals.texts),
            calls,
            totals.usage,
            totals.messages,
            seen,
            documents=totals.documents,
            stop_reason=totals.stop_reason,
        )

    def check_error(self, data: object) -> None:
        """Raise the error that the agent reported under ``response.error``."""
        error = search(self._error, data)
        if is_truthy(error):
            shown = clean_text(error if isinstance(error, str) else json_string(error)).text
            raise bad_response(f"the agent reported an error: {quote(shown, 1000)}")

    def _text(self, data: object, *, streamed: bool = False) -> str | None:
        if not self.explicit:
            return _usual_text(data, streamed)
        value = search(self._output, data)
        return value if value is None or isinstance(value, str) else json_string(value)

    def _stopped(self, data: object, choice: Mapping[str, Any] | None) -> str | None:
        """Why the answer ended; what is not a string is unknown, because an answer must not be lost for it."""
        reason = search(self._stop_reason, data) if self._stop_reason else value_at(choice, "finish_reason")
        return clean_text(reason).text if isinstance(reason, str) and reason else None

    def _call_entries(self, data: object, choice: Mapping[str, Any] | None) -> list[dict[str, Any]] | None:
        """The tool calls as reported; None if the response has no list of them."""
        if self._calls is not None:
            return call_entries(search(self._calls, data))
        if choice is None:
            return None
        message = choice.get("message") or choice.get("delta")
        return call_entries(message.get("tool_calls")) if isinstance(message, Mapping) else None

    @property
    def _expected_text(self) -> str:
        if self.explicit:
            return f"a text at {quote(self._paths.output)}, the path in response.output"
        return f"a text under {', '.join(TEXT_KEYS)} or in an OpenAI-style choice; write its path in response.output"

    def _nothing_found(self, data: object) -> str:
        keys = f"; its keys are {quote(list(data))}" if isinstance(data, Mapping) else ""
        return f"the response has no {self._expected_text.removeprefix('a ')}{keys}"


def _is_page(text: str) -> bool:
    return text.lstrip()[:15].lower().startswith(("<!doctype html", "<html"))


def _choice(data: object) -> Mapping[str, Any] | None:
    choices = value_at(data, "choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, Mapping) else None


def _usual_text(data: object, streamed: bool) -> str | None:
    if isinstance(data, str):
        return data
    if not isinstance(data, Mapping):
        return None
    for key in (*TEXT_KEYS, "delta") if streamed else TEXT_KEYS:
        if isinstance(data.get(key), str):
            return str(data[key])
    choice = _choice(data)
    if choice is None:
        return None
    for key in ("message", "delta") if streamed else ("message",):
        content = value_at(choice.get(key), "content")
        if isinstance(content, str | list):
            return content_text(content)
    text = choice.get("text")
    return text if isinstance(text, str) else None


def _usage(value: object) -> Usage | None:
    """The usage; invalid counts become unknown, because an answer must not be lost for its bookkeeping."""
    if not isinstance(value, Mapping):
        return None

    def count(*names: str) -> int | None:
        found = next((value[name] for name in names if value.get(name) is not None), None)
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= _LARGEST else None

    cost = value.get("cost")
    known = isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost <= _LARGEST
    usage = Usage(
        count("input_tokens", "prompt_tokens"),
        count("output_tokens", "completion_tokens"),
        count("cached_tokens"),
        float(cost) if known and cost is not None else None,
    )
    return None if usage == Usage() else usage
