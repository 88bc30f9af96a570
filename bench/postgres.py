"""What PostgreSQL holds: writing, pages, searches, sums, comparisons and the deletion of a run, at any size.

Half of ``--rows`` responses are in each of two runs of the same cases, each with one grade. The floor is what the
driver alone does with the same texts, in a table without keys. All but the rows whose writing is measured are loaded by
COPY straight into the store's tables, with their triggers on. The server is one of its own, which syncs and vacuums as
it does by default, unless ``--store`` names one; what is made there is deleted at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import islice
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import asyncpg
import msgspec

from gradeline.engine.comparison import compare
from gradeline.errors import Outcome
from gradeline.model import Grade, GradeKey, Response, ResponseKey, RunGrader, Sample
from gradeline.service.summaries import Summaries
from gradeline.store import PostgresStorage, Run, postgres_records
from gradeline.store.result_pages import BEGINNING, ResultFilter, ResultPages, ResultPosition
from gradeline.store.rows import GradeRow, RecordRow, ResponseRow, grade_row, response_row
from measure import ROOT, print_machine, print_table, show_progress

sys.path.insert(0, str(ROOT / "tests"))

from postgres_server import Server

ROWS = 100_000
WRITTEN = 20_000
"""Responses whose writing is measured, and as many grades."""
BATCHES = (100, 500, 5_000)
"""A writer for a hundred tasks sends a hundred rows or fewer at a time."""
SESSIONS = (1, 4, 16)
SMALL = 10
"""Answers, and as many grades, in each batch of sessions that write at once."""
SECONDS = 3.0
LOADED_AT_ONCE = 20_000
PAGE = 50
CASES_AT_ONCE = 500
ROUNDS = 5
RARE = 9_973
"""Every N-th answer contains the word of the search."""
TEXT = "Paris is the capital of France, and has been for a long time. " * 4
GRADERS = {"exact": RunGrader("exact", "f" * 32)}
SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
}
TABLES = ("samples", "responses", "grades")
_SAMPLE_COLUMNS = ("run", "case_key", "position", "sample")
_RESPONSE_COLUMNS = (
    "run", "case_key", "repeat", "status", "response", "latency_ms", "cost", "cache_key", "digest",
)  # fmt: skip
_GRADE_COLUMNS = (
    "run", "case_key", "repeat", "grader", "fingerprint", "outcome", "units", "squares", "grade", "submission",
    "score", "reported_error", "cost",
)  # fmt: skip


class Figure(NamedTuple):
    """One line of a table."""

    name: str
    value: str
    note: str = ""


def rows_of(run: str, numbers: Sequence[int], shift: int = 0) -> tuple[list[ResponseRow], list[GradeRow]]:
    """Responses and grades as the store keeps them; ``shift`` makes another run's answers differ."""
    responses, grades = [], []
    for number in numbers:
        key = ResponseKey(run, f"case-{number}")
        rare = " xylophone" if number % RARE == RARE - 1 else ""
        answer = Response(text=f"{number + shift}: {TEXT}{rare}", latency_ms=float(number % 997))
        responses.append(response_row(key, answer, Sample(key.case, f"What is {number}?", str(number)), number))
        passed = (number + shift) % 3 > 0
        grade = Grade("exact", "f" * 32, Outcome.PASS if passed else Outcome.FAIL, float(passed), passed, "as expected")
        grades.append(grade_row(GradeKey(*key, "exact"), grade, answer.text))
    return responses, grades


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(url, server_settings={"search_path": "gradeline", "jit": "off"})
    try:
        yield connection
    finally:
        await connection.close()


def batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


