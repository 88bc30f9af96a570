"""Pages of the results of a run, with filters and a text search, in SQL that both databases understand.

Whatever the filter and the size of the run, a page examines a bounded number of results, and returns the position to
continue from. Joins are written as CROSS JOIN: SQLite then keeps their order, which it would not always choose itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import Literal, NamedTuple
from unicodedata import category

import msgspec
from msgspec import Struct

from gradeline.errors import Outcome
from gradeline.model.response import ResponseStatus
from gradeline.model.sample import join_turns
from gradeline.store.database import Database, Dialect, Value

TEXTS_EXAMINED = 5_000
"""Results whose texts a page searches, in addition to those that it returns; one with long texts counts as several."""
ROWS_EXAMINED = 1_000
"""Results that a page examines if it searches no texts. Each is a lookup by case key, and neighbours in a large run
have keys that are far apart in its index."""
_TEXTS_PER_QUERY = 2_000
_FIRST_TEXTS = 250
"""Texts that the first statement searches; each further one searches twice as many, as long as matches are few."""
_CHARS_OF_A_TEXT = 5_000
_CHARS_PER_QUERY = 8_000_000
_ROWS_PER_QUERY = 500


class ResultPosition(NamedTuple):
    """The position of a result in its run, by which results are ordered."""

    position: int
    case: str
    repeat: int


BEGINNING = ResultPosition(-1, "", -1)


class Range(NamedTuple):
    """Numbers from ``low`` to ``high``, both included; None: no limit."""

    low: float | None = None
    high: float | None = None


ANY = Range()


class TextFilter(NamedTuple):
    """What the texts of a result must contain."""

    tag: str | None = None
    """Part of one of the case's tags."""
    q: str | None = None
    """Part of the case's key, input or expected output, of the response or its error, in any case."""


class ResultFilter(Struct, frozen=True, kw_only=True):
    """Conditions on results; a result must satisfy all of them."""

    status: ResponseStatus | None = None
    grader: str | None = None
    outcome: Outcome | None = None
    """The outcome by the grader; without a grader, by any of them."""
    score: Range = ANY
    """The score by the grader, which must be named."""
    latency_ms: Range = ANY
    """The latency of a successful response."""
    tag: str | None = None
    """See `TextFilter`."""
    q: str | None = None

    @property
    def reads_texts(self) -> bool:
        return self.texts != TextFilter()

    @property
    def is_indexed(self) -> bool:
        """Whether a block index can exclude results."""
        named = (self.status, self.grader, self.outcome, self.tag)
        return self.latency_ms != ANY or any(value is not None for value in named)

    @property
    def texts(self) -> TextFilter:
        return TextFilter(self.tag, self.q)


class FoundPage(NamedTuple):
    """A page of results, the position to continue from (None: at the end), and how many to skip from there."""

    positions: list[ResultPosition]
    following: ResultPosition | None
    skip: int = 0


class ResultTexts(NamedTuple):
    """The sample and the response of a result, as they are stored."""

    position: ResultPosition
    sample: str
    response: str


class StoredGrade(NamedTuple):
    """A grade as it is stored."""

    grader: str
    grade: str


class _Candidate(NamedTuple):
    position: ResultPosition
    size: int
    """Characters of its texts, if texts are searched."""
    may_match: bool
    """Whether its texts pass the `prefilter`."""


