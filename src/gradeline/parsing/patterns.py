"""Regular expressions with bounded time: RE2 patterns, and patterns written for Python's ``re``.

Rules use RE2 patterns. Patterns of letta suites and extractors are written for ``re``: they run on RE2 if both engines
give the same result, else in a worker process. Also Unicode normalization in linear time (`nfc`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from threading import Lock
from time import perf_counter_ns
from typing import NamedTuple, Protocol, cast
from unicodedata import normalize

from gradeline.errors import NeedsIsolationError, TooLargeError
from gradeline.model import clean_text, quote
from gradeline.parsing.isolation import MOST_NS, is_killable, needs_worker, too_costly

_MAX_PATTERN = 10_000
MAX_MATCHES = 200_000
"""Maximum matches of one pattern: RE2 takes 4 µs for each."""


class Match(Protocol):
    def group(self, group: int = 0, /) -> str | None: ...
    def groups(self) -> tuple[str | None, ...]: ...
    def span(self) -> tuple[int, int]: ...


class Pattern(Protocol):
    """The common interface of RE2 and ``re``."""

    @property
    def groups(self) -> int: ...
    def search(self, text: str, /) -> Match | None: ...
    def findall(self, text: str, /) -> list[str] | list[tuple[str, ...]]: ...
    def finditer(self, text: str, /) -> Iterator[Match]: ...


class PatternError(ValueError):
    """Invalid pattern; the message quotes it and says why."""


_STATE_NS = 30
"""Time of RE2 per character and pattern state once its state cache is full."""


class _BoundedPattern:
    """An RE2 pattern that raises `NeedsIsolationError` if a text may take too long.

    A search is linear in the text times the size of the pattern. Finding all matches is quadratic in the text, because
    each search may read to the end.
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
        started = perf_counter_ns()
        for match in self._compiled.finditer(text):
            yield match
            if too_costly(perf_counter_ns() - started):
                raise needs_worker(f"the search for all matches of {quote(self._pattern)}")

    def _check(self, chars: int) -> None:
        if too_costly(chars * self._ns_per_char):
            raise needs_worker(f"the pattern {quote(self._pattern)}")


_STATE_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+\]|\{(\d{1,9})(,?)(\d{0,9})\}|.", re.DOTALL)
_CLASS_STATES = 10.0
"""States of a character class; Unicode classes have more, but few are visited per character."""


def pattern_states(pattern: str) -> float:
    """Approximate number of states of a regular expression; n repetitions count n times."""
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
    """Compile an RE2 pattern; `PatternError` if it is invalid."""
    return _BoundedPattern(pattern, compile_trusted_pattern(pattern))


@lru_cache(maxsize=512)
def compile_trusted_pattern(pattern: str) -> Pattern:
    """Compile an RE2 pattern without a time bound, for patterns known to be fast on every text."""
    import re2  # takes 10 ms, and most commands never need it

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
        raise PatternError(f"{quote(pattern)} is not a valid RE2 pattern: {reason}{_remedy(pattern)}") from None
    except UnicodeEncodeError:
        raise PatternError(f"{quote(pattern)} is not a valid RE2 pattern: lone surrogates are not text") from None
    return compiled


def matches(pattern: Pattern, text: str) -> Iterator[Match]:
    """The non-empty matches of a pattern; `TooLargeError` after `MAX_MATCHES`."""
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
"""Escapes that RE2 and ``re`` read alike. Not ``\\B``: they differ on the empty string."""

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
"""A non-ASCII word character, and the one mark that is a letter in another case."""


class _Translation(NamedTuple):
    """A pattern for RE2, and the conditions under which RE2 gives the same result as ``re``."""

    pattern: str
    before_newline: str
    """The pattern for a text that ends in a newline, where ``$`` of ``re`` also matches before it."""
    classes: bool
    """It has a class such as ``\\w``, for which the engines have different Unicode tables."""
    words: bool
    """It has word boundaries or ignores case, where RE2 only supports ASCII."""
    ends: bool
    """It has a ``$`` that matches before a final newline."""
    ends_midway: bool
    """Something may follow such a ``$``."""
    empty_loop: bool
    """A repeated group may match the empty string: the engines capture differently."""


class _Group:
    """A group during parsing. It is solid if none of its alternatives matches the empty string."""

    def __init__(self) -> None:
        self.solid = True
        self.branch_solid = False
        self.ends = False

    def close_branch(self) -> None:
        self.solid = self.solid and self.branch_solid
        self.branch_solid = False


@lru_cache(maxsize=512)
def _translate(pattern: str) -> _Translation:
    """Raises `NeedsIsolationError` for a pattern that RE2 may read differently."""
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
            out.append(f"\\{part}" if part in ("[", "]") else part)  # re has no [:classes:]
    return "".join(out) + "]"


def _repeats(token: re.Match[str] | None) -> bool:
    """Whether the preceding item may match more than once."""
    return token is not None and token.lastgroup == "repeat" and token["times"] != "?"


def _may_skip(token: re.Match[str] | None) -> bool:
    """Whether the preceding item is optional."""
    return token is not None and token.lastgroup == "repeat" and token["times"] != "+"


def _isolate(pattern: str) -> NeedsIsolationError:
    return NeedsIsolationError(
        f"the pattern {quote(pattern)} uses a feature of Python's re only (lookaround, backreference, inline flag) and "
        "may hang; only a worker process may run it"
    )


def compile_python_pattern(pattern: str, text: str, *, consuming: bool) -> Pattern:
    """Compile a pattern of Python's ``re`` for ``text``, with the same result as ``re``.

    ``consuming``: the matched text itself is needed, not only whether there is a match. Raises ``re.error`` for an
    invalid pattern, `NeedsIsolationError` if only ``re`` can run it.
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
    """Whether both engines classify each character of the text alike."""
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
    """Compile a pattern with Python's ``re``, which may hang: only for worker processes."""
    with warnings.catch_warnings(action="ignore"):
        return cast(Pattern, re.compile(pattern))


_warnings_lock = Lock()
"""`catch_warnings` affects the whole process."""


@lru_cache(maxsize=512)
def _check_python_pattern(pattern: str) -> None:
    try:
        with _warnings_lock, warnings.catch_warnings(action="ignore"):  # "possible nested set" and the like
            re.compile(pattern)
    except (RecursionError, OverflowError, ValueError) as error:
        raise re.error(str(error) or "nested too deeply") from None


def is_glob(name: str) -> bool:
    """Whether a name has a wildcard: ``*`` for any characters, ``?`` for one."""
    return "*" in name or "?" in name


@lru_cache(maxsize=512)
def compile_glob(glob: str) -> Pattern:
    """A glob as an RE2 pattern for whole strings; only ``*`` and ``?`` are special."""
    wildcards = {"*": ".*", "?": "."}
    return compile_trusted_pattern(r"(?s)\A" + "".join(wildcards.get(char) or re.escape(char) for char in glob) + r"\z")


def matches_glob(name: str, glob: str) -> bool:
    """Whether a name equals another one, or matches it as a glob; case counts."""
    return name == glob or (is_glob(glob) and compile_glob(glob).search(name) is not None)


def nfc(text: str) -> str:
    """Unicode NFC in linear time.

    Python sorts combining marks in quadratic time, so a text with a run of more than 30 marks, Unicode's own limit, is
    returned unchanged.
    """
    if text.isascii() or compile_trusted_pattern(r"\p{M}{31}").search(clean_text(text).text):
        return text
    return normalize("NFC", text)
