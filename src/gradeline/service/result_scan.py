"""Finds the results of a run page by page; whatever the filter and the size of the run, a page looks at a bounded
number of results and gives a cursor to continue from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from msgspec import Struct

from gradeline.errors import Outcome
from gradeline.model.response import ResponseStatus
from gradeline.service.result_texts import Matcher, Texts, Wanted, glance
from gradeline.store.database import Database, Dialect, Value

TEXTS_EXAMINED = 5_000
"""Results whose texts a page searches, in addition to those that it returns; one with long texts counts as several."""
ROWS_EXAMINED = 2_000
"""Results that a page examines where no texts are searched. Each is a lookup by case key, and neighbours in a large
run have keys that are far apart in its index."""
_TEXTS_AT_ONCE = 2_000
_FIRST_TEXTS = 250
"""Texts that the first statement looks at; each further one looks at twice as many, as long as matches are few."""
_CHARS_OF_A_TEXT = 5_000
_CHARS_AT_ONCE = 8_000_000
_ROWS_AT_ONCE = 500


class Place(NamedTuple):
    """Where a result stands in its run. Results are ordered by it."""

    position: int
    case: str
    repeat: int


BEGINNING = Place(-1, "", -1)


class Range(NamedTuple):
    """Numbers from one to another, both included; None: no end."""

    low: float | None = None
    high: float | None = None


ANY = Range()


class ResultFilter(Struct, frozen=True, kw_only=True):
    """Which results are wanted: those that all that is named here holds for."""

    status: ResponseStatus | None = None
    grader: str | None = None
    outcome: Outcome | None = None
    """What the grader said; without a grader, what any of them said."""
    score: Range = ANY
    """Of the grader, which must be named."""
    latency_ms: Range = ANY
    """Of a successful response, as everywhere."""
    tag: str | None = None
    """A part of one of the case's tags."""
    q: str | None = None
    """A text in the case's key, input or expected output, in the answer or its error, in any case."""

    @property
    def reads_texts(self) -> bool:
        return self.texts != Wanted()

    @property
    def is_indexed(self) -> bool:
        """Whether a block index can leave out results."""
        named = (self.status, self.grader, self.outcome, self.tag)
        return self.latency_ms != ANY or any(value is not None for value in named)

    @property
    def texts(self) -> Wanted:
        return Wanted(self.tag, self.q)


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

    @property
    def texts(self) -> Texts:
        return Texts(self.place.case, self.sample, self.response)