class ResultPages:
    """Reads pages of results. ``source`` is the run whose responses a run has (`queries.response_source`)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def cases_at(self, source: str, position: int) -> list[str]:
        """The cases at one position of a run, usually one."""
        rows = self._database.read("SELECT case_key FROM samples WHERE run = ? AND position = ?", source, position)
        return [case for (case,) in rows]

    def page(
        self,
        run: str,
        source: str,
        where: ResultFilter,
        start: ResultPosition = BEGINNING,
        *,
        skip: int = 0,
        limit: int = 100,
        repeats: int = 1,
        ranges: Iterable[tuple[int, int]] | None = None,
    ) -> FoundPage:
        """The results after ``start`` that match, without the first ``skip`` of them.

        ``ranges`` are the positions (first and end) outside of which no result after ``start`` matches.
        """
        found: list[ResultPosition] = []
        at, examined, allowed, texts = start, 0, limit, _FIRST_TEXTS
        allowed += TEXTS_EXAMINED if where.reads_texts else ROWS_EXAMINED
        if skip and where == ResultFilter():
            allowed += skip
            at, skip = self._skipped(source, start, skip, allowed // repeats)
        for first, end in self._whole(source, start) if ranges is None else ranges:
            at = max(at, ResultPosition(first, "", -1))
            while at.position < end:
                if examined >= allowed:
                    return FoundPage(found, at, skip)
                # one more than requested: it shows that there is a next page
                missing = skip + limit + 1 - len(found)
                most = min(texts, _TEXTS_PER_QUERY) if where.reads_texts else missing
                edge = min(end, at.position + max(1, (allowed - examined) // repeats))
                candidates = self._candidates(run, source, where, at, edge, most)
                reached = candidates[-1].position if len(candidates) == most else ResultPosition(edge, "", -1)
                examined += max(len(candidates), (reached.position - at.position) * repeats)
                at, texts = reached, 2 * texts
                if where.reads_texts:
                    examined += sum(one.size // _CHARS_OF_A_TEXT for one in candidates)
                    likely = [one for one in candidates if one.may_match]
                    rows = list(islice(self._matching(source, likely, where), missing))
                else:
                    rows = [one.position for one in candidates]
                found += rows[skip:]
                skip -= min(skip, len(rows))
                if len(found) > limit:
                    return FoundPage(found[:limit], found[limit - 1])
        return FoundPage(found, None)

    def _skipped(self, source: str, start: ResultPosition, skip: int, positions: int) -> tuple[ResultPosition, int]:
        """The last result to skip if there is no filter; ``start`` if there are fewer results."""
        rows = self._database.read(
            f"""SELECT samples.position, samples.case_key, responses.repeat
            FROM {join_samples("responses", self._database.dialect)} AND samples.run = ?
                AND samples.position >= ? AND samples.position < ?
                AND (samples.position, samples.case_key, responses.repeat) > (?, ?, ?)
            ORDER BY samples.position, samples.case_key, responses.repeat LIMIT 1 OFFSET ?""",  # noqa: S608 - constants
            source,
            source,
            start.position,
            max(start.position, 0) + positions,
            *start,
            skip - 1,
        )
        return (ResultPosition(*rows[0]), 0) if rows else (start, skip)

    def _whole(self, source: str, start: ResultPosition) -> Iterator[tuple[int, int]]:
        """All positions of a run from ``start`` on."""
        last = last_position(self._database, source)
        if last is not None:
            yield max(start.position, 0), last + 1

    def _candidates(
        self, run: str, source: str, where: ResultFilter, after: ResultPosition, edge: int, limit: int
    ) -> list[_Candidate]:
        """The results after a position that satisfy all conditions but those on texts, which are only prefiltered."""
        size, may_match, pieces = "0", "1 = 1", list[Value]()
        if where.reads_texts:
            size = "length(samples.sample) + length(responses.response)"
            may_match, pieces = prefilter(where.texts, self._database.dialect.name)
        conditions, values = _conditions(run, where, self._database.dialect)
        rows = self._database.read(
            f"""SELECT samples.position, samples.case_key, responses.repeat, {size},
                CASE WHEN {may_match} THEN 1 ELSE 0 END
            FROM {join_samples("responses", self._database.dialect)} AND samples.run = ?
                AND samples.position >= ? AND samples.position < ?
                AND (samples.position, samples.case_key, responses.repeat) > (?, ?, ?) {conditions}
            ORDER BY samples.position, samples.case_key, responses.repeat LIMIT ?""",  # noqa: S608 - constants
            *pieces,
            source,
            source,
            after.position,
            edge,
            *after,
            *values,
            limit,
        )
        return [_Candidate(ResultPosition(*row[:3]), row[3], bool(row[4])) for row in rows]

    def _matching(self, source: str, candidates: Sequence[_Candidate], where: ResultFilter) -> Iterator[ResultPosition]:
        """The positions whose texts match, read on demand."""
        matches = TextMatcher(where.texts)
        return (texts.position for texts in self._texts(source, _chunks_by_size(candidates)) if matches(texts))

    def texts(self, source: str, positions: Sequence[ResultPosition]) -> Iterator[ResultTexts]:
        """The texts of results, some at a time: a response may have ten million characters."""
        return self._texts(source, self._chunks(source, positions))

    def _texts(self, source: str, chunks: Iterable[Sequence[ResultPosition]]) -> Iterator[ResultTexts]:
        for chunk in chunks:
            requested, values = _table_of(chunk)
            rows = self._database.read(
                f"""SELECT samples.case_key, responses.repeat, samples.sample, responses.response
                FROM {requested} AS requested CROSS JOIN samples CROSS JOIN responses
                WHERE samples.run = ? AND samples.case_key = requested.column1 AND responses.run = samples.run
                    AND responses.case_key = samples.case_key AND responses.repeat = requested.column2""",  # noqa: S608 - constants
                *values,
                source,
            )
            texts = {(case, repeat): (sample, response) for case, repeat, sample, response in rows}
            for position in chunk:
                if position[1:] in texts:  # a run may be deleted meanwhile
                    yield ResultTexts(position, *texts[position[1:]])

    def grades(self, run: str, positions: Sequence[ResultPosition]) -> dict[tuple[str, int], list[StoredGrade]]:
        """The grades of results, by case and repeat."""
        grades: dict[tuple[str, int], list[StoredGrade]] = {}
        for start in range(0, len(positions), _ROWS_PER_QUERY):
            requested, values = _table_of(positions[start : start + _ROWS_PER_QUERY])
            rows = self._database.read(
                f"""SELECT grades.case_key, grades.repeat, grades.grader, grades.grade
                FROM {requested} AS requested CROSS JOIN grades
                WHERE grades.run = ? AND grades.case_key = requested.column1
                    AND grades.repeat = requested.column2""",  # noqa: S608 - constants
                *values,
                run,
            )
            for case, repeat, grader, grade in sorted(rows):
                grades.setdefault((case, repeat), []).append(StoredGrade(grader, grade))
        return grades

    def _chunks(self, source: str, positions: Sequence[ResultPosition]) -> Iterator[list[ResultPosition]]:
        for start in range(0, len(positions), _ROWS_PER_QUERY):
            some = positions[start : start + _ROWS_PER_QUERY]
            requested, values = _table_of(some)
            rows = self._database.read(
                f"""SELECT responses.case_key, responses.repeat, length(responses.response)
                FROM {requested} AS requested CROSS JOIN responses
                WHERE responses.run = ? AND responses.case_key = requested.column1
                    AND responses.repeat = requested.column2""",  # noqa: S608 - constants
                *values,
                source,
            )
            sizes = {(case, repeat): size for case, repeat, size in rows}
            yield from _chunks_by_size(_Candidate(one, sizes.get(one[1:], 0), may_match=True) for one in some)


def last_position(database: Database, source: str) -> int | None:
    """The last position of a run's cases; None if it has none."""
    ((last,),) = database.read("SELECT max(position) FROM samples WHERE run = ?", source)
    return None if last is None else int(last)


