"""Out of an agent's answer: its text, the tools it called, what it used."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from typing import Annotated, Any, NamedTuple

from gradeline.errors import AgentError, Problem
from gradeline.model import Config, Message, Response, Trajectory, clean_text, described
from gradeline.model.response import Usage, usage_of_calls
from gradeline.model.text import quote
from gradeline.model.trajectory import ToolCall, Turn, with_answer
from gradeline.parsing.jmespath import BadPathError, JmesPath
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
"""Where the text is looked for, in this order, before an OpenAI-style choice."""

_STREAMS = {"text/event-stream": "sse", "application/x-ndjson": "ndjson", "application/jsonl": "ndjson"}
_LARGEST = 2**53
_MAX_DEPTH = 200


class ResponseMap(Config, frozen=True):
    """Where in the answer's JSON things are, as JMESPaths."""

    output: Annotated[
        str | None, described(f"The text; by default {', '.join(TEXT_KEYS)} or an OpenAI-style choice.")
    ] = None
    tool_calls: Annotated[
        str | None,
        described(
            "The tools called: a list of {name, arguments, id} or of OpenAI's {function: …}. No list means that tool "
            "use is unknown; write tool_calls || `[]` for an agent that leaves the field out when it calls none."
        ),
    ] = None
    usage: Annotated[str | None, described("A mapping of input_tokens, output_tokens, cached_tokens and cost.")] = None
    error: Annotated[str | None, described("Where the agent tells an error; anything that is not empty is one.")] = None
    trajectory: Annotated[
        str | None, described("All messages, with tool calls and results: chat messages, or Responses items.")
    ] = None

    def faults(self) -> Iterator[Problem]:
        for name in self.__struct_fields__:
            yield from path_faults(getattr(self, name), name)


def path_faults(path: str | None, where: str) -> Iterator[Problem]:
    """What is wrong with a JMESPath."""
    try:
        compiled(path)
    except BadPathError as error:
        yield Problem(where, str(error))


def compiled(path: str | None) -> JmesPath | None:
    return None if path is None else JmesPath(path)


class NoJsonError(AgentError):
    """The answer should have been JSON."""

    def __init__(self, reason: str) -> None:
        super().__init__("bad_response", f"no JSON: {reason}")


def is_true(value: object) -> bool:
    """JMESPath's own notion: null, false and what is empty are not; 0 is."""
    return value is not None and value is not False and value not in ("", [], {})


class Decoded(NamedTuple):
    """A body as text, and whether it held what is no text."""

    text: str
    cleaned: bool


class ContentType(NamedTuple):
    """What a ``Content-Type`` says, in lower case."""

    kind: str
    charset: str


@lru_cache(maxsize=64)
def content_type(header: str) -> ContentType:
    """The parts of a ``Content-Type``; the answers of a run have few different ones."""
    kind, _, _ = header.partition(";")
    charset = header.lower().partition("charset=")[2].partition(";")[0].strip(" \"'")
    return ContentType(kind.strip().lower(), charset)


def decode(body: bytes, header: str = "") -> Decoded:
    """UTF-8 unless the content type names Latin-1 or its Windows cousin; a byte order mark is dropped."""
    if content_type(header).charset in ("iso-8859-1", "latin-1", "latin1", "windows-1252", "cp1252"):
        # browsers read both so; undefined bytes are replaced
        text = body.decode("cp1252", errors="replace")
        return Decoded(text, "\ufffd" in text)
    body = body.removeprefix(BOM_UTF8)
    try:
        return Decoded(body.decode(), False)
    except UnicodeDecodeError:
        return Decoded(body.decode(errors="replace"), True)


def json_text(decoded: Decoded) -> str:
    """The text of a body that must be JSON: replaced bytes could have been anything, so what is left is no answer."""
    if decoded.cleaned:
        raise NoJsonError("the body is not valid UTF-8, or not of the charset that it names")
    return decoded.text


