"""What a judge's reply says, or why it says nothing: a verdict is read, never guessed.

A score is a JSON number in 0..1 as it stands. A text, a percentage, a score beside another one or past the range is
no score, and neither is a refusal, a reply that was cut off, or an empty one: each is an error of its own type.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

from gradeline.errors import ConfigError, NeedsIsolationError, Problem, TooLargeError, UngradableError
from gradeline.model.llm import LLMResponse
from gradeline.model.response import Usage
from gradeline.model.text import clean_text, quote
from gradeline.parsing.json_text import json_key
from gradeline.parsing.patterns import Pattern, PatternError, compile_pattern, matches

MAX_NOTES = 10_000
"""How many characters of a judge's reasons are kept."""
_MAX_REPLY = 2_000_000
"""How many characters of a reply are looked at: no judge says more, and what is longer is no verdict."""
_MAX_OBJECTS = 100
"""How often a reply may repeat its verdict."""
_MAX_QUOTED = 300
_MAX_SHOWN = 80

_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
_DECLINED = frozenset({"refusal", "content_filter", "safety", "prohibited_content", "blocklist", "recitation"})
"""Finish reasons; the adapters of this package say ``length``, ``refusal`` and ``content_filter``."""

# Only asked of a reply without a verdict, so that it need not be sure.
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
    """A judge's reply holds no verdict. ``raw`` is its text; ``usage`` and ``calls`` are what asking cost."""

    def __init__(self, message: str, raw: str) -> None:
        super().__init__(message)
        self.raw = raw
        self.usage: Usage | None = None
        self.calls = 0


class InvalidReply(ReplyError):  # noqa: N818 - the names that callers were promised
    """The reply is none of those that were asked for: no JSON object, no number in 0..1, two verdicts."""

    type = "invalid_reply"


class RefusedReply(ReplyError):  # noqa: N818
    """The judge, or a filter before it, declined to answer."""

    type = "refused"


class TruncatedReply(ReplyError):  # noqa: N818
    """The reply was cut off at the limit of its tokens."""

    type = "truncated"


class EmptyReply(ReplyError):  # noqa: N818
    """The reply has no text."""

    type = "empty_reply"


class Verdict(NamedTuple):
    """What a judge said. ``raw_score`` is the number before it was brought to 0..1, where it was; ``data`` the whole
    object of the reply."""

    score: float
    notes: str
    raw_score: float | None = None
    data: Mapping[str, Any] = MappingProxyType({})


def require_reply(response: LLMResponse) -> str:
    """The text of a reply that came whole, or the `ReplyError` that says what came instead.

    A reply that reached its limit is cut off, even where what came is whole JSON: more was to follow.
    """
    text, reason = response.content, (response.finish_reason or "").lower()
    if reason in _DECLINED:
        said = f" and said {quote(text, _MAX_QUOTED)}" if text.strip() else ""
        raise RefusedReply(f"the judge refused to answer ({response.finish_reason}){said}", text)
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
    """The one JSON object of a reply: alone, in a code fence, or with prose around it.

    The same object twice is one. `InvalidReply` for two different ones, for what only resembles JSON, for duplicate
    keys and numbers that JSON does not have; `RefusedReply` where there is none and the text declines to give one.
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
                raise _invalid("holds several JSON objects, of which none can be told to be the verdict", text)
        position = text.find("{", position)
    if not found:
        raise _without_verdict("holds no JSON object", text)
    return found[0]


def read_score(data: Mapping[str, Any], key: str, raw: str) -> float:
    """The number in 0..1 under a key. Nothing is clipped, converted or guessed: anything else is `InvalidReply`."""
    if key not in data:
        there = ", ".join(quote(name, 40) for name in list(data)[:10]) or "no keys"
        raise _invalid(f"lacks {key!r}; its object has {there}", raw)
    value = data[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(f"has {key} {_shown_json(value)}, which is not a JSON number from 0.0 to 1.0", raw)
    if not 0 <= value <= 1:
        raise _invalid(f"has {key} {_shown_json(value)}, which is outside 0.0 to 1.0", raw)
    return float(value)


def read_verdict(text: str, score_key: str, notes_key: str) -> Verdict:
    """The verdict of a JSON reply; the notes may be missing, and are bounded and made storable."""
    data = read_object(text)
    return Verdict(read_score(data, score_key, text), bounded_notes(data.get(notes_key)), data=data)


def bounded_notes(notes: object) -> str:
    """A judge's reasons as a text of bounded length; reasons that are no text are shown as JSON."""
    if notes is None:
        return ""
    told = notes if isinstance(notes, str) else json.dumps(notes, ensure_ascii=False, default=repr)
    return clean_text(told if len(told) <= MAX_NOTES else f"{told[: MAX_NOTES - 1]}…").text