def _chunks_by_size(candidates: Iterable[_Candidate]) -> Iterator[list[ResultPosition]]:
    """The positions in chunks whose texts fit into memory together."""
    chunk: list[ResultPosition] = []
    room = _CHARS_PER_QUERY
    for position, size, _ in candidates:
        if chunk and (size > room or len(chunk) == _ROWS_PER_QUERY):
            yield chunk
            chunk, room = [], _CHARS_PER_QUERY
        chunk.append(position)
        room -= size
    if chunk:
        yield chunk


def _table_of(positions: Sequence[ResultPosition]) -> tuple[str, list[Value]]:
    """Cases and repeats as a table, whose columns both databases name column1 and column2."""
    rows = ", ".join(["(CAST(? AS TEXT), CAST(? AS INTEGER))"] * len(positions))
    return f"(VALUES {rows})", list(chain.from_iterable((one.case, one.repeat) for one in positions))


def fence(dialect: Dialect) -> str:
    """Ends a subquery: PostgreSQL does not optimise across an offset, and so reads its rows one by one, by an index;
    otherwise it would read and sort all rows of the run for some pages."""
    return "" if dialect.name == "sqlite" else "OFFSET 0"


def join_samples(table: str, dialect: Dialect) -> str:
    """Cases joined with their rows of a table, those of one run, up to ``WHERE``; the run is the only value.

    Both databases go from case to case, in the order of an index.
    """
    matching = f"{table}.run = ? AND {table}.case_key = samples.case_key"
    if dialect.name == "sqlite":
        return f"samples CROSS JOIN {table} WHERE {matching}"
    rows = f"SELECT * FROM {table} WHERE {matching} {fence(dialect)}"  # noqa: S608 - constants
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
        of_grade, of_grade_values = _grade_conditions(where)
        sql += (
            " AND EXISTS (SELECT 1 FROM grades WHERE grades.run = ? AND grades.case_key = samples.case_key"  # noqa: S608 - constants
            f" AND grades.repeat = responses.repeat{of_grade} {fence(dialect)})"
        )
        values += [run, *of_grade_values]
    return sql, values