async def floor_rate(url: str, *, by_copy: bool) -> float:
    """Rows a second, every one known beforehand, in one transaction, in tables without keys."""
    responses, grades = rows_of("floor", range(WRITTEN))
    bodies = [[(*row[:3], row.response) for row in responses], [(*row[:3], row.grade) for row in grades]]
    async with connected(url) as connection:
        for table in ("floor_responses", "floor_grades"):
            await connection.execute(f"CREATE TABLE {table} (run text, case_key text, repeat bigint, body text)")
        began = perf_counter()
        async with connection.transaction():
            for table, rows in zip(("floor_responses", "floor_grades"), bodies, strict=True):
                if by_copy:
                    await connection.copy_records_to_table(table, records=rows)
                else:
                    await connection.executemany(f"INSERT INTO {table} VALUES ($1, $2, $3, $4)", rows)
        rate = 2 * WRITTEN / (perf_counter() - began)
        await connection.execute("DROP TABLE floor_responses, floor_grades")
    return rate


async def batch_rate(url: str, run: str, *, size: int, by_copy: bool) -> float:
    """Rows a second of whole batches, responses then their grades, a transaction each, as the writer sends them."""
    responses, grades = rows_of(run, range(WRITTEN))
    put = _put_by_copy if by_copy else postgres_records.put_rows
    async with connected(url) as connection:
        if by_copy:
            for table in TABLES:
                await connection.execute(
                    f"CREATE TEMP TABLE new_{table} ON COMMIT DELETE ROWS AS SELECT * FROM {table} WITH NO DATA"
                )
        began = perf_counter()
        for start in range(0, WRITTEN, size):
            for rows in (responses, grades):
                async with connection.transaction():
                    await put(connection, rows[start : start + size])
        return 2 * WRITTEN / (perf_counter() - began)


async def _put_by_copy(connection: Any, rows: Sequence[RecordRow]) -> None:
    """The same as `put_rows` for rows of one kind: into a table of this session, and from there over what was there."""
    if isinstance(rows[0], ResponseRow):
        responses = [row for row in rows if isinstance(row, ResponseRow)]
        samples = [(row.run, row.case, row.position, row.sample) for row in responses]
        await _copied(connection, "samples", _SAMPLE_COLUMNS, samples, postgres_records._INSERT_SAMPLES)
        kept = [row[:9] for row in responses]
        await _copied(connection, "responses", _RESPONSE_COLUMNS, kept, postgres_records._INSERT_RESPONSES)
    else:
        await _copied(connection, "grades", _GRADE_COLUMNS, rows, postgres_records._INSERT_GRADES)


async def _copied(connection: Any, table: str, columns: Sequence[str], rows: Sequence[Any], upsert: str) -> None:
    await connection.copy_records_to_table(f"new_{table}", records=rows, columns=columns)
    taken = f"(SELECT {', '.join(columns)} FROM new_{table}) AS new"
    statement = re.sub(r"unnest\([^)]*\)( AS new)?", taken, upsert)
    await connection.execute(statement)


async def writer_rate(storage: PostgresStorage, run: str, responses: int, concurrency: int) -> float:
    """Rows a second of tasks that each wait for their response's commit, then for their grade's."""
    async with storage.writer() as writer:
        numbers = iter(range(responses))

        async def caller() -> None:
            for number in numbers:
                key = ResponseKey(run, f"case-{number}")
                sample = Sample(key.case, f"What is {number}?", str(number))
                grade = Grade("exact", "f" * 32, Outcome.PASS, 1.0, True, "as expected")
                await writer.put_response(key, Response(text=TEXT, latency_ms=12.5), sample, number)
                await writer.put_grade(GradeKey(*key, "exact"), grade, TEXT)

        began = perf_counter()
        await asyncio.gather(*(caller() for _ in range(concurrency)))
        return 2 * responses / (perf_counter() - began)


