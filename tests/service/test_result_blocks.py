"""Pages of large runs: the same results as a naive scan, by an index, and at a bounded cost whatever the size."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import enumerate as enumerate_threads
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradeline.errors import Outcome
from gradeline.model import ErrorInfo, Fault, Grade, GradeKey, Response, ResponseKey, Run, RunGrader, Sample, Storage
from gradeline.service import result_blocks, run_cache
from gradeline.service.requests import PageRequest
from gradeline.service.result_blocks import BlockIndexes
from gradeline.service.results import Results
from gradeline.service.settings import ServeSettings
from gradeline.store import SqliteStorage, open_storage, result_pages, sqlite_records
from gradeline.store.database import Database, Dialect, Row, T, Transaction, Value
from gradeline.store.result_pages import ANY, Range, ResultFilter, ResultPages, ResultPosition
from gradeline.store.rows import grade_row, response_row
from gradeline.store.sqlite_connections import SqliteDialect

sys.path.insert(0, str(Path(__file__).parent.parent))

from postgres_server import execute

CASES, REPEATS = 40, 2
EXAMINED = 7
BROKEN = ErrorInfo("connect", "no answer", Fault.INFRASTRUCTURE)
OUTCOMES = (Outcome.PASS, Outcome.FAIL, Outcome.SKIPPED, Outcome.PASS, Outcome.ERROR)


class Expected(NamedTuple):
    """A result as plain data."""

    id: str
    response: Response
    sample: Sample
    grades: dict[str, Grade]

    def matches(self, where: ResultFilter) -> bool:
        """The naive implementation of a filter."""
        latency = self.response.latency_ms if self.response.status == "success" else None
        graded = [grade for grader, grade in self.grades.items() if where.grader in (None, grader)]
        on_grades = where.grader is not None or where.outcome is not None
        return (
            where.status in (None, self.response.status)
            and (where.latency_ms == ANY or within(latency, where.latency_ms))
            and (where.tag is None or any(where.tag in tag for tag in self.sample.tags))
            and (where.q is None or where.q in f"{self.sample.input}\n{self.response.text}")
            and (
                not on_grades
                or any(
                    where.outcome in (None, grade.outcome) and (where.score == ANY or within(grade.score, where.score))
                    for grade in graded
                )
            )
        )


def within(value: float | None, wanted: Range) -> bool:
    return (
        value is not None
        and (wanted.low is None or value >= wanted.low)
        and (wanted.high is None or value <= wanted.high)
    )


def grade(outcome: Outcome, score: float) -> Grade:
    if outcome in (Outcome.PASS, Outcome.FAIL):
        return Grade("exact", "f1", outcome, score, outcome is Outcome.PASS)
    return Grade("exact", "f1", outcome, error=BROKEN if outcome is Outcome.ERROR else None)


def results() -> Iterator[Expected]:
    """Rows whose properties come in different rhythms, some only once or only near the end."""
    for number in range(CASES):
        tags = (f"part-{number % 3}",) * (number % 4 > 0) + ("needle",) * (number == 29)
        sample = Sample(f"c{number * 7 % CASES}", f"question w{number % 6}.", tags=tags)
        for repeat in range(REPEATS):
            place = REPEATS * number + repeat
            if place % 11 == 3:  # not answered
                continue
            response = Response(text=f"answer {place}.", latency_ms=float(2 ** (place % 12)))
            if place % 13 == 5 or number == 33:
                response = Response("timeout" if number == 33 else "error", error=BROKEN)
            grades = {"first": grade(OUTCOMES[place // 9 % 5], place % 21 / 20)} if place % 7 else {}
            if number > 20:
                grades["second"] = grade(OUTCOMES[place % 3], 0.42 if number == 31 else 1.0)
            yield Expected(f"{sample.case_key}~{repeat}", response, sample, grades)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    if request.param == "sqlite":
        url = str(Path(tmp_path_factory.mktemp("blocks")) / "store.db")
    else:
        url = request.getfixturevalue("postgres_database").url
    opened = open_storage(url)
    yield opened
    opened.close()
    if request.param == "postgresql":
        request.getfixturevalue("postgres_database").empty()


@pytest.fixture(scope="module")
def limits() -> Iterator[None]:
    """A small run is cut into blocks and pages as a large one is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_blocks, "_RESULTS", 8)
        patch.setattr(result_blocks, "_BLOCKS_PER_QUERY", 3)
        patch.setattr(run_cache, "_MIN_RESULTS_TO_STORE", 1)
        for module in (result_pages, result_blocks):
            patch.setattr(module, "ROWS_EXAMINED", EXAMINED)
        patch.setattr(result_pages, "TEXTS_EXAMINED", EXAMINED)
        patch.setattr(result_pages, "_FIRST_TEXTS", 3)
        yield


