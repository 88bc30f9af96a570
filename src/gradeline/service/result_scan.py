"""Finds the results of a run page by page; whatever the filter, a page costs no more than a bounded look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
from msgspec import Struct

from gradeline.errors import Outcome
from gradeline.model.response import ResponseStatus
from gradeline.service.result_shapes import text_of
from gradeline.store.database import Database, Value

_WINDOW = 50_000
"""Places of a run that one statement looks at."""
_WINDOWS = 2
"""Statements of a page that may end without its being full."""
_TEXTS_AT_ONCE = 500
_TEXTS = 20_000
"""Texts that a page may read to find those that match; a long one counts as several."""
_CHARS_OF_A_TEXT = 5_000
_CHARS_AT_ONCE = 8_000_000
_ROWS_AT_ONCE = 500


class Place(NamedTuple):
    """Where a result stands in its run. Results are ordered by it."""

    position: int
    case: str
    repeat: int


BEGINNING = Place(-1, "", -1)


class ResultFilter(Struct, frozen=True, kw_only=True):
    """Which results are wanted: those that all that is named here holds for."""

    status: ResponseStatus | None = None
    grader: str | None = None
    outcome: Outcome | None = None
    """What the grader said; without a grader, what any of them said."""
    tag: str | None = None
    """A part of one of the case's tags."""
    q: str | None = None
    """A text in the case's key, input or expected output, in the answer or its error, in any case."""

    @property
    def reads_texts(self) -> bool:
        return self.tag is not None or self.q is not None


class Found(NamedTuple):
    """A page: its results, where to go on from (None: nowhere), and how many are to be skipped from there."""

    places: list[Place]
    following: Place | None
    skip: int = 0


class Body(NamedTuple):
    """The stored texts of a result."""

    place: Place
    sample: str
    response: str


class GradeText(NamedTuple):
    """A stored grade."""

    grader: str
    grade: str


