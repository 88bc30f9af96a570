"""Spans, scores and dataset items of an observability tool, kept on disk until all of them are read.

An export has the spans of a trace in any order, and scores in other files, so they are sorted in a temporary SQLite
database: memory grows with one trace, not with the export.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Literal, NamedTuple, Self, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gradeline.errors import ConfigError, DataError, Problem
from gradeline.importers.report import ImportReport, item_name
from gradeline.model import Usage, clean_data

SpanKind = Literal["trace", "agent", "llm", "tool", "retriever", "other"]
T = TypeVar("T", bound=Struct)

MAX_SPANS = 5_000
"""Maximum number of spans of a trace that are read."""
MAX_TRACE_BYTES = 64 * 1024 * 1024
"""Maximum size of the spans of a trace, as JSON."""
_COMMIT = 5_000
_SPACE = "free space in the folder for temporary files, or set SQLITE_TMPDIR to another one"
_TABLES = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    CREATE TABLE items (n INTEGER PRIMARY KEY, id TEXT UNIQUE, body BLOB);
    CREATE TABLE traces (trace TEXT PRIMARY KEY, run TEXT, item TEXT);
    CREATE TABLE spans (
        n INTEGER PRIMARY KEY, trace TEXT, id TEXT, kind TEXT, first REAL, last REAL, body BLOB,
        UNIQUE (trace, id, kind)
    );
    CREATE TABLE scores (
        n INTEGER PRIMARY KEY, id TEXT UNIQUE, trace TEXT, span TEXT, name TEXT, human INTEGER, value REAL, body BLOB
    );
"""
_SORTED = """
    CREATE INDEX spans_of_trace ON spans (trace, n);
    CREATE INDEX spans_by_id ON spans (id);
    UPDATE scores SET trace = (SELECT spans.trace FROM spans WHERE spans.id = scores.span LIMIT 1) WHERE trace IS NULL;
    CREATE INDEX scores_of_trace ON scores (trace, n);
"""


class DatasetItem(Struct, frozen=True):
    """A dataset item."""

    id: str
    place: str
    input: Any
    expected: Any = None
    metadata: dict[str, Any] = {}
    tags: tuple[str, ...] = ()


class Span(Struct, frozen=True):
    """A step of a trace, or the trace itself."""

    trace: str
    id: str
    place: str
    kind: SpanKind
    name: str = ""
    parent: str | None = None
    input: Any = None
    output: Any = None
    expected: Any = None
    error: str | None = None
    start: float | None = None
    """Seconds since the epoch."""
    end: float | None = None
    usage: Usage | None = None
    run: str | None = None
    """Name of the experiment, or of the project, of which the trace is a part."""
    item: str | None = None
    """The id of the dataset item that is its input."""
    session: str | None = None
    metadata: dict[str, Any] = {}
    tags: tuple[str, ...] = ()


class TraceScore(Struct, frozen=True):
    """A score of a trace or of a step in it, by a person or a program."""

    name: str
    place: str
    id: str | None = None
    trace: str | None = None
    span: str | None = None
    value: float | None = None
    text: str | None = None
    """The category, where the score is one."""
    is_verdict: bool = False
    """Whether the value is a yes or a no."""
    declined: bool = False
    """Whether the scorer left this response out."""
    human: bool = False
    comment: str | None = None
    author: str | None = None
    at: str | None = None


class Trace(NamedTuple):
    """The spans and scores of one trace, in the order of the source."""

    id: str
    run: str
    item: str | None
    repeat: int
    """How many traces of the run before this one answer the same dataset item."""
    spans: list[Span]
    scores: list[TraceScore]


class ScoreName(NamedTuple):
    """The range of all scores with one name, by people or by programs."""

    name: str
    human: bool
    lowest: float | None
    highest: float | None


