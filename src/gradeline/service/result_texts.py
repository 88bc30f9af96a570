"""Which results hold a text: a glance that the database takes at what is stored, and the look that decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Literal, NamedTuple
from unicodedata import category

import msgspec
from msgspec import Struct

from gradeline.rest_types import join_turns
from gradeline.store.database import Value

FOLDED_INTO_ASCII = "ßİŉſǰẖẗẘẙẚẞ\u212aﬀﬁﬂﬃﬄﬅﬆ"
"""The characters beyond ASCII that `str.casefold` makes (partly) ASCII of; U+212A is the Kelvin sign."""


class Wanted(NamedTuple):
    """What is looked for."""

    tag: str | None = None
    """A part of one of the case's tags."""
    q: str | None = None
    """A text in the case's key, input or expected output, in the answer or its error, in any case."""


class Texts(NamedTuple):
    """The texts of a result, as they are stored."""

    case: str
    sample: str
    response: str


class Glance(NamedTuple):
    """A condition over ``samples`` and ``responses`` that holds for every result that matches, and for few others."""

    condition: str
    values: list[Value]


class _Sql(NamedTuple):
    """What the databases write differently. Their lower case is that of ASCII; other letters are left alone."""

    find: str
    lower: str
    size: str
    """In bytes."""


_SQL = {
    "sqlite": _Sql("instr", "lower({})", "length(CAST({} AS BLOB))"),
    # in the database's own collation a Turkish I would become another letter
    "postgresql": _Sql("strpos", 'lower({} COLLATE "C")', "octet_length({})"),
}
_COLUMNS = ("samples.case_key", "samples.sample", "responses.response")


def glance(wanted: Wanted, dialect: Literal["sqlite", "postgresql"]) -> Glance:
    """What the database can tell without reading JSON. What it lets through, a `Matcher` must look at."""
    sql = _SQL[dialect]
    parts: list[Glance] = []
    if wanted.tag is not None and (piece := _longest_piece(wanted.tag, _is_written_plainly)):
        parts.append(Glance(f"{sql.find}(samples.sample, ?) > 0", [piece]))
    if wanted.q is not None and (piece := _longest_piece(wanted.q.casefold(), _is_lowered_plainly)):
        parts.append(_joined(" OR ", [_holds(column, piece, sql) for column in _COLUMNS]))
    return _joined(" AND ", parts) if parts else Glance("1 = 1", [])


class Matcher:
    """Whether a result has the tag and the text that are looked for."""

    def __init__(self, wanted: Wanted) -> None:
        self._tag = wanted.tag
        self._q = None if wanted.q is None else wanted.q.casefold()
        self._sample = msgspec.json.Decoder(_SampleTexts)
        self._response = msgspec.json.Decoder(_ResponseTexts)

    def __call__(self, stored: Texts) -> bool:
        sample = self._sample.decode(stored.sample)
        if self._tag is not None and not any(self._tag in tag for tag in sample.tags):
            return False
        if self._q is None:
            return True
        response = self._response.decode(stored.response)
        texts = (
            stored.case,
            join_turns(sample.input),
            "" if sample.ground_truth is None else join_turns(sample.ground_truth),
            response.text or "",
            "" if response.error is None else response.error.message,
        )
        return any(self._q in text.casefold() for text in texts)


class _SampleTexts(Struct):
    input: str | list[str]
    ground_truth: str | list[str] | None = None
    tags: tuple[str, ...] = ()


class _ErrorText(Struct):
    message: str = ""


class _ResponseTexts(Struct):
    text: str | None = None
    error: _ErrorText | None = None


def _holds(column: str, piece: str, sql: _Sql) -> Glance:
    """The column has the piece in it, or a character that may stand for a part of it ("ß" for "ss")."""
    found = f"{sql.find}({sql.lower.format(column)}, ?) > 0"
    stand_ins = [one for one in FOLDED_INTO_ASCII if set(one.casefold()) & set(piece)]
    if stand_ins:
        # most texts are ASCII, which is quickly told
        any_stand_in = " OR ".join([f"{sql.find}({column}, ?) > 0"] * len(stand_ins))
        found += f" OR length({column}) <> {sql.size.format(column)} AND ({any_stand_in})"
    return Glance(found, [piece, *stand_ins])


def _joined(word: str, parts: Sequence[Glance]) -> Glance:
    condition = word.join(part.condition for part in parts)
    return Glance(f"({condition})", [value for part in parts for value in part.values])


def _longest_piece(text: str, fits: Callable[[str], bool]) -> str:
    """The longest part of a text all of whose characters fit; empty where none does."""
    parts = groupby(text, key=fits)
    return max(("".join(part) for fit, part in parts if fit), key=len, default="")


def _is_written_plainly(character: str) -> bool:
    """Whether stored JSON has the character as it is: all but controls, quotes and backslashes."""
    return character >= " " and character not in '"\\'


def _is_lowered_plainly(character: str) -> bool:
    """Whether the databases fold it as Python does, but for `FOLDED_INTO_ASCII`: ASCII, and letters without case."""
    return _is_written_plainly(character) and (character.isascii() or category(character) == "Lo")
