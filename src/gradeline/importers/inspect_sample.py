"""A sample of an Inspect log as a case and a response."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

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
from gradeline.targets.answer import split_turns

EXTRAS = "gradeline"
"""The key of a sample's metadata under which an exported log has what Inspect has no field for."""
EXPORTED_FIELDS = (
    "id",
    "ground_truth",
    "agent_args",
    "rubric_vars",
    "extra_vars",
    "tags",
    "rubric",
    "rubric_path",
    "cluster",
    "checks",
)
"""Fields of a case that an exported log keeps under `EXTRAS`, where they are not the default."""
LIMIT = "limit"
"""The name of the event that ends the trajectory of a response that was stopped."""
_ATTACHMENT = "attachment://"
_MAX_CHARS = 256 * 1024**2
"""Maximum characters of a sample with its attachments in place: each may be referred to many times."""
_MAX_DEPTH = 200
_ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_GRADER_ROLE = "grader"
_MAX_ERROR = 10_000


class ImportedSample(NamedTuple):
    """What a sample becomes, and the items of it that are only similar: each with what it became and how it differs."""

    case: Sample
    response: Response
    approximated: Sequence[tuple[str, str, str]]


def import_sample(logged: LoggedSample, prefix: str = "") -> ImportedSample:
    """A sample as a case and a response; `DataError` if something of it cannot be stored.

    ``prefix`` begins the case's id if it is not empty.
    """
    return _Import(logged).result(prefix)


class _Import:
    def __init__(self, logged: LoggedSample) -> None:
        self._logged = logged
        self._text = _Attachments(logged.attachments).text
        self._notes: dict[str, tuple[str, str, str]] = {}

    def result(self, prefix: str) -> ImportedSample:
        case, response = self._case(prefix), self._response()
        return ImportedSample(case, response, tuple(self._notes.values()))

    def _note(self, what: str, became: str, differs: str) -> None:
        self._notes[what] = (what, became, differs)

    def _case(self, prefix: str) -> Sample:
        logged = self._logged
        metadata = dict(resolved(logged.metadata or {}, self._text))
        extras = metadata.pop(EXTRAS, None)
        targets = [logged.target] if isinstance(logged.target, str) else logged.target
        texts = [self._text(target) for target in targets if target]
        if len(texts) > 1:
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
        return _with_extras(case, extras, prefix)

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
        return Response(
            status="error" if failed else "success",
            text=None if failed and not cleaned.text else cleaned.text,
            trajectory=self._trajectory(),
            usage=agent_usage(logged.model_usage, logged.role_usage),
            latency_ms=None if seconds is None else seconds * 1000,
            error=self._error(),
            cleaned=cleaned.changed,
            stop_reason=None if stop_reason is None else clean_text(stop_reason).text,
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
        return text, None if first is None else first.stop_reason

    def _error(self) -> ErrorInfo | None:
        error = self._logged.error
        if error is None:
            return None
        traceback = None if error.traceback is None else clean_text(error.traceback).text
        return ErrorInfo("agent_error", clean_text(error.message[:_MAX_ERROR]).text, Fault.AGENT, traceback)

    def _trajectory(self) -> Trajectory | None:
        """None without a message of the model: then it is unknown what it did."""
        messages = [part for message in self._logged.messages for part in self._messages(message)]
        if not any(message.role == "assistant" for message in messages):
            return None
        if self._logged.limit is not None:
            messages.append(Message("event", limit_text(self._logged.limit), name=LIMIT))
        return Trajectory(tuple(split_turns(messages)))

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
    """Long texts, which a log has once; what refers to one is the whole of a string."""

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


def limit_text(limit: LoggedLimit) -> str:
    """A limit that stopped a sample, in words."""
    amount = "" if limit.limit is None else f" of {limit.limit:g}"
    reason = "" if not limit.reason else f": {limit.reason}"
    return clean_text(f"stopped by the {limit.type} limit{amount}{reason}"[:_MAX_ERROR]).text


def _with_extras(case: Sample, extras: object, prefix: str) -> Sample:
    """The case with the fields that an exported log has under `EXTRAS`; others there are ignored."""
    if not isinstance(extras, Mapping):
        return case
    known = {key: extras[key] for key in EXPORTED_FIELDS if key in extras}
    if "id" in known:
        known["id"] = f"{prefix}{known['id']}" if prefix else known["id"]
    try:
        return msgspec.convert({**msgspec.to_builtins(case), **clean_data(known)}, Sample)
    except msgspec.ValidationError as error:
        raise DataError(f"metadata.{EXTRAS} is not of an exported log: {error}") from None


def _clean_id(value: int | str) -> int | str:
    return clean_text(value).text if isinstance(value, str) else value


def _clean(text: str | None) -> str | None:
    return None if text is None else clean_text(text).text