class TraceSpool:
    """Collects the objects of an export, then returns them trace by trace. Use it in a ``with`` statement."""

    def __init__(self, report: ImportReport) -> None:
        """Objects that cannot be stored, and those that the source has twice, are reported."""
        self._report = report
        self._database = sqlite3.connect("", isolation_level=None)  # a temporary file, deleted when it is closed
        self._database.executescript(_TABLES)
        self._written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add_item(self, item: DatasetItem, what: str) -> bool:
        """Add a dataset item, ``what`` in the words of the source; False if it was reported."""
        body = self._body(item, what)
        if body is None:
            return False
        if self._write("INSERT OR IGNORE INTO items (id, body) VALUES (?, ?)", item.id, body):
            return True
        return self._report_duplicate(item, what, "SELECT body FROM items WHERE id = ?", item.id)

    def add_span(self, span: Span, what: str) -> bool:
        """Add a step of a trace, ``what`` in the words of the source; False if it was reported."""
        body = self._body(span, what)
        if body is None:
            return False
        statement = "INSERT OR IGNORE INTO spans (trace, id, kind, first, last, body) VALUES (?, ?, ?, ?, ?, ?)"
        kind = "trace" if span.kind == "trace" else "step"  # a trace may have the id of its first step
        if not self._write(statement, span.trace, span.id, kind, span.start, span.end, body):
            known = "SELECT body FROM spans WHERE trace = ? AND id = ? AND kind = ?"
            return self._report_duplicate(span, what, known, span.trace, span.id, kind)
        self._write(
            "INSERT INTO traces VALUES (?, ?, ?) ON CONFLICT (trace) DO UPDATE"
            " SET run = coalesce(run, excluded.run), item = coalesce(item, excluded.item)",
            span.trace,
            span.run,
            span.item,
        )
        return True

    def add_score(self, score: TraceScore, what: str) -> bool:
        """Add a score, ``what`` in the words of the source; False if it was reported."""
        body = self._body(score, item_name(what, score.name))
        if body is None:
            return False
        added = self._write(
            "INSERT OR IGNORE INTO scores (id, trace, span, name, human, value, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(score.id, score.trace, score.span, score.name, score.human, score.value, body),
        )
        if added or score.id is None:
            return True
        known = "SELECT body FROM scores WHERE id = ?"
        return self._report_duplicate(score, item_name(what, score.name), known, score.id)

    def add_link(self, trace: str, run: str, item: str) -> None:
        """A trace is the answer to a dataset item in an experiment."""
        self._write(
            "INSERT INTO traces VALUES (?, ?, ?) ON CONFLICT (trace) DO UPDATE"
            " SET run = excluded.run, item = excluded.item",
            trace,
            run,
            item,
        )

    def finish(self) -> None:
        """Everything was added; sort it."""
        with _disk_errors():
            if self._database.in_transaction:
                self._database.execute("COMMIT")
            self._database.executescript(_SORTED)

    def items(self) -> Iterator[DatasetItem]:
        """The dataset items, in their order."""
        for (body,) in self._rows("SELECT body FROM items ORDER BY n"):
            yield _read(DatasetItem, body)

    def item(self, id: str) -> DatasetItem | None:  # noqa: A002 - the items of a dataset have an id
        found = next(self._rows("SELECT body FROM items WHERE id = ?", id), None)
        return None if found is None else _read(DatasetItem, found[0])

    def runs(self, limit: int) -> list[str]:
        """The names of experiments and projects with traces, in the order of their first trace."""
        statement = (
            "SELECT coalesce(run, '') FROM traces JOIN spans USING (trace)"
            " GROUP BY coalesce(run, '') ORDER BY min(spans.n) LIMIT ?"
        )
        return [run for (run,) in self._rows(statement, limit)]

    def score_names(self, run: str, limit: int) -> list[ScoreName]:
        """The names of the scores in a run."""
        statement = (
            "SELECT scores.name, human, min(value), max(value) FROM scores JOIN traces USING (trace)"
            " WHERE coalesce(traces.run, '') = ? GROUP BY scores.name, human ORDER BY min(scores.n) LIMIT ?"
        )
        return [ScoreName(name, bool(human), low, high) for name, human, low, high in self._rows(statement, run, limit)]

    def score_range(self, name: str, *, human: bool) -> tuple[float | None, float | None]:
        """The lowest and highest value of a score in the whole source."""
        rows = self._rows("SELECT min(value), max(value) FROM scores WHERE name = ? AND human = ?", name, human)
        low, high = next(rows)
        return low, high

    def traces(self, run: str) -> Iterator[Trace]:
        """The traces of a run. Of a trace with too many spans the first ones are read."""
        statement = (
            "SELECT trace, item, row_number() OVER (PARTITION BY coalesce(item, 'trace ' || trace) ORDER BY n) - 1 FROM"
            " (SELECT traces.trace, item, min(spans.n) AS n FROM traces JOIN spans USING (trace)"
            " WHERE coalesce(run, '') = ? GROUP BY traces.trace) ORDER BY n"
        )
        for trace, item, repeat in self._rows(statement, run):
            spans = [_read(Span, body) for (body,) in self._bodies("spans", trace)]
            scores = [_read(TraceScore, body) for (body,) in self._bodies("scores", trace)]
            yield Trace(trace, run, item, repeat, spans, scores)

    def repeats(self, run: str) -> int:
        """The largest number of traces of one dataset item in a run."""
        statement = (
            "SELECT max(count) FROM (SELECT count(*) AS count FROM traces WHERE coalesce(run, '') = ?"
            " AND trace IN (SELECT trace FROM spans) GROUP BY coalesce(item, 'trace ' || trace))"
        )
        return int(next(self._rows(statement, run))[0] or 1)

    def times(self, run: str) -> tuple[float | None, float | None]:
        """The first and the last time in the traces of a run, in seconds since the epoch."""
        statement = (
            "SELECT min(first), max(coalesce(last, first)) FROM spans JOIN traces USING (trace)"
            " WHERE coalesce(run, '') = ?"
        )
        first, last = next(self._rows(statement, run))
        return first, last

    def span_count(self, trace: str) -> int:
        """The number of spans of a trace, of which `traces` may have read fewer."""
        return int(next(self._rows("SELECT count(*) FROM spans WHERE trace = ?", trace))[0])

    def unmatched(self) -> tuple[int, int]:
        """The numbers of scores and of experiment items whose trace is not in the source."""
        no_trace = "SELECT count(*) FROM {} WHERE trace IS NULL OR trace NOT IN (SELECT trace FROM spans)"
        scores, links = (next(self._rows(no_trace.format(table)))[0] for table in ("scores", "traces"))
        return int(scores), int(links)

    def _bodies(self, table: str, trace: str) -> Iterator[tuple[bytes]]:
        budget = MAX_TRACE_BYTES
        statement = f"SELECT body FROM {table} WHERE trace = ? ORDER BY n LIMIT {MAX_SPANS}"  # noqa: S608 - constants
        for (body,) in self._rows(statement, trace):
            budget -= len(body)
            if budget < 0:
                return
            yield (body,)

    def _rows(self, statement: str, *values: str | int) -> Iterator[tuple[Any, ...]]:
        with closing(self._database.execute(statement, values)) as cursor:
            yield from cursor

    def _body(self, value: DatasetItem | Span | TraceScore, what: str) -> bytes | None:
        """The value as it is stored; None if it cannot be, which is reported."""
        try:
            return msgspec.json.encode(clean_data(msgspec.to_builtins(value)))
        except (DataError, RecursionError) as error:
            why = error.problem.message if isinstance(error, DataError) else "is nested too deeply"
            self._report.not_mapped(value.place, what, f"{why}; leave it out of the export")
            return None

    def _report_duplicate(
        self, value: DatasetItem | Span | TraceScore, what: str, known: str, *ids: str
    ) -> Literal[False]:
        (body,) = next(self._rows(known, *ids))
        first = _read(type(value), body)
        again = self._body(replace(value, place=first.place), what)
        if again == body:
            self._report.mapped(value.place, what, "the same one, which the source has twice")
        else:
            why = f"has the id of the one at {first.place}, which is kept; give each one an id of its own"
            self._report.not_mapped(value.place, what, why)
        return False

    def _write(self, statement: str, *values: object) -> int:
        with _disk_errors():
            if not self._database.in_transaction:
                self._database.execute("BEGIN")
            count = self._database.execute(statement, values).rowcount
            self._written += 1
            if self._written % _COMMIT == 0:
                self._database.execute("COMMIT")
        return count


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise ConfigError(Problem("SOURCE", f"cannot be sorted on disk: {error}; {_SPACE}")) from None


def _read(kind: type[T], body: bytes) -> T:
    return msgspec.json.decode(body, type=kind)
