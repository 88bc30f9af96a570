"""Regular expressions that cannot hang: RE2, and the patterns written for Python's ``re``.

A pattern of ours is an RE2 pattern. A pattern of a letta suite was written for ``re``; it runs
on RE2 where both are known to give the same answer, and asks for a killable worker where not.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from threading import Lock
from time import perf_counter_ns
from typing import NamedTuple, Protocol, cast

from gradeline.errors import NeedsIsolationError, TooLargeError
from gradeline.model import quote
from gradeline.parsing.isolation import MOST_NS, is_killable, needs_worker, too_costly

_MAX_PATTERN = 10_000
MAX_MATCHES = 200_000
"""How many matches of one pattern are looked at: RE2 takes 4 µs for each."""


class Match(Protocol):
    def group(self, group: int = 0, /) -> str | None: ...
    def groups(self) -> tuple[str | None, ...]: ...
    def span(self) -> tuple[int, int]: ...


class Pattern(Protocol):
    """What RE2 and ``re`` have in common."""

    @property
    def groups(self) -> int: ...
    def search(self, text: str, /) -> Match | None: ...
    def findall(self, text: str, /) -> list[str] | list[tuple[str, ...]]: ...
    def finditer(self, text: str, /) -> Iterator[Match]: ...


class PatternError(ValueError):
    """A pattern that cannot be used; the message quotes it and says why."""


_STATE_NS = 30
"""What RE2 takes for one character and one state of a pattern, once its cache of states is full."""


class _Bounded:
    """An RE2 pattern that raises `NeedsIsolationError` for a text that it may take too long for.

    RE2 is linear in the text, times the size of the pattern. To find all matches is quadratic in the text: the search
    for each may read to the end of it.
    """

    def __init__(self, pattern: str, compiled: Pattern) -> None:
        self._pattern = pattern
        self._compiled = compiled
        self._ns_per_char = pattern_states(pattern) * _STATE_NS
        self.groups = compiled.groups

    def search(self, text: str, /) -> Match | None:
        if len(text) * self._ns_per_char > MOST_NS:
            self._check(len(text))
        return self._compiled.search(text)

    def findall(self, text: str, /) -> list[str] | list[tuple[str, ...]]:
        self._check(len(text) ** 2)
        return self._compiled.findall(text)

    def finditer(self, text: str, /) -> Iterator[Match]:
        self._check(len(text))
        began = perf_counter_ns()
        for match in self._compiled.finditer(text):
            yield match
            if too_costly(perf_counter_ns() - began):
                raise needs_worker(f"the search for all matches of {quote(self._pattern)}")

    def _check(self, chars: int) -> None:
        if too_costly(chars * self._ns_per_char):
            raise needs_worker(f"the pattern {quote(self._pattern)}")


_STATE_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+\]|\{(\d{1,9})(,?)(\d{0,9})\}|.", re.DOTALL)
_CLASS_STATES = 10.0
"""States of a character class; those of Unicode have more, of which few are looked at for one character."""


def pattern_states(pattern: str) -> float:
    """About how many states a regular expression has: what is repeated n times counts n times."""
    groups = [0.0]
    last = 0.0
    for token in _STATE_TOKEN.finditer(pattern):
        text = token[0]
        if text == "(":
            groups.append(0.0)
            last = 0.0
        elif text == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif token[1] is not None:
            times = max(float(token[1]), float(token[3] or 0), 1.0)
            groups[-1] += last * (times - 1)
            last *= times
        else:
            last = _CLASS_STATES if len(text) > 1 else 1.0
            groups[-1] += last
    return sum(groups)


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> Pattern:
    """An RE2 pattern, or `PatternError`."""
    return _Bounded(pattern, compile_trusted_pattern(pattern))


@lru_cache(maxsize=512)
def compile_trusted_pattern(pattern: str) -> Pattern:
    """An RE2 pattern that is known to be quick on every text, or `PatternError`."""
    import re2  # 10 ms that most commands never need

    if len(pattern) > _MAX_PATTERN:
        raise PatternError(_too_long(pattern))
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


def matches(pattern: Pattern, text: str) -> Iterator[Match]:
    """The matches of a pattern one after the other; empty ones are none. `TooLargeError` past `MAX_MATCHES`."""
    found = 0
    for match in pattern.finditer(text):
        if match.group():
            found += 1
            if found > MAX_MATCHES:
                raise TooLargeError(f"the pattern matches more than {MAX_MATCHES:,} times")
            yield match


def _too_long(pattern: str) -> str:
    return f"a pattern of {len(pattern):,} characters is too long (at most {_MAX_PATTERN:,}): {quote(pattern, 40)}"


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
_ANYTHING = frozenset({r"[\s\S]", r"[\S\s]", r"[\d\D]", r"[\D\d]", r"[\w\W]", r"[\W\w]"})
_SAFE_ESCAPES = frozenset("Aabfnrtvx")
"""Letters behind a backslash that RE2 reads as ``re`` does. ``\\B`` is none: at the empty text they differ."""

_TOKEN = re.compile(
    r"""
      (?P<escape> \\ (?: x[0-9a-fA-F]{2} | . ) )
    | (?P<set> \[ \^? \]? (?: \\. | [^\]\\] )*+ \] )
    | (?P<open> \( (?: \?: | \?P<[^>]*+> | (?!\?) ) )
    | (?P<close> \) )
    | (?P<either> \| )
    | (?P<repeat> (?P<times> [*+?] | \{\d++\} | \{\d*+,\d*+\} ) (?P<manner> [?+]? ) )
    | (?P<start> \^ )
    | (?P<end> \$ )
    | (?P<strange> \(\? )
    | (?P<char> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_SET_PART = re.compile(r"\\(?:x[0-9a-fA-F]{2}|.)|.", re.DOTALL)
_LEADING_FLAGS = re.compile(r"\(\?[ims]+\)")
_FOREIGN_WORD_CHAR = re.compile(r"[^\W\x00-\x7f]|\u0345")
"""A word character beyond ASCII, and the one mark that is a letter in another case."""


class _Translation(NamedTuple):
    """A pattern for RE2, and when RE2 answers with it as ``re`` does."""

    pattern: str
    before_newline: str
    """The same for a text that ends in a newline, before which a ``$`` of ``re`` stands too."""
    classes: bool
    """It holds a class such as ``\\w``, of which each engine has its own Unicode tables."""
    words: bool
    """It tells words apart or ignores case, where RE2 knows ASCII alone."""
    ends: bool
    """It holds a ``$`` that stands before a last newline."""
    ends_midway: bool
    """Something may follow such a ``$``."""
    empty_loop: bool
    """A group is repeated that may match nothing: what such a group captures differs."""


class _Group:
    """A group while it is read. It is solid when no alternative of it matches the empty text."""

    def __init__(self) -> None:
        self.solid = True
        self.branch_solid = False
        self.ends = False

    def close_branch(self) -> None:
        self.solid = self.solid and self.branch_solid
        self.branch_solid = False


@lru_cache(maxsize=512)
def _translate(pattern: str) -> _Translation:
    """Raises `NeedsIsolationError` for what RE2 may read differently."""
    leading = _LEADING_FLAGS.match(pattern)
    flags = leading[0] if leading else ""
    if "i" in flags and not pattern.isascii():
        raise _isolate(pattern)
    tokens = list(_TOKEN.finditer(pattern, len(flags)))
    out = [flags]
    out_before_newline = [flags]
    groups = [_Group()]
    classes = boundary = ends = ends_midway = empty_loop = False
    for index, token in enumerate(tokens):
        kind = token.lastgroup
        text = token[0]
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        at_tail = following is None or following.lastgroup in ("close", "either")
        solid = False
        loose = text
        if kind == "escape":
            text = loose = _escape(pattern, text)
            classes = classes or text != token[0]
            boundary = boundary or text == r"\b"
            solid = text not in (r"\b", r"\A", r"\z")
        elif kind == "set":
            text = loose = _set(pattern, text)
            classes = classes or r"\p" in text.lower()
            solid = True
        elif kind == "char":
            solid = True
        elif kind == "open":
            groups.append(_Group())
        elif kind == "either":
            groups[-1].close_branch()
        elif kind == "close":
            group = groups.pop()
            group.close_branch()
            solid = group.solid
            empty_loop = empty_loop or (not solid and _repeats(following))
            ends_midway = ends_midway or (group.ends and not at_tail)
            groups[-1].ends = groups[-1].ends or group.ends
        elif kind == "end" and "m" not in flags:
            ends = groups[-1].ends = True
            ends_midway = ends_midway or not at_tail
            loose = r"(?:\n?\z)"
        elif kind == "strange" or (kind == "repeat" and (token["manner"] == "+" or text.startswith("{,"))):
            raise _isolate(pattern)
        if solid and not _may_skip(following):
            groups[-1].branch_solid = True
        out.append(text)
        out_before_newline.append(loose)
    return _Translation(
        "".join(out), "".join(out_before_newline), classes, boundary or "i" in flags, ends, ends_midway, empty_loop
    )


def _escape(pattern: str, escape: str) -> str:
    letter = escape[1]
    if letter in _CLASSES_OUTSIDE:
        return _CLASSES_OUTSIDE[letter]
    if letter == "Z":
        return r"\z"
    if letter.isalnum() and letter not in _SAFE_ESCAPES:
        raise _isolate(pattern)
    return escape


def _set(pattern: str, text: str) -> str:
    if text in _ANYTHING:
        return "(?s:.)"
    opening = "[^" if text.startswith("[^") else "["
    out = [opening]
    for part in _SET_PART.findall(text[len(opening) : -1]):
        letter = part[1:2]
        if letter in _CLASSES_INSIDE:
            out.append(_CLASSES_INSIDE[letter])
        elif letter == "b":
            out.append(r"\x08")
        elif letter.isalnum() and letter not in _SAFE_ESCAPES:
            raise _isolate(pattern)
        else:
            out.append(f"\\{part}" if part in ("[", "]") else part)  # re knows no [:classes:]
    return "".join(out) + "]"


def _repeats(token: re.Match[str] | None) -> bool:
    """Whether what stands before the token may match more than once."""
    return token is not None and token.lastgroup == "repeat" and token["times"] != "?"


def _may_skip(token: re.Match[str] | None) -> bool:
    """Whether what stands before the token may be left out."""
    return token is not None and token.lastgroup == "repeat" and token["times"] != "+"


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
    try:
        return _compile_for_re2(pattern, text, consuming=consuming)
    except NeedsIsolationError:
        if not is_killable():
            raise
        return compile_re(pattern)


def _compile_for_re2(pattern: str, text: str, *, consuming: bool) -> Pattern:
    if len(pattern) > _MAX_PATTERN:
        raise NeedsIsolationError(f"{_too_long(pattern)}; only a worker process may run it")
    _check_python_pattern(pattern)
    translation = _translate(pattern)
    before_newline = translation.ends and text.endswith("\n")
    if (
        (before_newline and (consuming or translation.ends_midway))
        or (consuming and translation.empty_loop)
        or not _same_characters(text, translation)
    ):
        raise _isolate(pattern)
    try:
        return compile_pattern(translation.before_newline if before_newline else translation.pattern)
    except PatternError:
        raise _isolate(pattern) from None


def _same_characters(text: str, translation: _Translation) -> bool:
    """Whether both engines see the same in each character of the text."""
    if text.isascii():
        return True
    distinct = "".join(sorted(set(text)))
    try:
        distinct.encode()
    except UnicodeEncodeError:  # RE2 reads UTF-8, which has no lone surrogates
        return False
    if translation.words and _FOREIGN_WORD_CHAR.search(distinct):
        return False
    return not translation.classes or all(
        re.findall(rf"\{letter}", distinct) == compile_trusted_pattern(_CLASSES_OUTSIDE[letter]).findall(distinct)
        for letter in "dws"
    )


@lru_cache(maxsize=512)
def compile_re(pattern: str) -> Pattern:
    """A pattern for Python's ``re`` itself, which may hang: only for a worker process."""
    with warnings.catch_warnings(action="ignore"):
        return cast(Pattern, re.compile(pattern))


_quiet = Lock()
"""Warnings are switched off for the whole process at a time."""


@lru_cache(maxsize=512)
def _check_python_pattern(pattern: str) -> None:
    try:
        with _quiet, warnings.catch_warnings(action="ignore"):  # "possible nested set" and the like
            re.compile(pattern)
    except (RecursionError, OverflowError, ValueError) as error:
        raise re.error(str(error) or "nested too deeply") from None
