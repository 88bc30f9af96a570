"""A sample of an Inspect log as a case and a response."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from gradeline.errors import DataError, Fault
from gradeline.importers.inspect_format import LoggedLimit, LoggedMessage, LoggedSample, LoggedToolCall, LoggedUsage
from gradeline.model import (
    ErrorInfo,
    Message,
    Response,
    Role,
    Sample,
    ToolCall,
    Trajectory,
    Usage,
    clean_data,
    clean_text,
)
from gradeline.model.response import total_usage
from gradeline.report.inspect_log import EXPORTED_FIELDS, EXTRAS, LIMIT, UNKNOWN, limit_text
from gradeline.targets.answer import split_turns

_ATTACHMENT = "attachment://"
_MAX_CHARS = 256 * 1024**2
"""Maximum characters of a sample with its attachments in place: each may be referred to many times."""
_MAX_DEPTH = 200
_ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_GRADER_ROLE = "grader"
_MAX_ERROR = 10_000
_MAX_SECONDS = 1e9
"""A time that is longer, or negative, is not one."""


class ImportedSample(NamedTuple):
    """The result for a sample, and its approximated items: each with what it became and how it differs."""

    case: Sample
    response: Response
    approximated: Sequence[tuple[str, str, str]]


class _ExportedError(Struct, frozen=True):
    """What Inspect has no field for. The default is an error of a log that Inspect wrote."""

    status: Literal["error", "timeout"] = "error"
    type: str = "agent_error"
    fault: Fault = Fault.AGENT


class _ExportedResponse(Struct, frozen=True):
    tools_known: bool = True
    stop_reason: str | None = None
    usage: Usage | None = None
    error: _ExportedError = _ExportedError()


class _Extras(NamedTuple):
    """The parts of a record for which Inspect has no field, as an exported log keeps them."""

    case: Mapping[str, Any]
    response: _ExportedResponse


def import_sample(logged: LoggedSample, prefix: str = "") -> ImportedSample:
    """A sample as a case and a response; `DataError` if something of it cannot be stored.

    ``prefix`` begins the case's id if it is not empty.
    """
    return _Import(logged).result(prefix)


class _Import:
    def __init__(self, logged: LoggedSample) -> None:
        self._logged = logged
        self._text = _Attachments(logged.attachments).text
        self._metadata = dict(resolved(logged.metadata or {}, self._text))
        extras = _extras(self._metadata.get(EXTRAS))
        if extras is not None:
            del self._metadata[EXTRAS]
        self._extras = extras or _Extras({}, _ExportedResponse())
        self._notes: dict[str, tuple[str, str, str]] = {}

    def result(self, prefix: str) -> ImportedSample:
        case, response = self._case(prefix), self._response()
        return ImportedSample(case, response, tuple(self._notes.values()))

    def _note(self, what: str, became: str, differs: str) -> None:
        self._notes[what] = (what, became, differs)

    def _case(self, prefix: str) -> Sample:
        logged = self._logged
        metadata = self._metadata
        targets = [logged.target] if isinstance(logged.target, str) else logged.target
        texts = [self._text(target) for target in targets if target]
        if len(texts) > 1 and "ground_truth" not in self._extras.case:
            metadata.setdefault("targets", texts)
            what = "a response that matches any of them is correct; the others are in the case's metadata.targets"
            self._note("target with several values", "ground_truth (the first)", what)
        if logged.choices is not None:
            metadata.setdefault("choices", [self._text(choice) for choice in logged.choices])
        case = Sample(
            f"{prefix}{logged.id}" if prefix else _clean_id(logged.id),
            self._input(metadata),
            texts[0] if texts else None,
            clean_data(metadata, "metadata"),
        )
        return _with_fields(case, self._extras.case, prefix)

    def _input(self, metadata: dict[str, Any]) -> str | list[str]:
        given = self._logged.input
        if isinstance(given, str):
            return self._text(given)
        texts = [self._content(message) for message in given]
        if len(given) == 1 and given[0].role == "user":
            return texts[0]
        if all(message.role == "user" for message in given):
            return texts
        messages = [{"role": one.role, "content": text} for one, text in zip(given, texts, strict=True)]
        metadata.setdefault("messages", messages)
        what = "the messages are one text with their roles; the case's metadata.messages has each of them"
        self._note("input with messages of several roles", "input", what)
        return "\n\n".join(f"{one.role}: {text}" for one, text in zip(given, texts, strict=True))

    def _response(self) -> Response:
        logged = self._logged
        answer, stop_reason = self._answer()
        cleaned = clean_text(answer)
        seconds = logged.total_time if logged.working_time is None else logged.working_time
        failed = logged.error is not None
        exported = self._extras.response
        return Response(
            status=exported.error.status if failed else "success",
            text=None if failed and not cleaned.text else cleaned.text,
            trajectory=self._trajectory(),
            usage=agent_usage(logged.model_usage, logged.role_usage) or exported.usage,
            latency_ms=seconds * 1000 if seconds is not None and 0 <= seconds <= _MAX_SECONDS else None,
            error=self._error(),
            cleaned=cleaned.changed,
            stop_reason=_clean(exported.stop_reason or stop_reason),
        )

    def _answer(self) -> tuple[str, str | None]:
        """The text that Inspect's scorers saw, and why the model ended it.

        A solver may write messages only: then the answer is the last of them.
        """
        output = self._logged.output
        if output is None or not (output.choices or output.completion):
            spoken = [message for message in self._logged.messages if message.role == "assistant"]
            return self._content(spoken[-1]) if spoken else "", None
        first = output.choices[0] if output.choices else None
        text = self._content(first.message) if output.completion is None and first else self._text(output.completion)
        return text, None if first is None or first.stop_reason == UNKNOWN else first.stop_reason

    def _error(self) -> ErrorInfo | None:
        error = self._logged.error
        if error is None:
            return None
        exported = self._extras.response.error
        kind, message = clean_text(exported.type).text, clean_text(error.message[:_MAX_ERROR]).text
        return ErrorInfo(kind, message, exported.fault, _clean(error.traceback or None))

    def _trajectory(self) -> Trajectory | None:
        """The trajectory; None without a message of the model, because its actions are then unknown."""
        messages = [part for message in self._logged.messages for part in self._messages(message)]
        if not any(message.role == "assistant" for message in messages):
            return None
        if self._logged.limit is not None:
            messages.append(Message("event", limit_words(self._logged.limit), name=LIMIT))
        return Trajectory(tuple(split_turns(messages)), tools_known=self._extras.response.tools_known)

    def _messages(self, message: LoggedMessage) -> Iterator[Message]:
        if isinstance(message.content, list):
            for part in message.content:
                if part.get("type") == "reasoning":
                    yield Message("reasoning", self._clean(part.get("reasoning") or part.get("summary")))
                elif part.get("type") == "tool_use":
                    yield from self._provider_call(part)
        content = self._content(message)
        if message.role == "tool":
            failed = message.error is not None
            if failed and not content and isinstance(message.error, Mapping):
                content = self._clean(message.error.get("message"))
            yield Message(
                "tool",
                content,
                tool_call_id=_clean(message.tool_call_id),
                name=_clean(message.function),
                is_error=failed,
            )
        else:
            calls = tuple(map(self._call, message.tool_calls or ()))
            yield Message(_ROLES.get(message.role, "event"), content, calls)

    def _call(self, call: LoggedToolCall) -> ToolCall:
        arguments = call.arguments
        if call.parse_error is not None:
            text = call.parse_error
        elif isinstance(arguments, str):
            text = arguments
        else:
            text = msgspec.json.encode(clean_data(resolved(arguments or {}, self._text), "arguments")).decode()
        return ToolCall(self._clean(call.function), self._clean(text), _clean(call.id))

    def _provider_call(self, part: Mapping[str, Any]) -> Iterator[Message]:
        """A tool that the provider ran."""
        name, ident = self._clean(part.get("name")), self._clean(part.get("id"))
        yield Message("assistant", tool_calls=(ToolCall(name, self._clean(part.get("arguments")) or "{}", ident),))
        result = self._clean(part.get("result") or part.get("error"))
        yield Message("tool", result, tool_call_id=ident, name=name, is_error=bool(part.get("error")))

    def _content(self, message: LoggedMessage) -> str:
        """The text of a message; media are named."""
        if isinstance(message.content, str):
            return self._clean(message.content)
        texts = []
        for part in message.content:
            kind = part.get("type")
            if kind == "text":
                texts.append(self._clean(part.get("text")))
            elif kind not in ("reasoning", "tool_use"):
                name = self._clean(kind)[:40] or "content"
                texts.append(f"[{name}]")
                self._note(f"content of type {name}", f"the text [{name}]", "the response is graded without it")
        return "\n".join(texts) if len(texts) > 1 else "".join(texts)

    def _clean(self, value: object) -> str:
        if value is None:
            return ""
        return clean_text(self._text(value if isinstance(value, str) else str(value))).text


class _Attachments:
    """Long texts, which a log stores once; a reference to one is always a whole string."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._chars = 0

    def text(self, value: str | None) -> str:
        if value is None:
            return ""
        if value.startswith(_ATTACHMENT):
            value = self._texts.get(value.removeprefix(_ATTACHMENT), value)
            self._chars += len(value)
            if self._chars > _MAX_CHARS:
                raise DataError(f"has more than {_MAX_CHARS:,} characters with its attachments in place")
        return value