def writing(storage: PostgresStorage, url: str, beside: str) -> Iterator[Figure]:
    """Each way in a run of its own, which is deleted again."""

    def in_run(measure: Callable[[str], float]) -> float:
        run = storage.save_run(Run(name="written", suite="bench", graders=GRADERS))
        try:
            return measure(run)
        finally:
            storage.delete_run(run)

    for name, by_copy in (("COPY", True), ("executemany", False)):
        rate = asyncio.run(floor_rate(url, by_copy=by_copy))
        yield Figure(f"{name}, one transaction, no keys (the floor)", f"{rate:,.0f}")
    ways = {"unnest (ours)": False, "COPY to a temporary table, then upsert": True}
    for size in BATCHES:
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(3):
            for name, by_copy in ways.items():  # in turns: whatever else the machine does meanwhile is shared
                show_progress(f"writing by {name}")
                measure = partial(batch_rate, url, size=size, by_copy=by_copy)
                rates[name].append(in_run(lambda run, measure=measure: asyncio.run(measure(run))))
        for name, found in rates.items():
            yield Figure(f"{name}, {size:,} rows a transaction", f"{median(found):,.0f}", beside)
    for concurrency, responses in ((100, WRITTEN), (1, 500)):
        show_progress(f"writing through the writer, {concurrency} at once")
        rate = in_run(
            lambda run, number=responses, at_once=concurrency: asyncio.run(writer_rate(storage, run, number, at_once))
        )
        yield Figure(f"the writer, {concurrency} at once", f"{rate:,.0f}", beside)


async def side_by_side(url: str, runs: Sequence[str]) -> list[float]:
    """What each batch takes where sessions write at once, each to its run."""
    taken: list[float] = []
    end = perf_counter() + SECONDS

    async def session(run: str, number: int) -> None:
        async with connected(url) as connection:
            first = number * 1_000_000
            while perf_counter() < end:
                responses, grades = rows_of(run, range(first, first + SMALL))
                first += SMALL
                began = perf_counter()
                async with connection.transaction():
                    await postgres_records.put_rows(connection, [*responses, *grades])
                taken.append(perf_counter() - began)

    await asyncio.gather(*(session(run, number) for number, run in enumerate(runs)))
    return sorted(taken)