def parse(text: str) -> Any:
    """The JSON that the text is, or an agent error.

    Stricter than Python (no NaN, no number that overflows, no key twice) and laxer than msgspec: escapes of lone
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
    if text.count("{") + text.count("[") > _MAX_DEPTH and _deeper_than(data, _MAX_DEPTH):
        raise bad_response("its JSON is nested too deeply")
    return data


def _deeper_than(data: object, limit: int) -> bool:
    level: list[object] = [data]
    for _ in range(limit):
        level = [
            item
            for node in level
            if isinstance(node, dict | list)
            for item in (node.values() if isinstance(node, dict) else node)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {quote(twice)} stands twice in one object")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"the number {quote(text)} is too large")
    return value


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse)


class ParsedAnswer(NamedTuple):
    """What one answer held. ``data`` is its JSON (of a stream: the list of its events), for what else is to be read."""

    text: str
    calls: tuple[ToolCall, ...] | None = None
    """None where the answer does not report them; an agent that reports none gives an empty tuple."""
    usage: Usage | None = None
    messages: tuple[Message, ...] | None = None
    data: object = None
    cleaned: bool = False

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
        # reported apart from the messages: they were made before the answer, which is the last message
        return (*steps[:-1], Message("assistant", tool_calls=calls), steps[-1])


def response_of(found: Sequence[ParsedAnswer], latency_ms: float | None = None) -> Response:
    """One response from the answers to all turns: the text is that of the last."""
    last = found[-1]
    if len(found) > 1:
        tools_known = all(one.reports_tools for one in found)
        trajectory = Trajectory(tuple(one.turn for one in found), tools_known=tools_known)
    elif last.reports_tools:
        trajectory = Trajectory(tuple(_split_turns(last.turn)))
    else:
        trajectory = None
    return Response(
        text=last.text,
        trajectory=trajectory,
        usage=usage_of_calls(one.usage for one in found),
        latency_ms=latency_ms,
        cleaned=any(one.cleaned for one in found),
    )


def _split_turns(messages: Sequence[Message]) -> Iterator[Turn]:
    """A message of the user opens a turn, once something has followed the one before."""
    turn: list[Message] = []
    for message in messages:
        if message.role == "user" and any(one.role not in ("user", "system") for one in turn):
            yield tuple(turn)
            turn = []
        turn.append(message)
    if turn:
        yield tuple(turn)


@dataclass(slots=True)
class _StreamParts:
    """What the events of a stream add up to."""

    texts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] | None = None
    begun: dict[int, dict[str, Any]] = field(default_factory=dict)
    usage: Usage | None = None
    messages: tuple[Message, ...] | None = None

    def add_calls(self, entries: list[dict[str, Any]] | None) -> None:
        """Later fragments of a call, known by its ``index``, only lengthen its arguments."""
        if entries is None:
            return
        if self.calls is None:
            self.calls = []
        for entry in entries:
            index = entry["index"]
            begun = self.begun.get(index) if isinstance(index, int) else None
            if begun is None:
                self.calls.append(entry)
                if isinstance(index, int):
                    self.begun[index] = entry
            else:
                begun["arguments"].extend(entry["arguments"])
                begun["name"] = begun["name"] or entry["name"]
                begun["id"] = begun["id"] or entry["id"]


class AnswerReader:
    """Reads answers by a `ResponseMap`."""

    def __init__(self, paths: ResponseMap) -> None:
        self.explicit = paths.output is not None
        self._output = compiled(paths.output)
        self._calls = compiled(paths.tool_calls)
        self._usage = compiled(paths.usage)
        self._error = compiled(paths.error)
        self._trajectory = compiled(paths.trajectory)
        self._asked = paths
        self._json_only = paths != ResponseMap()

    def read(self, data: object) -> ParsedAnswer:
        """What the JSON of a whole answer holds; an agent error where it has no text and calls no tool."""
        self.check_error(data)
        choice = None if self.explicit else _choice(data)
        text = self._text(data)
        calls = tool_calls(self._call_entries(data, choice))
        if text is None and not calls:
            raise bad_response(self._nothing_found(data))
        usage = _usage(search(self._usage, data) if self._usage or choice is None else value_at(data, "usage"))
        return ParsedAnswer(text or "", calls, usage, read_messages(search(self._trajectory, data)), data)

    def read_plain(self, decoded: Decoded, header: str = "") -> ParsedAnswer:
        """What a body holds that need not be JSON.

        It is JSON where its content type says so, where a path was given, and where it has no content type and
        is an object; else its text is the answer, unless it is an HTML page.
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
            raise bad_response("an HTML page instead of an answer")
        return ParsedAnswer(text, cleaned=decoded.cleaned)

    def read_stream(self, events: Iterable[str]) -> ParsedAnswer:
        """What the events of a stream add up to: their texts joined, their calls merged, the last usage reported."""
        gathering = _StreamParts()
        seen: list[object] = []
        for event in events:
            if not self.explicit and not event.lstrip().startswith(("{", "[", '"')):
                gathering.texts.append(event)
                continue
            data = parse(event)
            seen.append(data)
            self.check_error(data)
            choice = None if self.explicit else _choice(data)
            text = self._text(data, streamed=True)
            if text is not None:
                gathering.texts.append(text)
            gathering.add_calls(self._call_entries(data, choice))
            reported = search(self._usage, data) if self._usage or choice is None else value_at(data, "usage")
            gathering.usage = _usage(reported) or gathering.usage
            messages = read_messages(search(self._trajectory, data))
            if messages is not None:
                gathering.messages = messages or gathering.messages or ()
        calls = tool_calls(gathering.calls)
        if not gathering.texts and not calls:
            raise bad_response(f"no event of the stream has {self._wanted}")
        return ParsedAnswer("".join(gathering.texts), calls, gathering.usage, gathering.messages, seen)

    def check_error(self, data: object) -> None:
        """Raises what the agent reported under ``response.error``."""
        error = search(self._error, data)
        if is_true(error):
            shown = clean_text(error if isinstance(error, str) else json_string(error)).text
            raise bad_response(f"the agent reported an error: {quote(shown, 1000)}")

    def _text(self, data: object, *, streamed: bool = False) -> str | None:
        if not self.explicit:
            return _usual_text(data, streamed)
        value = search(self._output, data)
        return value if value is None or isinstance(value, str) else json_string(value)

    def _call_entries(self, data: object, choice: Mapping[str, Any] | None) -> list[dict[str, Any]] | None:
        """The tool calls as reported; None where the answer does not report any list of them."""
        if self._calls is not None:
            return call_entries(search(self._calls, data))
        if choice is None:
            return None
        message = choice.get("message") or choice.get("delta")
        return call_entries(message.get("tool_calls")) if isinstance(message, Mapping) else None

    @property
    def _wanted(self) -> str:
        if self.explicit:
            return f"a text at {quote(self._asked.output)}, which response.output names"
        return f"a text under {', '.join(TEXT_KEYS)} or in an OpenAI-style choice; name its place in response.output"

    def _nothing_found(self, data: object) -> str:
        keys = f"; its keys are {quote(list(data))}" if isinstance(data, Mapping) else ""
        return f"the answer has no {self._wanted.removeprefix('a ')}{keys}"


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
    """What cannot be a count is unknown: an agent's bookkeeping is no reason to lose its answer."""
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