class _Seen(NamedTuple):
    """A result that a statement came by."""

    place: Place
    size: int
    """Characters of its texts, where those are looked at."""
    likely: bool
    """Whether they may match."""


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
        self,
        run: str,
        source: str,
        where: ResultFilter,
        start: Place = BEGINNING,
        *,
        skip: int = 0,
        limit: int = 100,
        repeats: int = 1,
        stretches: Iterable[tuple[int, int]] | None = None,
    ) -> Found:
        """The results behind ``start`` that match, without the first ``skip`` of them.

        ``stretches`` are the positions (first and end) outside of which no result behind ``start`` matches.
        """
        found: list[Place] = []
        place, looked_at, allowed, texts = start, 0, limit, _FIRST_TEXTS
        allowed += TEXTS_EXAMINED if where.reads_texts else ROWS_EXAMINED
        if skip and where == ResultFilter():
            allowed += skip
            place, skip = self._skipped(source, start, skip, allowed // repeats)
        for first, end in self._whole(source, start) if stretches is None else stretches:
            place = max(place, Place(first, "", -1))
            while place.position < end:
                if looked_at >= allowed:
                    return Found(found, place, skip)
                # one more than requested: it shows that there is a next page
                missing = skip + limit + 1 - len(found)
                most = min(texts, _TEXTS_AT_ONCE) if where.reads_texts else missing
                edge = min(end, place.position + max(1, (allowed - looked_at) // repeats))
                seen = self._seen(run, source, where, place, edge, most)
                reached = seen[-1].place if len(seen) == most else Place(edge, "", -1)
                looked_at += max(len(seen), (reached.position - place.position) * repeats)
                place, texts = reached, 2 * texts
                if where.reads_texts:
                    looked_at += sum(one.size // _CHARS_OF_A_TEXT for one in seen)
                    likely = [one for one in seen if one.likely]
                    rows = list(islice(self._matching(source, likely, where), missing))
                else:
                    rows = [one.place for one in seen]
                found += rows[skip:]
                skip -= min(skip, len(rows))
                if len(found) > limit:
                    return Found(found[:limit], found[limit - 1])
        return Found(found, None)

    def _skipped(self, source: str, start: Place, skip: int, positions: int) -> tuple[Place, int]:
        """The last of the results to skip, where no filter is set; ``start`` where there are fewer."""
        rows = self._database.read(
            f"""SELECT samples.position, samples.case_key, responses.repeat
            FROM {joined("responses", self._database.dialect)} AND samples.run = ?
                AND samples.position >= ? AND samples.position < ?
                AND (samples.position, samples.case_key, responses.repeat) > (?, ?, ?)
            ORDER BY samples.position, samples.case_key, responses.repeat LIMIT 1 OFFSET ?""",  # noqa: S608 - made of constants
            source,
            source,
            start.position,
            max(start.position, 0) + positions,
            *start,
            skip - 1,
        )
        return (Place(*rows[0]), 0) if rows else (start, skip)

    def _whole(self, source: str, start: Place) -> Iterator[tuple[int, int]]:
        """All positions of a run from a place on."""
        ((last,),) = self._database.read("SELECT max(position) FROM samples WHERE run = ?", source)
        if last is not None:
            yield max(start.position, 0), last + 1

    def _seen(self, run: str, source: str, where: ResultFilter, place: Place, edge: int, limit: int) -> list[_Seen]:
        """The results behind a place that all but their texts let through, with what a glance at those tells."""
        size, likely, looked_for = "0", "1 = 1", list[Value]()
        if where.reads_texts:
            size = "length(samples.sample) + length(responses.response)"
            likely, looked_for = glance(where.texts, self._database.dialect.name)
        conditions, values = _conditions(run, where, self._database.dialect)
        rows = self._database.read(
            f"""SELECT samples.position, samples.case_key, responses.repeat, {size},
                CASE WHEN {likely} THEN 1 ELSE 0 END
            FROM {joined("responses", self._database.dialect)} AND samples.run = ?
                AND samples.position >= ? AND samples.position < ?
                AND (samples.position, samples.case_key, responses.repeat) > (?, ?, ?) {conditions}
            ORDER BY samples.position, samples.case_key, responses.repeat LIMIT ?""",  # noqa: S608 - made of constants
            *looked_for,
            source,
            source,
            place.position,
            edge,
            *place,
            *values,
            limit,
        )
        return [_Seen(Place(*row[:3]), row[3], bool(row[4])) for row in rows]

    def _matching(self, source: str, seen: Sequence[_Seen], where: ResultFilter) -> Iterator[Place]:
        """The places whose texts match; no more are read than are asked for, or few more."""
        matches = Matcher(where.texts)
        return (body.place for body in self._bodies(source, _by_size(seen)) if matches(body.texts))

    def bodies(self, source: str, places: Sequence[Place]) -> Iterator[Body]:
        """The texts of results, some at a time: an answer may be as long as ten million characters."""
        return self._bodies(source, self._parts(source, places))

    def _bodies(self, source: str, parts: Iterable[Sequence[Place]]) -> Iterator[Body]:
        for part in parts:
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
            yield from _by_size(_Seen(place, sizes.get(place[1:], 0), likely=True) for place in some)


def _by_size(seen: Iterable[_Seen]) -> Iterator[list[Place]]:
    """The places in parts whose texts can be in memory together."""
    part: list[Place] = []
    room = _CHARS_AT_ONCE
    for place, size, _ in seen:
        if part and (size > room or len(part) == _ROWS_AT_ONCE):
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


def fence(dialect: Dialect) -> str:
    """Ends a query inside another: PostgreSQL does not look through an offset, and so takes its rows one by one, by an
    index; it would else read all rows of the run for some pages, and sort them."""
    return "" if dialect.name == "sqlite" else "OFFSET 0"


def joined(table: str, dialect: Dialect) -> str:
    """Cases with their rows of a table, those of one run, as far as ``WHERE``; the run is the one value.

    Both databases go from case to case, in the order of an index.
    """
    matching = f"{table}.run = ? AND {table}.case_key = samples.case_key"
    if dialect.name == "sqlite":
        return f"samples CROSS JOIN {table} WHERE {matching}"
    rows = f"SELECT * FROM {table} WHERE {matching} {fence(dialect)}"  # noqa: S608 - made of constants
    return f"samples CROSS JOIN LATERAL ({rows}) AS {table} WHERE true"


def _conditions(run: str, where: ResultFilter, dialect: Dialect) -> tuple[str, list[Value]]:
    sql, values = "", list[Value]()
    if where.status is not None:
        sql += " AND responses.status = ?"
        values.append(where.status)
    if where.latency_ms != ANY:
        within, ends = _within("responses.latency_ms", where.latency_ms)
        sql += f" AND responses.status = 'success'{within}"
        values += ends
    if where.grader is not None or where.outcome is not None:
        of_grade, of_grade_values = _conditions_on_a_grade(where)
        sql += (
            " AND EXISTS (SELECT 1 FROM grades WHERE grades.run = ? AND grades.case_key = samples.case_key"  # noqa: S608 - made of constants
            f" AND grades.repeat = responses.repeat{of_grade} {fence(dialect)})"
        )
        values += [run, *of_grade_values]
    return sql, values


def _conditions_on_a_grade(where: ResultFilter) -> tuple[str, list[Value]]:
    sql, values = "", list[Value]()
    if where.grader is not None:
        sql += " AND grades.grader = ?"
        values.append(where.grader)
    if where.outcome is not None:
        sql += " AND grades.outcome = ?"
        values.append(where.outcome.value)
    within, ends = _within("grades.score", where.score)
    return sql + within, values + ends


def _within(column: str, wanted: Range) -> tuple[str, list[Value]]:
    sql, values = "", list[Value]()
    for sign, end in ((">=", wanted.low), ("<=", wanted.high)):
        if end is not None:
            sql += f" AND {column} {sign} ?"
            values.append(end)
    return sql, values