def database_of(storage: Storage) -> Database:
    database: Database = storage.database  # type: ignore[attr-defined]
    return database


def saved(storage: Storage, status: str = "completed") -> str:
    graders = {name: RunGrader("exact", "f1") for name in ("first", "second")}
    run = storage.save_run(Run(name="n", suite="s", status=status, graders=graders, total=CASES, repeats=REPEATS))
    for expected in results():
        case, repeat = expected.id.split("~")
        key = ResponseKey(run, case, int(repeat))
        storage.put_response(key, expected.response, expected.sample)
        for grader, given_grade in expected.grades.items():
            storage.put_grade(GradeKey(*key, grader), given_grade)
    return run


@pytest.fixture(scope="module")
def read(storage: Storage, limits: None) -> Results:
    return Results(database_of(storage), storage, ServeSettings())


@pytest.fixture(scope="module")
def indexed(storage: Storage, read: Results) -> str:
    run = saved(storage)
    wait_for_index(read, run)
    return run


@pytest.fixture(scope="module")
def going(storage: Storage, read: Results) -> str:
    """A run without an index."""
    return saved(storage, "running")


def wait_for_index(read: Results, run: str) -> None:
    read.page(run, ResultFilter(status="error"), PageRequest.of(1))
    for thread in enumerate_threads():
        if thread.name == "result_blocks":
            thread.join(20)
    stored = read.run(run)
    assert read.blocks.of(stored, run, ResultFilter(status="error"), 0) is not None


def walked(read: Results, run: str, where: ResultFilter, limit: int, skip: int) -> list[str]:
    """The results of all pages."""
    found: list[str] = []
    page = read.page(run, where, PageRequest.of(limit, skip or None))
    while True:
        found += [one.result_id for one in page.results]
        assert len(page.results) <= limit
        if page.next_cursor is None:
            return found
        page = read.page(run, where, PageRequest.of(limit, None, page.next_cursor))


@st.composite
def filters(draw: st.DrawFn) -> ResultFilter:
    ends = st.one_of(st.none(), st.sampled_from((0.0, 0.05, 0.3, 0.42, 0.5, 0.95, 1.0)))
    times = st.one_of(st.none(), st.sampled_from((0.5, 1.0, 3.0, 16.0, 100.0, 1024.0, 2048.0, 1e6)))
    grader = draw(st.sampled_from((None, None, "first", "second", "unknown")))
    return ResultFilter(
        status=draw(st.sampled_from((None, None, "success", "error", "timeout"))),
        grader=grader,
        outcome=draw(st.sampled_from((None, None, *Outcome))),
        score=ANY if grader is None else Range(draw(ends), draw(ends)),
        latency_ms=draw(st.one_of(st.just(ANY), st.builds(Range, times, times))),
        tag=draw(st.sampled_from((None, None, None, "part-1", "part", "needle", "none"))),
        q=draw(st.sampled_from((None, None, None, "w4.", "answer 77.", "nowhere"))),
    )


def single_filters() -> Iterator[ResultFilter]:
    yield ResultFilter()
    yield from (ResultFilter(status=status) for status in ("success", "error", "timeout"))
    yield from (ResultFilter(outcome=outcome) for outcome in Outcome)
    yield from (ResultFilter(grader="second", outcome=outcome) for outcome in Outcome)
    yield from (ResultFilter(grader=grader) for grader in ("first", "unknown"))
    yield ResultFilter(grader="second", score=Range(0.4, 0.45))
    yield ResultFilter(latency_ms=Range(2048.0, None))
    yield ResultFilter(tag="needle")
    yield ResultFilter(q="w4.")


def naive(where: ResultFilter, skip: int = 0) -> list[str]:
    return [one.id for one in results() if one.matches(where)][skip:]


@pytest.mark.parametrize("where", list(single_filters()), ids=lambda where: str(msgspec.to_builtins(where)))
@pytest.mark.parametrize("state", ["indexed", "going"])
def test_each_filter_gives_the_results_of_a_naive_scan(
    read: Results, indexed: str, going: str, state: str, where: ResultFilter
) -> None:
    run = {"indexed": indexed, "going": going}[state]
    for skip in (0, 5, 60):
        assert walked(read, run, where, 4, skip) == naive(where, skip)


