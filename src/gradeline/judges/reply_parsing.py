"""Parse a judge's reply strictly: a verdict is read, never guessed.

A score is a JSON number in 0..1. Strings, percentages, several scores and numbers out of range are errors, and so are
refusals, truncated replies and empty ones, each of its own type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

from gradeline.errors import ConfigError, NeedsIsolationError, Problem, TooLargeError, UngradableError
from gradeline.model.llm import LLMResponse
from gradeline.model.response import Usage
from gradeline.model.text import clean_text, quote
from gradeline.parsing.json_text import JsonDefectError, json_key, strict_decoder
from gradeline.parsing.patterns import Pattern, PatternError, compile_pattern, matches

MAX_NOTES = 10_000
"""Maximum length of a stored rationale."""
_MAX_REPLY = 2_000_000
"""Maximum length of a reply; a longer one is invalid."""
_MAX_OBJECTS = 100
"""Maximum repetitions of the verdict in a reply."""
_MAX_QUOTED = 300
_MAX_SHOWN = 80

_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_DECLINED = frozenset({"refusal", "content_filter", "safety", "prohibited_content", "blocklist", "recitation"})
"""Finish reasons; the adapters of this package use ``length``, ``refusal`` and ``content_filter``."""

# A heuristic: only applied to replies without a verdict.
_REFUSING = re.compile(
    r"\W*(?:(?:i['’]?m|i am|we are|we['’]re)? ?(?:very |really |so )?(?:sorry|afraid)\b.{0,100}?"
    r"|(?:unfortunately|my apologies|i apologi[sz]e|as an ai)\b.{0,100}?)?"
    r"\b(?:i|we)\b.{0,12}?"
    r"(?:can['’]?t|cannot|can not|won['’]?t|will not|unable|not able|not comfortable|decline)\b",
    re.IGNORECASE,
)
_RATING = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")
_BRACE = re.compile(r"[{}]")
_IN_A_LIST = re.compile(r"\[\s*\Z")
_LIKE_AN_OBJECT = re.compile(r"[\":]")


class ReplyError(UngradableError):
    """A judge's reply holds no verdict. ``raw`` is its text; ``usage`` and ``calls`` are the cost of the calls."""

    def __init__(self, message: str, raw: str) -> None:
        super().__init__(message)
        self.raw = raw
        self.usage: Usage | None = None
        self.calls = 0


class InvalidReply(ReplyError):  # noqa: N818 - public names
    """The reply does not have the requested format: no JSON object, no number in 0..1, or two verdicts."""

    type = "invalid_reply"


class RefusedReply(ReplyError):  # noqa: N818
    """The judge or a content filter refused to answer."""

    type = "refused"


class TruncatedReply(ReplyError):  # noqa: N818
    """The reply was cut off at the token limit."""

    type = "truncated"


class EmptyReply(ReplyError):  # noqa: N818
    """The reply has no text."""

    type = "empty_reply"


class JudgeVerdict(NamedTuple):
    """A judge's verdict. ``raw_score`` is the number before scaling to 0..1, if scaled; ``data`` the whole object.

    ``label`` is the one that the judge chose, if it chooses among labels.
    """

    score: float
    notes: str
    raw_score: float | None = None
    data: Mapping[str, Any] = MappingProxyType({})
    label: str | None = None


def require_reply(response: LLMResponse) -> str:
    """The text of a complete reply; `ReplyError` for any other reply.

    A reply that reached its token limit counts as cut off even if it is complete JSON: more was to follow.
    """
    text, reason = response.content, (response.finish_reason or "").lower()
    if reason in _DECLINED:
        quoted = f": {quote(text, _MAX_QUOTED)}" if text.strip() else ""
        raise RefusedReply(f"the judge refused to answer ({response.finish_reason}){quoted}", text)
    if reason in _CUT:
        raise TruncatedReply(
            f"the judge's reply was cut off ({response.finish_reason}) after {len(text):,} characters; allow it more"
            f" tokens with max_tokens: {quote(text, _MAX_QUOTED)}",
            text,
        )
    if not text.strip("\ufeff \t\r\n"):
        called = ", ".join(quote(call.name) for call in response.tool_calls)
        instead = f": it called the tool {called} instead" if called else ""
        raise EmptyReply(f"the judge's reply is empty{instead}", text)
    return text


def read_object(text: str) -> dict[str, Any]:
    """The only JSON object of a reply: bare, in a code fence, or surrounded by prose.

    Repetitions of the same object count as one. `InvalidReply` for different objects, invalid JSON, duplicate keys and
    numbers that JSON does not have; `RefusedReply` if there is no object and the text refuses to give one.
    """
    if len(text) > _MAX_REPLY:
        raise InvalidReply(f"the judge's reply of {len(text):,} characters is too long to hold a verdict", text)
    found: list[dict[str, Any]] = []
    position = text.find("{")
    while position >= 0:
        data, position = _object_at(text, position)
        if data is not None:
            found.append(data)
            if len(found) > _MAX_OBJECTS or json_key(found[0]) != json_key(data):
                raise _invalid("holds several JSON objects, so the verdict is ambiguous", text)
        position = text.find("{", position)
    if not found:
        raise _without_verdict("holds no JSON object", text)
    return found[0]