def _grade_conditions(where: ResultFilter) -> tuple[str, list[Value]]:
    sql, values = "", list[Value]()
    if where.grader is not None:
        sql += " AND grades.grader = ?"
        values.append(where.grader)
    if where.outcome is not None:
        sql += " AND grades.outcome = ?"
        values.append(where.outcome.value)
    within, ends = _within("grades.score", where.score)
    return sql + within, values + ends


def _within(column: str, limits: Range) -> tuple[str, list[Value]]:
    sql, values = "", list[Value]()
    for sign, end in ((">=", limits.low), ("<=", limits.high)):
        if end is not None:
            sql += f" AND {column} {sign} ?"
            values.append(end)
    return sql, values


FOLDED_INTO_ASCII = "ßİŉſǰẖẗẘẙẚẞ\u212aﬀﬁﬂﬃﬄﬅﬆ"
"""The characters beyond ASCII that `str.casefold` turns (partly) into ASCII; U+212A is the Kelvin sign."""


class Condition(NamedTuple):
    """A condition over ``samples`` and ``responses``, with its values."""

    sql: str
    values: list[Value]


class _Functions(NamedTuple):
    """Where the databases differ. Both lower-case only ASCII."""

    find: str
    lower: str
    size: str
    """In bytes."""


_FUNCTIONS = {
    "sqlite": _Functions("instr", "lower({})", "length(CAST({} AS BLOB))"),
    # in the database's own collation a Turkish I would become another letter
    "postgresql": _Functions("strpos", 'lower({} COLLATE "C")', "octet_length({})"),
}
_COLUMNS = ("samples.case_key", "samples.sample", "responses.response")


def prefilter(wanted: TextFilter, dialect: Literal["sqlite", "postgresql"]) -> Condition:
    """A condition that all matching results satisfy and few others, checked without parsing JSON.

    Results that satisfy it are then checked by a `TextMatcher`.
    """
    functions = _FUNCTIONS[dialect]
    parts: list[Condition] = []
    if wanted.tag is not None and (piece := _longest_piece(wanted.tag, _is_unescaped)):
        parts.append(Condition(f"{functions.find}(samples.sample, ?) > 0", [piece]))
    if wanted.q is not None and (piece := _longest_piece(wanted.q.casefold(), _is_lowered_alike)):
        parts.append(_join(" OR ", [_contains(column, piece, functions) for column in _COLUMNS]))
    return _join(" AND ", parts) if parts else Condition("1 = 1", [])


class TextMatcher:
    """Whether a result satisfies a text filter."""

    def __init__(self, wanted: TextFilter) -> None:
        self._tag = wanted.tag
        self._q = None if wanted.q is None else wanted.q.casefold()
        self._sample = msgspec.json.Decoder(_SampleTexts)
        self._response = msgspec.json.Decoder(_ResponseTexts)

    def __call__(self, stored: ResultTexts) -> bool:
        sample = self._sample.decode(stored.sample)
        if self._tag is not None and not any(self._tag in tag for tag in sample.tags):
            return False
        if self._q is None:
            return True
        response = self._response.decode(stored.response)
        texts = (
            stored.position.case,
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


def _contains(column: str, piece: str, functions: _Functions) -> Condition:
    """The column contains the piece, or a character that folds into a part of it ("ß" into "ss")."""
    found = f"{functions.find}({functions.lower.format(column)}, ?) > 0"
    substitutes = [one for one in FOLDED_INTO_ASCII if set(one.casefold()) & set(piece)]
    if substitutes:
        # most texts are ASCII, which is quick to see
        any_substitute = " OR ".join([f"{functions.find}({column}, ?) > 0"] * len(substitutes))
        found += f" OR length({column}) <> {functions.size.format(column)} AND ({any_substitute})"
    return Condition(found, [piece, *substitutes])


def _join(word: str, parts: Sequence[Condition]) -> Condition:
    sql = word.join(part.sql for part in parts)
    return Condition(f"({sql})", [value for part in parts for value in part.values])


def _longest_piece(text: str, fits: Callable[[str], bool]) -> str:
    """The longest part of a text whose characters all fit; empty if none does."""
    parts = groupby(text, key=fits)
    return max(("".join(part) for fit, part in parts if fit), key=len, default="")


def _is_unescaped(character: str) -> bool:
    """Whether stored JSON has the character as it is: not a control character, quote or backslash."""
    return character >= " " and character not in '"\\'


def _is_lowered_alike(character: str) -> bool:
    """Whether the databases fold it as Python does, except `FOLDED_INTO_ASCII`: ASCII, and letters without case."""
    return _is_unescaped(character) and (character.isascii() or category(character) == "Lo")