@given(where=filters(), limit=st.integers(1, 9), skip=st.integers(0, 30))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_filters_together_give_the_results_of_a_naive_scan(
    read: Results, indexed: str, going: str, where: ResultFilter, limit: int, skip: int
) -> None:
    expected = naive(where, skip)
    assert walked(read, indexed, where, limit, skip) == expected
    assert walked(read, going, where, limit, skip) == expected


def test_an_index_leads_to_the_only_match_at_once(read: Results, indexed: str, going: str) -> None:
    where = ResultFilter(status="timeout")
    assert [one.result_id for one in read.page(indexed, where, PageRequest.of(2)).results] == naive(where)[:2]
    first = read.page(going, where, PageRequest.of(2))
    assert (first.results, first.next_cursor is not None) == ([], True)


def test_an_index_is_not_used_once_the_run_has_changed(storage: Storage, read: Results) -> None:
    run = saved(storage)
    wait_for_index(read, run)
    late = Sample("late", "question", tags=("late",))
    storage.put_response(ResponseKey(run, "late", 0), Response("timeout", error=BROKEN), late)
    for where in (ResultFilter(tag="late"), ResultFilter(status="timeout")):
        assert walked(read, run, where, 3, 0)[-1] == "late~0"


def test_a_stored_index_is_used_by_the_next_process(storage: Storage, read: Results, indexed: str) -> None:
    again = Results(database_of(storage), storage, ServeSettings())
    assert again.blocks.of(again.run(indexed), indexed, ResultFilter(status="error"), 0) is not None


def test_a_run_with_too_many_tags_for_the_index_is_searched_result_by_result(
    storage: Storage, read: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_blocks, "_MAX_TAGS", 2)
    run = saved(storage)
    wait_for_index(read, run)
    index = read.blocks.of(read.run(run), run, ResultFilter(tag="needle"), 0)
    assert index is not None
    assert index.tags is None
    assert walked(read, run, ResultFilter(tag="needle"), 3, 0) == naive(ResultFilter(tag="needle"))


class CountingDatabase:
    """A SQLite store, which counts the steps of SQLite's virtual machine and records the statements."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path)
        self._connection.set_progress_handler(self._step, 10)
        self.steps = 0
        self.statements: list[tuple[str, tuple[Value, ...]]] = []

    @property
    def dialect(self) -> Dialect:
        return SqliteDialect()

    def _step(self) -> None:
        self.steps += 10

    def read(self, statement: str, *values: Value) -> list[Row]:
        self.statements.append((statement, values))
        return self._connection.execute(statement, values).fetchall()

    def transact(self, work: Callable[[Transaction], T]) -> T:
        raise NotImplementedError

    def plan(self, statement: str, values: tuple[Value, ...]) -> list[str]:
        return [row[3] for row in self._connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


class SizedRun(NamedTuple):
    """A run of some size, and its reader."""

    database: CountingDatabase
    ranges: Any
    results: int


SMALL, LARGE = 1_000, 20_000


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, SizedRun]]:
    """Two runs, one twenty times as large; each has one timeout and one tag at seven tenths."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result_blocks, "_RESULTS", 100)
        patch.setattr(result_pages, "TEXTS_EXAMINED", 500)
        patch.setattr(result_pages, "ROWS_EXAMINED", 500)
        for size in (SMALL, LARGE):
            path = Path(tmp_path_factory.mktemp("sized")) / "store.db"
            with SqliteStorage(path) as storage:
                run = Run(id="r", name="n", suite="s", status="completed", total=size)
                storage.save_run(run)
                rows: list[Any] = []
                for number in range(size):
                    key = ResponseKey("r", f"case-{number}")
                    odd = number == size * 7 // 10
                    response = Response("timeout", error=BROKEN) if odd else Response(text="x", latency_ms=number % 97)
                    sample = Sample(key.case, "?", tags=("needle",) if odd else (f"part-{number % 5}",))
                    outcome = Outcome.FAIL if number % 3 == 0 else Outcome.PASS
                    rows.append(response_row(key, response, sample, number))
                    rows.append(grade_row(GradeKey(*key, "first"), grade(outcome, 1.0), None))
                with storage._pool.writing() as connection:
                    sqlite_records.put_rows(connection, rows)
                index = BlockIndexes(storage.database, storage).build(run, "r")
            found[size] = SizedRun(CountingDatabase(path), index.ranges, size)
        yield found