def at_once(storage: PostgresStorage, url: str) -> Iterator[tuple[str, ...]]:
    """Sessions that write to one run, and to runs of their own, where none can be in another's way."""
    for sessions in SESSIONS:
        line = [str(sessions)]
        for number in (1, sessions):
            show_progress(f"{sessions} sessions that write to {number} runs")
            runs = [storage.save_run(Run(name="written", suite="bench", graders=GRADERS)) for _ in range(number)]
            try:
                taken = asyncio.run(side_by_side(url, runs * (sessions // number)))
            finally:
                for run in runs:
                    storage.delete_run(run)
            line += [f"{len(taken) / SECONDS:,.0f}", _seconds(taken[len(taken) * 99 // 100])]
        yield tuple(line)


async def loaded(url: str, run: str, cases: int, shift: int) -> None:
    async with connected(url) as connection:
        for start in range(0, cases, LOADED_AT_ONCE):
            show_progress(f"loading: {start:,} of {cases:,}")
            numbers = range(start, min(start + LOADED_AT_ONCE, cases))
            responses, grades = rows_of(run, numbers, shift)
            samples = [(row.run, row.case, row.position, row.sample) for row in responses]
            async with connection.transaction():
                for table, columns, rows in (
                    ("samples", _SAMPLE_COLUMNS, samples),
                    ("responses", _RESPONSE_COLUMNS, [row[:9] for row in responses]),
                    ("grades", _GRADE_COLUMNS, grades),
                ):
                    await connection.copy_records_to_table(table, records=rows, columns=columns)


class Watch:
    """Notes the statements by which a store reads, so that they can be explained."""

    def __init__(self, storage: PostgresStorage) -> None:
        self._pool = storage._pool
        self._read = storage._pool.read
        self._seen: dict[str, tuple[object, ...]] = {}
        self._pool.read = self._noted  # type: ignore[method-assign]

    def _noted(self, statement: str, *values: object) -> list[Any]:
        self._seen[statement] = values
        return self._read(statement, *values)

    def plans(self) -> str:
        """The ways in which tables were read since the last call, the small ones left out."""
        seen, self._seen = self._seen, {}
        ways: dict[str, None] = {}
        for statement, values in seen.items():
            (explained,) = self._read(f"EXPLAIN (FORMAT JSON) {statement}", *values)
            ways.update(dict.fromkeys(ways_of(msgspec.json.decode(explained[0])[0]["Plan"])))
        return ", ".join(sorted(ways))


def ways_of(plan: dict[str, Any]) -> Iterator[str]:
    """How a plan reaches its tables: the kind of the scan, with the index or the table."""
    if "Scan" in plan["Node Type"] and ("Index Name" in plan or "Relation Name" in plan):
        yield f"{plan['Node Type']} {plan.get('Index Name') or plan['Relation Name']}"
    for part in plan.get("Plans", ()):
        yield from ways_of(part)


class Reading:
    """Queries of a stored run, and how long they take."""

    def __init__(self, storage: PostgresStorage, run: str, other: str, cases: int) -> None:
        self._storage = storage
        self._run, self._other, self._cases = run, other, cases
        self._database = storage.database
        self._scan = ResultPages(self._database)
        self._summaries = Summaries(self._database, storage)
        self._watch = Watch(storage)
        self.plans: list[tuple[str, str]] = []

    def figures(self) -> Iterator[Figure]:
        deep = self._cases * 9 // 10
        behind = ResultPosition(deep, f"case-{deep}", 0)
        somewhere = [f"case-{number}" for number in range(deep, deep + CASES_AT_ONCE)]
        quick: dict[str, Callable[[], object]] = {
            f"a page of {PAGE}, the first": lambda: self._page(ResultFilter(), BEGINNING),
            f"a page of {PAGE}, behind nine tenths": lambda: self._page(ResultFilter(), behind),
            f"a page of {PAGE} that fail": lambda: self._page(ResultFilter(outcome=Outcome.FAIL), behind),
            "a page of a rare word (at most 5,000 texts are read)": lambda: self._page(
                ResultFilter(q="xylophone"), BEGINNING
            ),
            "one record": lambda: self._storage.get_record(ResponseKey(self._run, f"case-{deep}")),
            f"{PAGE} records behind nine tenths, for an export": lambda: list(
                islice(self._storage.records(self._run, ResponseKey(self._run, f"case-{deep}")), PAGE)
            ),
            f"keys of {CASES_AT_ONCE} cases": lambda: list(self._storage.keys_of(self._run, somewhere)),
            "counts": lambda: self._storage.counts(self._run),
        }
        for name, ask in quick.items():
            yield self._timed(name, ask, ROUNDS)
        run, other = self._storage.find_run(self._run), self._storage.find_run(self._other)
        yield self._timed("summary, the first time", lambda: self._summaries.of(run), 1)
        yield self._timed("summary, again", lambda: self._summaries.of(run), ROUNDS)
        yield self._timed(f"comparison of {self._cases:,} pairs", lambda: compare(self._storage, run, other), 1)

    def _timed(self, name: str, ask: Callable[[], object], rounds: int) -> Figure:
        show_progress(name)
        self._watch.plans()
        taken = []
        for _ in range(rounds):
            began = perf_counter()
            ask()
            taken.append(perf_counter() - began)
        self.plans.append((name, self._watch.plans()))
        first = f"at first {_seconds(taken[0])}" if rounds > 1 else ""
        return Figure(name, _seconds(median(taken)), first)

    def _page(self, where: ResultFilter, start: ResultPosition) -> int:
        found = self._scan.page(self._run, self._run, where, start, limit=PAGE)
        self._scan.grades(self._run, found.positions)
        return sum(1 for _ in self._scan.texts(self._run, found.positions))


def deleting(storage: PostgresStorage, run: str, cases: int) -> Figure:
    longest = 0.0
    transact = storage._transact
    number = 0

    def timed(work: Callable[[Any], Any]) -> Any:
        nonlocal longest, number
        began = perf_counter()
        try:
            return transact(work)
        finally:
            longest, number = max(longest, perf_counter() - began), number + 1

    storage._transact = timed  # type: ignore[method-assign]
    began = perf_counter()
    storage.delete_run(run)
    seconds = perf_counter() - began
    note = f"{number:,} transactions, the longest {_seconds(longest)}"
    return Figure(f"deletion of a run of {cases:,} results", _seconds(seconds), note)


def _seconds(value: float) -> str:
    return f"{value * 1000:,.1f} ms" if value < 1 else f"{value:,.1f} s"


async def vacuumed(url: str) -> None:
    """As the server does by itself some time after a large change."""
    async with connected(url) as connection:
        for table in TABLES:
            await connection.execute(f"VACUUM ANALYZE {table}", timeout=7200)


async def sizes(url: str) -> list[Figure]:
    async with connected(url) as connection:
        rows = await connection.fetch(
            """SELECT relname, reltuples::bigint, pg_table_size(oid) AS size, pg_indexes_size(oid) AS indexes
            FROM pg_class WHERE relnamespace = 'gradeline'::regnamespace AND relname = ANY ($1) ORDER BY relname""",
            TABLES,
        )
        indexes = await connection.fetch(
            """SELECT indexrelname, pg_relation_size(indexrelid) FROM pg_stat_user_indexes
            WHERE schemaname = 'gradeline' AND relname = ANY ($1) ORDER BY 2 DESC""",
            TABLES,
        )
    tables = [
        Figure(row["relname"], f"{row['size'] / 1e6:,.0f} MB", f"{row['reltuples']:,} rows; its indexes"
               f" {row['indexes'] / 1e6:,.0f} MB")
        for row in rows
    ]  # fmt: skip
    return tables + [Figure(name, f"{size / 1e6:,.0f} MB", "index") for name, size in indexes]


@contextmanager
def served(store: str | None) -> Iterator[str]:
    if store is not None:
        yield store
        return
    server = Server(SETTINGS)
    try:
        yield server.url
    finally:
        server.stop()


def measured(url: str, rows: int) -> None:
    cases = rows // 2
    with PostgresStorage(url) as storage:
        (version,) = storage._read("SELECT current_setting('server_version')")[0]
        print_table(
            f"PostgreSQL {version}: {WRITTEN:,} responses and as many grades, rows/s", ("way", "rows/s", ""),
            list(writing(storage, url, "")),
        )  # fmt: skip
        print_table(
            f"sessions of one client that write {SMALL} responses and grades a transaction (the slowest hundredth)",
            ("sessions", "to one run, batches/s", "slowest", "to runs of their own, batches/s", "slowest"),
            list(at_once(storage, url)),
        )
        runs = [
            storage.save_run(Run(name=name, suite="bench", status="completed", graders=GRADERS, total=cases))
            for name in ("baseline", "candidate")
        ]
        try:
            began = perf_counter()
            for shift, run in enumerate(runs):
                asyncio.run(loaded(url, run, cases, shift))
            taken = perf_counter() - began
            asyncio.run(vacuumed(url))
            rate = f"{taken:,.0f} s ({3 * rows / taken:,.0f} rows/s)"
            print(f"\n{rows:,} responses loaded with samples and grades in {rate}\n")
            at_size = list(writing(storage, url, f"next to {rows:,}")) if rows > ROWS else []
            if at_size:
                print_table("the same next to them, rows/s", ("way", "rows/s", ""), at_size)
                print()
            print_table("tables and indexes", ("what", "size", ""), asyncio.run(sizes(url)))
            print()
            reading = Reading(storage, runs[0], runs[1], cases)
            figures = [*reading.figures(), deleting(storage, runs[1], cases)]
            show_progress("")
            print_table(f"a run of {cases:,} results among {rows:,}", ("what", "median", ""), figures)
            print()
            print_table("how their tables are read", ("what", "plan"), reading.plans)
        finally:
            for run in runs:
                storage.delete_run(run)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS, help=f"responses in the store, default {ROWS:,}")
    parser.add_argument("--store", help="a database to measure, instead of a server made for it")
    asked = parser.parse_args()
    print_machine()
    with served(asked.store) as url:
        if asked.store is None:
            print("settings of the server:", ", ".join(f"{name} = {value}" for name, value in SETTINGS.items()))
        measured(url, asked.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