def resolved(value: Any, text: Callable[[str], str], depth: int = 0) -> Any:
    """JSON data with its attachments in place."""
    if depth > _MAX_DEPTH:
        raise DataError(f"nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {key: resolved(item, text, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [resolved(item, text, depth + 1) for item in value]
    return value


def agent_usage(models: Mapping[str, LoggedUsage], roles: Mapping[str, LoggedUsage]) -> Usage | None:
    """The usage of all models except in the role of the grader; None if it is unknown."""
    total = total_usage(map(_usage, models.values()))
    judged = roles.get(_GRADER_ROLE)
    return total if total is None or judged is None else _difference(total, _usage(judged))


def _usage(logged: LoggedUsage) -> Usage:
    cached = logged.input_tokens_cache_read
    others = (cached or 0) + (logged.input_tokens_cache_write or 0)
    fresh = logged.input_tokens
    return Usage(None if fresh is None else fresh + others, logged.output_tokens, cached, logged.total_cost)


def _difference(total: Usage, part: Usage) -> Usage:
    def minus(whole: int | None, taken: int | None) -> int | None:
        return None if whole is None or taken is None or taken > whole else whole - taken

    cached = None if total.cached_tokens is None else minus(total.cached_tokens, part.cached_tokens or 0)
    known = total.cost is not None and part.cost is not None and part.cost <= total.cost
    cost = (total.cost or 0.0) - (part.cost or 0.0) if known else None
    return Usage(
        minus(total.input_tokens, part.input_tokens), minus(total.output_tokens, part.output_tokens), cached, cost
    )


def limit_words(limit: LoggedLimit) -> str:
    """A limit that stopped a sample, in words."""
    return clean_text(limit_text(limit.type, limit.limit, limit.reason)[:_MAX_ERROR]).text


def _extras(data: object) -> _Extras | None:
    """What an exported log has under `EXTRAS`; None if it is not of an export."""
    if not isinstance(data, Mapping):
        return None
    fields = clean_data({key: data[key] for key in EXPORTED_FIELDS if key in data})
    try:
        msgspec.convert({"id": "", "input": "", **fields}, Sample)
        return _Extras(fields, msgspec.convert(data, _ExportedResponse))
    except msgspec.ValidationError:
        return None


def _with_fields(case: Sample, fields: Mapping[str, Any], prefix: str) -> Sample:
    """The case with the fields that an exported log keeps."""
    if not fields:
        return case
    known = dict(fields)
    if "id" in known and prefix:
        known["id"] = f"{prefix}{known['id']}"
    return msgspec.convert({**msgspec.to_builtins(case), **known}, Sample)


def _clean_id(value: int | str) -> int | str:
    return clean_text(value).text if isinstance(value, str) else value


def _clean(text: str | None) -> str | None:
    return None if text is None else clean_text(text).text