PAGES = {
    "no filter": ResultFilter(),
    "status of nearly all": ResultFilter(status="success"),
    "status of one": ResultFilter(status="timeout"),
    "outcome of a third": ResultFilter(outcome=Outcome.FAIL),
    "outcome of none": ResultFilter(outcome=Outcome.ERROR),
    "score of none": ResultFilter(grader="first", score=Range(0.4, 0.6)),
    "latency of half": ResultFilter(latency_ms=Range(48, None)),
    "latency of none": ResultFilter(latency_ms=Range(500, None)),
    "tag of a fifth": ResultFilter(tag="part-3"),
    "tag of one": ResultFilter(tag="needle"),
    "text of none": ResultFilter(q="nowhere"),
    "several": ResultFilter(status="success", outcome=Outcome.FAIL, latency_ms=Range(None, 50), tag="part-1"),
}


@pytest.mark.parametrize("where", list(PAGES.values()), ids=list(PAGES))
@pytest.mark.parametrize("with_index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("left", [None, 900], ids=["first", "deepest"])
def test_a_page_costs_the_same_at_any_size(
    sized: dict[int, SizedRun], where: ResultFilter, with_index: bool, left: int | None
) -> None:
    steps = {}
    for size, (database, ranges, _) in sized.items():
        start = result_pages.BEGINNING if left is None else ResultPosition(size - left, f"case-{size - left}", 0)
        database.steps, database.statements = 0, []
        skipping = ranges(where, start) if with_index else None
        found = ResultPages(database).page("r", "r", where, start, limit=50, ranges=skipping)
        steps[size] = database.steps
        assert found.positions or found.following is not None or with_index or where.q
        for statement, values in database.statements:
            plan = database.plan(statement, values)
            read_whole = [step for step in plan if re.match("SCAN (samples|responses|grades)", step)]
            assert not [*read_whole, *(step for step in plan if "TEMP B-TREE" in step)]
    assert steps[LARGE] <= 2 * steps[SMALL] + 100


def test_skipping_costs_no_more_than_a_few_pages(sized: dict[int, SizedRun]) -> None:
    database, _, _ = sized[LARGE]
    one_page = 0
    for skip, most in ((0, 1), (2_000, 45)):  # as many times the rows of the page
        database.steps = 0
        found = ResultPages(database).page("r", "r", ResultFilter(), skip=skip, limit=50)
        assert found.positions[0] == ResultPosition(skip, f"case-{skip}", 0)
        one_page = database.steps if skip == 0 else one_page
        assert database.steps <= most * one_page


def test_postgresql_reads_pages_by_their_indexes(postgres_url: str) -> None:
    with open_storage(postgres_url) as storage:
        storage.save_run(Run(id="r", name="n", suite="s"))
        for insert in (
            "samples (run, case_key, position, sample) SELECT 'r', reverse(to_char(n, 'fm00000')), n, '{}'",
            "responses (run, case_key, repeat, status, digest, response)"
            " SELECT 'r', reverse(to_char(n, 'fm00000')), 0, 'success', '', repeat('a', 200)",
            "grades (run, case_key, repeat, grader, fingerprint, outcome, units, squares, reported_error, grade)"
            " SELECT 'r', reverse(to_char(n, 'fm00000')), 0, 'g', 'f', 'pass', 1, 1, 0, repeat('g', 100)",
        ):
            execute(postgres_url, f"INSERT INTO gradeline.{insert} FROM generate_series(0, 9999) AS n")
        for table in ("samples", "responses", "grades"):
            execute(postgres_url, f"ANALYZE gradeline.{table}")
        explaining = _Explaining(database_of(storage))
        for where in PAGES.values():
            for position in (0, 9_000):
                ResultPages(explaining).page("r", "r", where, ResultPosition(position, "", -1), limit=50)
        ResultPages(explaining).page("r", "r", ResultFilter(), skip=5_000, limit=50)
        assert explaining.number > 2 * len(PAGES)


class _Explaining:
    """Asserts of every statement that it reaches its tables by an index."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.number = 0

    @property
    def dialect(self) -> Dialect:
        return self._database.dialect

    def read(self, statement: str, *values: Value) -> list[Row]:
        plan = "\n".join(row[0] for row in self._database.read(f"EXPLAIN {statement}", *values))
        assert not [word for word in ("Seq Scan", "Hash", "Merge Join") if word in plan], plan
        self.number += 1
        return self._database.read(statement, *values)

    def transact(self, work: Callable[[Transaction], T]) -> T:
        raise NotImplementedError