class ResultScan:
    """Reads the tables of records, with SQL that every database of a store understands.

    Joins are written as CROSS JOIN: SQLite then keeps to their order, which it would not always find by itself.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def cases_at(self, source: str, position: int) -> list[str]:
        """The cases at one position of a run; mostly one."""
        rows = self._database.read("SELECT case_key FROM samples WHERE run = ? AND position = ?", source, position)
        return [case for (case,) in rows]

    def page(
        self, run: str, source: str, where: ResultFilter, start: Place = BEGINNING, *, skip: int = 0, limit: int = 100
    ) -> Found:
        """The results behind ``start`` that the filter lets through, without the first ``skip`` of them."""
        ((last,),) = self._database.read("SELECT max(position) FROM samples WHERE run = ?", source)
        found: list[Place] = []
        place, windows, texts = start, 0, 0
        while last is not None and place.position <= last and windows < _WINDOWS and texts < _TEXTS:
            # one more than asked for: it tells that there is a next page
            wanted = _TEXTS_AT_ONCE if where.reads_texts else skip + limit + 1 - len(found)
            edge = max(place.position, 0) + _WINDOW
            rows = self._rows(run, source, where, place, edge, wanted)
            if len(rows) == wanted:
                place = rows[-1]
            else:
                place, windows = Place(edge, "", -1), windows + 1
            if where.reads_texts:
                rows, read = self._matching(source, rows, where)
                texts += read
            found += rows[skip:]
            skip -= min(skip, len(rows))
            if len(found) > limit:
                return Found(found[:limit], found[limit - 1])
        at_the_end = last is None or place.position > last
        return Found(found, None if at_the_end else place, 0 if at_the_end else skip)

    def _rows(self, run: str, source: str, where: ResultFilter, place: Place, edge: int, limit: int) -> list[Place]:
        conditions, values = _conditions(run, where)
        rows = self._database.read(
            f"""SELECT samples.position, samples.case_key, responses.repeat
            FROM samples CROSS JOIN responses
            WHERE samples.run = ? AND responses.run = samples.run AND responses.case_key = samples.case_key
                AND samples.position >= ? AND samples.position < ?
                AND (samples.position, samples.case_key, responses.repeat) > (?, ?, ?) {conditions}
            ORDER BY samples.position, samples.case_key, responses.repeat LIMIT ?""",  # noqa: S608 - made of constants
            source,
            place.position,
            edge,
            *place,
            *values,
            limit,
        )
        return [Place(*row) for row in rows]

    def _matching(self, source: str, places: Sequence[Place], where: ResultFilter) -> tuple[list[Place], int]:
        """The places whose texts match, and how many texts were read."""
        matches = _Matcher(where)
        found: list[Place] = []
        read = 0
        for body in self.bodies(source, places):
            read += 1 + (len(body.sample) + len(body.response)) // _CHARS_OF_A_TEXT
            if matches(body):
                found.append(body.place)
        return found, read

    def bodies(self, source: str, places: Sequence[Place]) -> Iterator[Body]:
        """The texts of results, some at a time: an answer may be as long as ten million characters."""
        for part in self._parts(source, places):
            wanted, values = _wanted(part)
            rows = self._database.read(
                f"""SELECT samples.case_key, responses.repeat, samples.sample, responses.response
                FROM {wanted} AS wanted CROSS JOIN samples CROSS JOIN responses
                WHERE samples.run = ? AND samples.case_key = wanted.column1 AND responses.run = samples.run
                    AND responses.case_key = samples.case_key AND responses.repeat = wanted.column2""",  # noqa: S608 - made of constants
                *values,
                source,
            )
            texts = {(case, repeat): (sample, response) for case, repeat, sample, response in rows}
            for place in part:
                if place[1:] in texts:  # a run may be deleted meanwhile
                    yield Body(place, *texts[place[1:]])

    def grades(self, run: str, places: Sequence[Place]) -> dict[tuple[str, int], list[GradeText]]:
        """The grades of results, by case and repeat."""
        grades: dict[tuple[str, int], list[GradeText]] = {}
        for start in range(0, len(places), _ROWS_AT_ONCE):
            wanted, values = _wanted(places[start : start + _ROWS_AT_ONCE])
            rows = self._database.read(
                f"""SELECT grades.case_key, grades.repeat, grades.grader, grades.grade
                FROM {wanted} AS wanted CROSS JOIN grades
                WHERE grades.run = ? AND grades.case_key = wanted.column1 AND grades.repeat = wanted.column2""",  # noqa: S608 - made of constants
                *values,
                run,
            )
            for case, repeat, grader, grade in sorted(rows):
                grades.setdefault((case, repeat), []).append(GradeText(grader, grade))
        return grades

    def _parts(self, source: str, places: Sequence[Place]) -> Iterator[list[Place]]:
        for start in range(0, len(places), _ROWS_AT_ONCE):
            some = places[start : start + _ROWS_AT_ONCE]
            wanted, values = _wanted(some)
            rows = self._database.read(
                f"""SELECT responses.case_key, responses.repeat, length(responses.response)
                FROM {wanted} AS wanted CROSS JOIN responses
                WHERE responses.run = ? AND responses.case_key = wanted.column1
                    AND responses.repeat = wanted.column2""",  # noqa: S608 - made of constants
                *values,
                source,
            )
            sizes = {(case, repeat): size for case, repeat, size in rows}
            yield from _by_size(some, sizes)


def _by_size(places: Iterable[Place], sizes: dict[tuple[str, int], int]) -> Iterator[list[Place]]:
    part: list[Place] = []
    room = _CHARS_AT_ONCE
    for place in places:
        size = sizes.get((place.case, place.repeat), 0)
        if part and size > room:
            yield part
            part, room = [], _CHARS_AT_ONCE
        part.append(place)
        room -= size
    if part:
        yield part


def _wanted(places: Sequence[Place]) -> tuple[str, list[Value]]:
    """Cases and repeats as a table, whose columns both databases name column1 and column2."""
    rows = ", ".join(["(CAST(? AS TEXT), CAST(? AS INTEGER))"] * len(places))
    return f"(VALUES {rows})", list(chain.from_iterable((place.case, place.repeat) for place in places))


def _conditions(run: str, where: ResultFilter) -> tuple[str, list[Value]]:
    sql, values = "", list[Value]()
    if where.status is not None:
        sql += " AND responses.status = ?"
        values.append(where.status)
    if where.grader is not None or where.outcome is not None:
        sql += (
            " AND EXISTS (SELECT 1 FROM grades WHERE grades.run = ? AND grades.case_key = samples.case_key"
            " AND grades.repeat = responses.repeat"
        )
        values.append(run)
        if where.grader is not None:
            sql += " AND grades.grader = ?"
            values.append(where.grader)
        if where.outcome is not None:
            sql += " AND grades.outcome = ?"
            values.append(where.outcome.value)
        sql += ")"
    return sql, values


class _SampleTexts(Struct):
    input: str | list[str]
    ground_truth: str | list[str] | None = None
    tags: tuple[str, ...] = ()


class _ErrorText(Struct):
    message: str = ""


class _ResponseTexts(Struct):
    text: str | None = None
    error: _ErrorText | None = None


class _Matcher:
    """Whether a result has the tag and the text that are looked for."""

    def __init__(self, where: ResultFilter) -> None:
        self._tag = where.tag
        self._q = None if where.q is None else where.q.casefold()
        self._sample = msgspec.json.Decoder(_SampleTexts)
        self._response = msgspec.json.Decoder(_ResponseTexts)

    def __call__(self, body: Body) -> bool:
        sample = self._sample.decode(body.sample)
        if self._tag is not None and not any(self._tag in tag for tag in sample.tags):
            return False
        if self._q is None:
            return True
        response = self._response.decode(body.response)
        texts = (
            body.place.case,
            text_of(sample.input),
            "" if sample.ground_truth is None else text_of(sample.ground_truth),
            response.text or "",
            "" if response.error is None else response.error.message,
        )
        return any(self._q in text.casefold() for text in texts)