def read_score(data: Mapping[str, Any], key: str, raw: str) -> float:
    """The number in 0..1 under a key; `InvalidReply` for anything else. Nothing is clipped, converted or guessed."""
    if key not in data:
        keys = ", ".join(quote(name, 40) for name in list(data)[:10]) or "no keys"
        raise _invalid(f"lacks {key!r}; its object has {keys}", raw)
    value = data[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(f"has {key} {_shown_json(value)}, which is not a JSON number from 0.0 to 1.0", raw)
    if not 0 <= value <= 1:
        raise _invalid(f"has {key} {_shown_json(value)}, which is outside 0.0 to 1.0", raw)
    return float(value)


def read_verdict(text: str, score_key: str, notes_key: str) -> JudgeVerdict:
    """The verdict of a JSON reply; the notes are optional, truncated and cleaned."""
    data = read_object(text)
    return JudgeVerdict(read_score(data, score_key, text), bounded_notes(data.get(notes_key)), data=data)


def bounded_notes(notes: object) -> str:
    """A judge's rationale, truncated; a rationale that is not a string becomes JSON."""
    if notes is None:
        return ""
    text = notes if isinstance(notes, str) else json.dumps(notes, ensure_ascii=False, default=repr)
    return clean_text(text if len(text) <= MAX_NOTES else f"{text[: MAX_NOTES - 1]}…").text


@dataclass(frozen=True)
class PatternReply:
    """A rating in free text, such as ``[[8]]``: the only group of an RE2 pattern, from ``min`` to ``max``.

    Several matches must be the same number.
    """

    pattern: str
    min: float
    max: float
    _compiled: Pattern = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        problems = []
        try:
            compiled = compile_pattern(self.pattern)
            if compiled.groups == 1:
                object.__setattr__(self, "_compiled", compiled)
            else:
                reason = f"{quote(self.pattern)} has {compiled.groups} groups; it needs exactly one, around the number"
                problems.append(Problem("pattern", reason))
        except PatternError as error:
            problems.append(Problem("pattern", str(error)))
        if not (isfinite(self.min) and isfinite(self.max) and self.min < self.max):
            problems.append(Problem("min", f"{self.min!r} must be a number below max ({self.max!r})"))
        if problems:
            raise ConfigError(problems)

    def read(self, text: str) -> JudgeVerdict:
        """The rating scaled to 0..1; ``raw_score`` is the number itself."""
        if len(text) > _MAX_REPLY:
            raise InvalidReply(f"the judge's reply of {len(text):,} characters is too long to hold a verdict", text)
        clean = clean_text(text).text
        try:
            found = list(dict.fromkeys(match.group(1) or "" for match in matches(self._compiled, clean)))
        except (
            TooLargeError,
            NeedsIsolationError,
        ) as error:  # not worth a worker: that many matches are not one rating
            raise _invalid(f"does not hold exactly one rating: {error}", text) from None
        if not found:
            raise _without_verdict(f"has no match of {quote(self.pattern)}", text)
        ratings = {self._number(rating, text) for rating in found}
        if len(ratings) > 1:
            raise _invalid(f"holds {len(ratings)} different ratings, {', '.join(map(quote, found[:5]))}", text)
        rating = ratings.pop()
        if not self.min <= rating <= self.max:
            raise _invalid(f"has the rating {quote(found[0])}, which is outside {self.min:g} to {self.max:g}", text)
        return JudgeVerdict((rating - self.min) / (self.max - self.min), bounded_notes(text.strip()), rating)

    def _number(self, rating: str, text: str) -> float:
        number = float(rating) if _RATING.fullmatch(rating.strip()) else None
        if number is None or not isfinite(number):
            raise _invalid(f"has the rating {quote(rating)}, which is not a number", text)
        return number


# Not strict: a raw line break in the notes is unambiguous.
_DECODER = strict_decoder(strict=False)


def _object_at(text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    """The object that a brace opens, and its end; None for braces in prose, such as a set or a formula."""
    try:
        data, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        return None, _end_of_prose(text, start, error)
    except JsonDefectError as defect:
        raise _invalid(f"has {defect}", text) from None
    except (ValueError, RecursionError):  # an integer of thousands of digits; nesting
        raise _invalid("has a number too long or an object nested too deeply", text) from None
    if _IN_A_LIST.search(text[max(0, start - 20) : start]):
        raise _invalid("has a list of verdicts instead of one", text)
    return data, end


def _end_of_prose(text: str, start: int, error: json.JSONDecodeError) -> int:
    """The end of braces that hold no JSON; raises for what was meant as an object: one inside is not the verdict."""
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            if _LIKE_AN_OBJECT.search(text, start, brace.start()):
                break
            return brace.end()
    raise _without_verdict(f"holds no valid JSON: {error.msg} at character {error.pos}", text)


def _without_verdict(what: str, text: str) -> ReplyError:
    if _REFUSING.match(text):
        return RefusedReply(f"the judge refused to answer: {quote(text, _MAX_QUOTED)}", text)
    return _invalid(what, text)


def _invalid(what: str, text: str) -> InvalidReply:
    return InvalidReply(f"the judge's reply {what}: {quote(text, _MAX_QUOTED)}", text)


def _shown_json(value: object) -> str:
    """A value as ASCII JSON, truncated."""
    try:
        text = json.dumps(value)
    except ValueError:  # an integer with more digits than Python converts
        return quote(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
