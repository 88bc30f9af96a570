"""Regular expressions that cannot hang: RE2, and the patterns written for Python's ``re``.

A pattern of ours is an RE2 pattern. A pattern of a letta suite was written for ``re``; it runs
on RE2 where RE2 provably gives the same answer, and asks for a killable worker where not.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import NamedTuple, Protocol

from gradeline.errors import NeedsIsolationError
from gradeline.model import quote

_MAX_PATTERN = 10_000


class Match(Protocol):
    def group(self, group: int = 0, /) -> str | None: ...
    def groups(self) -> tuple[str | None, ...]: ...


class Pattern(Protocol):
    """What RE2 and ``re`` have in common."""

    @property
    def groups(self) -> int: ...
    def search(self, text: str, /) -> Match | None: ...
    def findall(self, text: str, /) -> list[str] | list[tuple[str, ...]]: ...
    def split(self, text: str, /) -> list[str]: ...


class PatternError(ValueError):
    """A pattern that cannot be used; the message quotes it and says why."""


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> Pattern:
    """An RE2 pattern, or `PatternError`."""
    import re2  # 10 ms that most commands never need

    if len(pattern) > _MAX_PATTERN:
        raise PatternError(f"a pattern of {len(pattern):,} characters is too long (at most {_MAX_PATTERN:,})")
    options = re2.Options()
    options.log_errors = False
    try:
        compiled: Pattern = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "refused"
        if isinstance(reason, bytes):
            reason = reason.decode(errors="replace")
        raise PatternError(f"{quote(pattern)} is no RE2 pattern: {reason}{_remedy(pattern)}") from None
    except UnicodeEncodeError:
        raise PatternError(f"{quote(pattern)} is no RE2 pattern: lone surrogates are not text") from None
    return compiled


def _remedy(pattern: str) -> str:
    if re.search(r"\(\?(?:=|!|<=|<!)", pattern):
        return " (RE2 has no lookaround: split it into two rules, one of them negated)"
    if re.search(r"\\[1-9]|\(\?P=", pattern):
        return " (RE2 has no backreferences)"
    return ""


_CLASSES_OUTSIDE = {
    "d": r"\p{Nd}",
    "D": r"\P{Nd}",
    "w": r"[\p{L}\p{N}_]",
    "W": r"[^\p{L}\p{N}_]",
    "s": r"[\t-\r\x1c-\x1f\x85\p{Z}]",
    "S": r"[^\t-\r\x1c-\x1f\x85\p{Z}]",
}
_CLASSES_INSIDE = {
    "d": r"\p{Nd}",
    "D": r"\P{Nd}",
    "w": r"\p{L}\p{N}_",
    "s": r"\t-\r\x1c-\x1f\x85\p{Z}",
}
_SAFE_ESCAPES = frozenset("AabBfnrtvxdDwWsS")


class _Translation(NamedTuple):
    """A pattern for RE2, and what must hold of a text for RE2 to answer as ``re`` does."""

    pattern: str
    ascii_only: bool
    """It tells words apart or ignores case, where RE2 knows ASCII alone."""
    ends: bool
    """It holds a ``$``, which in ``re`` also stands before a last newline."""


_LEADING_FLAGS = re.compile(r"\(\?[ims]+\)")


@lru_cache(maxsize=512)
def _translate(pattern: str) -> _Translation:
    """Raises `NeedsIsolationError` for what RE2 may read differently."""
    flags = _LEADING_FLAGS.match(pattern)
    flagged = flags[0] if flags else ""
    if "i" in flagged and not pattern.isascii():
        raise _isolate(pattern)
    out: list[str] = [flagged]
    inside = False
    boundary = end = False
    position = len(flagged)
    while position < len(pattern):
        char = pattern[position]
        following = pattern[position + 1 : position + 2]
        if char == "\\":
            if following in _CLASSES_OUTSIDE:
                table = _CLASSES_INSIDE if inside else _CLASSES_OUTSIDE
                if following not in table:
                    raise _isolate(pattern)
                out.append(table[following])
            elif following.isalnum() and following not in _SAFE_ESCAPES:
                raise _isolate(pattern)
            elif following == "b" and inside:
                out.append(r"\x08")
            else:
                boundary = boundary or following in ("b", "B")
                out.append(char + following)
            position += 2
            continue
        if inside:
            if char == "]" and pattern[position - 1] != "[" and pattern[position - 2 : position] != "[^":
                inside = False
            elif char == "[":
                char = r"\["  # re knows no [:classes:]
        elif char == "[":
            inside = True
        elif char == "$":
            if following not in ("", ")", "|"):
                raise _isolate(pattern)
            end = True
        elif (
            (char == "(" and following == "?" and pattern[position + 2 : position + 3] not in (":", "P"))
            or (char == "{" and following == ",")
            or (char in "*+?}" and following == "+")
        ):
            raise _isolate(pattern)
        out.append(char)
        position += 1
    return _Translation("".join(out), boundary or "i" in flagged, end and "m" not in flagged)


def _isolate(pattern: str) -> NeedsIsolationError:
    return NeedsIsolationError(
        f"the pattern {quote(pattern)} means something only Python's re knows (lookaround, backreference, inline "
        "flag); it may hang, so it runs in a worker process alone"
    )


def compile_python_pattern(pattern: str, text: str, *, consuming: bool) -> Pattern:
    """A pattern of Python's ``re``, ready for ``text``, with the answer ``re`` would give.

    ``consuming`` says that the matched text itself is wanted, not only whether there is a match.
    Raises ``re.error`` for what is no pattern at all, `NeedsIsolationError` for what only ``re``
    can answer.
    """
    _check_python_pattern(pattern)
    translated, ascii_only, ends = _translate(pattern)
    if ascii_only and not text.isascii():
        raise _isolate(pattern)
    if ends and text.endswith("\n"):
        if consuming:
            raise _isolate(pattern)
        translated = re.sub(r"(?<!\\)((?:\\\\)*)\$(?=[)|]|\Z)", r"\1(?:\\n?\\z)", translated)
    try:
        return compile_pattern(translated)
    except PatternError:
        raise _isolate(pattern) from None


@lru_cache(maxsize=512)
def _check_python_pattern(pattern: str) -> None:
    try:
        with warnings.catch_warnings(action="ignore"):  # "possible nested set" and the like
            re.compile(pattern)
    except (RecursionError, OverflowError) as error:
        raise re.error(str(error) or "nested too deeply") from None