@dataclass(frozen=True)
class PatternReply:
    """A rating in free text, such as ``[[8]]``: what the one group of an RE2 pattern holds, from ``min`` to ``max``.

    Several matches must be of the same number.
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
                told = f"{quote(self.pattern)} has {compiled.groups} groups; it needs exactly one, around the number"
                problems.append(Problem("pattern", told))
        except PatternError as error:
            problems.append(Problem("pattern", str(error)))
        if not (isfinite(self.min) and isfinite(self.max) and self.min < self.max):
            problems.append(Problem("min", f"{self.min!r} must be a number below max ({self.max!r})"))
        if problems:
            raise ConfigError(problems)

    def read(self, text: str) -> Verdict:
        """The rating, brought to 0..1; ``raw_score`` keeps the number itself."""
        if len(text) > _MAX_REPLY:
            raise InvalidReply(f"the judge's reply of {len(text):,} characters is too long to hold a verdict", text)
        clean = clean_text(text).text
        try:
            said = list(dict.fromkeys(match.group(1) or "" for match in matches(self._compiled, clean)))
        except (TooLargeError, NeedsIsolationError) as error:  # no worker is used: that many matches are not one rating
            raise _invalid(f"holds no one rating: {error}", text) from None
        if not said:
            raise _without_verdict(f"has no match of {quote(self.pattern)}", text)
        ratings = {self._number(rating, text) for rating in said}
        if len(ratings) > 1:
            raise _invalid(f"holds {len(ratings)} different ratings, {', '.join(map(quote, said[:5]))}", text)
        rating = ratings.pop()
        if not self.min <= rating <= self.max:
            raise _invalid(f"has the rating {quote(said[0])}, which is outside {self.min:g} to {self.max:g}", text)
        return Verdict((rating - self.min) / (self.max - self.min), bounded_notes(text.strip()), rating)

    def _number(self, rating: str, text: str) -> float:
        number = float(rating) if _RATING.fullmatch(rating.strip()) else None
        if number is None or not isfinite(number):
            raise _invalid(f"has the rating {quote(rating)}, which is no number", text)
        return number


class _FlawError(ValueError):
    """Something in an object that JSON's grammar lets through."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise _FlawError(f"the key {quote(twice, 40)} twice")
    return data


def _no_constant(name: str) -> float:
    raise _FlawError(f"{name}, which JSON does not have")


def _finite(number: str) -> float:
    value = float(number)
    if not isfinite(value):
        raise _FlawError(f"{quote(number, 40)}, which is too large a number")
    return value


# Not strict: a raw line break in the notes has one reading only.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_constant=_no_constant, parse_float=_finite, strict=False
)  # fmt: skip


def _object_at(text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    """The object that a brace opens and where it ends; None for braces that are prose, such as a set or a formula."""
    try:
        data, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        return None, _end_of_prose(text, start, error)
    except _FlawError as flaw:
        raise _invalid(f"has {flaw}", text) from None
    except (ValueError, RecursionError):  # an integer of thousands of digits; nesting
        raise _invalid("has a number too long or an object nested too deeply", text) from None
    if _IN_A_LIST.search(text[max(0, start - 20) : start]):
        raise _invalid("has a list of verdicts in place of one", text)
    return data, end


def _end_of_prose(text: str, start: int, error: json.JSONDecodeError) -> int:
    """Where braces end that hold no JSON. What is meant as an object ends it all: one inside is not the verdict."""
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
    """A value as JSON has it, of bounded length and in ASCII."""
    try:
        told = json.dumps(value)
    except ValueError:  # an integer of more digits than Python writes
        return quote(value)
    return told if len(told) <= _MAX_SHOWN else f"{told[:_MAX_SHOWN]}…"
