"""The store in one SQLite file: safe against kill -9 and power loss, and shared by several processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from gradeline.errors import Outcome, StoreError
from gradeline.failpoints import failpoint
from gradeline.model.case import TestCase
from gradeline.model.codec import digest_of, from_json, to_json
from gradeline.model.grade import Grade
from gradeline.model.observation import EVERYTHING, Observation, ObservationFilter, ObservationSums
from gradeline.model.record import GradeKey, Record, ResponseKey
from gradeline.model.response import Response
from gradeline.model.run import (
    Columns,
    Counts,
    GradeColumns,
    GradeMeasure,
    Measure,
    OrderCounts,
    ResponseColumns,
    Run,
    StoredKey,
)
from gradeline.model.sample import Sample
from gradeline.store.bulk import put_acceptable_rows, put_clusters, put_samples
from gradeline.store.deletion import being_deleted, removing
from gradeline.store.observations import (
    observation_of_row,
    page_of_observations,
    put_observations,
    sums_of_row,
    sums_statement,
)
from gradeline.store.owner import BEAT, observed_run
from gradeline.store.rows import (
    Row,
    Tally,
    changed,
    checked,
    choose_run,
    claimed,
    counts_of,
    grade_row,
    new_id,
    record_of,
    response_row,
    steps_back,
    unknown_case,
    unknown_parent,
    unknown_run,
    unsaved_run,
)
from gradeline.store.sqlite_link import BUSY_SECONDS, Link
from gradeline.store.sqlite_pages import (
    BEGINNING,
    CASES_AT_ONCE,
    COLUMNS_AT_ONCE,
    COLUMNS_END,
    FINGERPRINTS,
    GRADE_COLUMNS,
    GRADES,
    KEY_PAGE,
    MEASURES,
    MEASURES_AT_ONCE,
    MEASURES_WITH_DIGESTS,
    ORDER_COUNTS,
    PAGE_CHARS,
    PAGE_ROWS,
    PLACED_RESPONSE_COLUMNS,
    RECORD_PAGE,
    RESPONSE_COLUMNS,
    SAMPLE_PAGE,
    UNNAMED_GRADE_COLUMNS,
    UNNAMED_RESPONSE_COLUMNS,
    keys_of_cases,
)

if TYPE_CHECKING:
    from gradeline.store.database import Transaction
    from gradeline.store.shared import Beside
    from gradeline.store.sqlite_database import SqliteDatabase
    from gradeline.store.writer import Writer

_SAMPLES_AT_ONCE = 500
_CANDIDATES = 20
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


class SqliteStorage:
    """`Storage` in a SQLite file.

    Any number of processes may share it. After an I/O error nothing more is written until the store is opened anew:
    what the disk holds is unknown then.
    """

    def __init__(self, path: str | Path, *, busy_seconds: float = BUSY_SECONDS, reading: bool = False) -> None:
        """``reading``: the file exists, and nothing is written to it or created next to it."""
        self.path = Path(path)
        self._link = Link(self.path, busy_seconds, reading=reading)
        self.note = self._link.note
        """What the user should know about how the store was opened."""
        self._read = self._link.read
        if not reading:
            self._go_on_deleting()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._link.close()

    def make_single_file(self) -> None:
        """Put all data into the one file and end the write-ahead log beside it, for a file that is to be kept or sent
        elsewhere. No other process may have the store open; the next one that opens it begins a log again."""
        self._link.end_log()

    @property
    def database(self) -> SqliteDatabase:
        """The database itself, for tables that stand beside those of runs."""
        from gradeline.store.sqlite_database import SqliteDatabase  # the service's alone

        return SqliteDatabase(self._link.reading, self._link.writing)

    def save_test_case(self, test_case: TestCase) -> str:
        if not test_case.id:
            test_case = msgspec.structs.replace(test_case, id=new_id())
        with self._link.writing() as connection:
            connection.execute(
                "INSERT INTO test_cases (id, test_case) VALUES (?, ?)"
                " ON CONFLICT (id) DO UPDATE SET test_case = excluded.test_case, deleted = 0",
                (test_case.id, to_json(test_case)),
            )
        return test_case.id

    def get_test_case(self, id: str) -> TestCase | None:  # noqa: A002 - the seed's name
        rows = self._read("SELECT test_case FROM test_cases WHERE id = ? AND NOT deleted", id)
        return from_json(TestCase, rows[0][0]) if rows else None

    def list_test_cases(self) -> list[TestCase]:
        rows = self._read("SELECT test_case FROM test_cases WHERE NOT deleted ORDER BY n")
        return [from_json(TestCase, text) for (text,) in rows]

    def delete_test_case(self, id: str) -> bool:  # noqa: A002 - the seed's name
        with self._link.writing() as connection:
            done = connection.execute("UPDATE test_cases SET deleted = 1 WHERE id = ? AND NOT deleted", (id,))
            return done.rowcount > 0

    def save_run(self, run: Run) -> str:
        run = checked(run)
        with self._link.writing() as connection:
            _save_run(connection, run)
        return run.id

    def get_run(self, id: str) -> Run | None:  # noqa: A002 - as the seed names it
        rows = self._read("SELECT run FROM runs WHERE id = ?", id)
        return observed_run(rows[0][0], self.database.read) if rows else None

    def find_run(self, wanted: str) -> Run:
        back = steps_back(wanted)
        if back is not None:
            rows = self._read("SELECT run FROM runs ORDER BY n DESC LIMIT 1 OFFSET ?", back)
            found = observed_run(rows[0][0], self.database.read) if rows else None
        else:
            rows = self._read(
                "SELECT run FROM runs WHERE id = ?1 OR name = ?1 OR (id >= ?1 AND id < ?1 || char(0x10FFFF))"
                " ORDER BY id = ?1 DESC, name = ?1 DESC, n DESC LIMIT ?2",
                wanted,
                _CANDIDATES,
            )
            found = choose_run(wanted, self._observed(rows)) if wanted else None
        if found is None:
            raise self._unknown_run(wanted)
        return found

    def list_runs(self, limit: int = 50, before: str | None = None) -> list[Run]:
        if before is None:
            rows = self._read("SELECT run FROM runs ORDER BY n DESC LIMIT ?", limit)
        else:
            place = self._read("SELECT n FROM runs WHERE id = ?", before)
            if not place:
                raise self._unknown_run(before)
            rows = self._read("SELECT run FROM runs WHERE n < ? ORDER BY n DESC LIMIT ?", place[0][0], limit)
        return self._observed(rows)

    def _observed(self, rows: Sequence[tuple[str]]) -> list[Run]:
        query = self.database.read
        return [observed_run(text, query) for (text,) in rows]

    def update_run(self, id: str, **changes: Any) -> Run:  # noqa: A002 - as the seed names it
        with self._link.writing() as connection:
            row = connection.execute("SELECT run FROM runs WHERE id = ?", (id,)).fetchone()
            if row is not None:
                run = changed(from_json(Run, row[0]), changes)
                _save_run(connection, run)
                return run
        raise self._unknown_run(id)

    def claim_run(self, id: str, owner: str, previous: str | None) -> Run | None:  # noqa: A002 - as the seed names it
        with self._link.writing() as connection:
            row = connection.execute("SELECT run FROM runs WHERE id = ?", (id,)).fetchone()
            if row is not None:
                run = claimed(from_json(Run, row[0]), owner, previous)
                if run is not None:
                    _save_run(connection, run)
                    connection.execute(BEAT, (id,))
                return run
        raise self._unknown_run(id)

    def delete_run(
        self,
        id: str,  # noqa: A002 - as the seed names it
        beside: Callable[[Transaction], object] | None = None,
    ) -> bool:
        from gradeline.store.sqlite_database import SqliteTransaction  # runs are seldom deleted
        from gradeline.store.sqlite_deletion import hide_run

        with self._link.writing(cascading=False) as connection:
            found = hide_run(connection, id)
            if found and beside is not None:
                beside(SqliteTransaction(connection))
        self.finish_deletions()
        return found

    def finish_deletions(self) -> None:
        """Remove what is left of deleted runs."""
        for run in self._half_deleted():
            for _ in removing(self.database.transact, run):
                pass

    def vacuum(self) -> None:
        """Remove what is left of deleted runs, and give the space of deleted rows back to the file system.

        SQLite writes the whole file anew; other processes can read meanwhile, and not write."""
        self.finish_deletions()
        self._link.vacuum()

    def put_samples(self, run: str, samples: Iterable[Sample], start: int = 0) -> None:
        rows = ((run, sample.case_key, place, to_json(sample)) for place, sample in enumerate(samples, start))
        while chunk := list(islice(rows, _SAMPLES_AT_ONCE)):
            with self._link.writing() as connection:
                try:
                    put_samples(connection, chunk)
                except sqlite3.IntegrityError:
                    raise unsaved_run(run) from None

    def samples(self, run: str) -> Iterator[Sample]:
        self._require_run(run)
        place: tuple[int, str] = (-1, "")
        while True:
            rows = self._read(SAMPLE_PAGE, run, *place, _SAMPLES_AT_ONCE)
            if not rows:
                return
            yield from (from_json(Sample, text) for _, _, text in rows)
            place = rows[-1][:2]

    def get_sample(self, run: str, case: str) -> Sample | None:
        source = self._source(run)
        rows = self._read(
            "SELECT sample FROM samples JOIN runs ON runs.id = samples.run WHERE samples.run = ? AND case_key = ?",
            source,
            case,
        )
        return from_json(Sample, rows[0][0]) if rows else None

    def put_response(
        self,
        key: ResponseKey,
        response: Response,
        sample: Sample,
        position: int | None = None,
        cache_key: str | None = None,
    ) -> None:
        self._put(response_row(key, response, sample, position, cache_key))

    def cached_response(self, cache_key: str) -> Response | None:
        rows = self._read(
            "SELECT response FROM responses JOIN runs ON runs.id = responses.run"
            " WHERE cache_key = ? AND status = 'success' LIMIT 1",
            cache_key,
        )
        return from_json(Response, rows[0][0]) if rows else None

    def get_response(self, key: ResponseKey) -> Response | None:
        rows = self._read(
            "SELECT response FROM responses JOIN runs ON runs.id = responses.run"
            " WHERE responses.run = ? AND case_key = ? AND repeat = ?",
            self._source(key.run),
            key.case,
            key.repeat,
        )
        return from_json(Response, rows[0][0]) if rows else None

    def put_grade(self, key: GradeKey, grade: Grade, submission: str | None = None) -> None:
        self._put(grade_row(key, grade, submission))

    def get_record(self, key: ResponseKey) -> Record | None:
        rows = self._read(
            "SELECT samples.sample, responses.response FROM responses JOIN runs ON runs.id = responses.run"
            " JOIN samples ON samples.run = responses.run AND samples.case_key = responses.case_key"
            " WHERE responses.run = ? AND responses.case_key = ? AND repeat = ?",
            self._source(key.run),
            key.case,
            key.repeat,
        )
        if not rows:
            return None
        sample, response = rows[0]
        return record_of(key, sample, response, self._read(GRADES, *key))

    def records(self, run: str, after: ResponseKey | None = None) -> Iterator[Record]:
        self._require_run(run)
        source = self._source(run)
        start = BEGINNING if after is None else self._place(source, after)
        return (
            record_of(key, sample, response, grades)
            for key, sample, response, grades in self._joined(RECORD_PAGE, GRADES, run, source, start)
        )

    def keys_of(self, run: str, cases: Sequence[str] | None = None) -> Iterator[StoredKey]:
        self._require_run(run)
        source = self._source(run)
        if cases is None:
            found = self._joined(KEY_PAGE, FINGERPRINTS, run, source, BEGINNING)
        else:
            found = iter(self._keys_of_cases(run, source, cases))
        return (
            StoredKey(
                key,
                status,
                {grader: print_ for grader, print_, _ in grades},
                _digest(asked),
                frozenset(grader for grader, _, unscored in grades if unscored),
            )
            for key, status, asked, grades in found
        )

    def measures(self, run: str, *, digests: bool = False) -> Iterator[Measure]:
        self._require_run(run)
        source = self._source(run)
        clusters = self.clusters(run) if digests else {}
        statement = MEASURES_WITH_DIGESTS if digests else MEASURES
        place = BEGINNING
        while True:
            # whole cases only: a page is cut by responses, never between the grades of one
            rows = self._read(statement, source, *place, MEASURES_AT_ONCE, run)
            if not rows:
                return
            yield from _measures(rows, digests, clusters)
            place = rows[-1][:3]

    def put_clusters(self, run: str, clusters: Iterable[tuple[str, str]]) -> None:
        with self._link.writing() as connection:
            connection.execute("DELETE FROM clusters WHERE run = ?", (run,))
            try:
                put_clusters(connection, [(run, case, cluster) for case, cluster in clusters])
            except sqlite3.IntegrityError:
                raise unsaved_run(run) from None

    def clusters(self, run: str) -> dict[str, str]:
        self._require_run(run)
        statement = "SELECT case_key, cluster FROM clusters WHERE run = ?"
        return dict(self._read(statement, run) or self._read(statement, self._source(run)))

    def columns(self, run: str, *, named: bool = True, digests: bool = False) -> Iterator[Columns]:
        self._require_run(run)
        source = self._source(run)
        place = ("", -1)
        while end := self._read(COLUMNS_END, source, *place, COLUMNS_AT_ONCE):
            page = (*place, *end[0])
            if digests:
                responses = ResponseColumns(*_columns(self._read(PLACED_RESPONSE_COLUMNS, source, *page)))
                responses = responses._replace(digests=_digests(responses.digests))
            elif named:
                responses = ResponseColumns(*_columns(self._read(RESPONSE_COLUMNS, source, *page)))
            if digests or named:
                grades = GradeColumns(*_columns(self._read(GRADE_COLUMNS, run, *page)))
            else:
                responses = ResponseColumns((), *_columns(self._read(UNNAMED_RESPONSE_COLUMNS, source, *page)))
                graders, *numbers = _columns(self._read(UNNAMED_GRADE_COLUMNS, run, *page)) or ((), (), (), ())
                grades = GradeColumns((), graders, (), *numbers)
            yield Columns(responses, grades)
            place = end[0]

    def counts(self, run: str) -> Counts:
        self._require_run(run)
        responses = self._read("SELECT status, count FROM response_counts WHERE run = ?", self._source(run))
        grades = self._read(
            "SELECT grader, outcome, count, units, squares FROM grade_counts WHERE run = ? AND count > 0", run
        )
        return counts_of(responses, (Tally(*row) for row in grades))

    def order_counts(self, run: str) -> dict[str, OrderCounts]:
        self._require_run(run)
        return {grader: OrderCounts(first, second) for grader, first, second in self._read(ORDER_COUNTS, run)}

    def put_observations(self, observations: Sequence[Observation]) -> list[int]:
        with self._link.writing() as connection:
            return put_observations(connection, observations)

    def observations(
        self, where: ObservationFilter = EVERYTHING, after: int = 0, limit: int = 1000
    ) -> list[Observation]:
        statement, values = page_of_observations(where, after, limit)
        return [observation_of_row(row) for row in self._read(statement, *values)]

    def observation_sums(self, where: ObservationFilter = EVERYTHING) -> list[ObservationSums]:
        statement, values = sums_statement(where)
        return [sums_of_row(row) for row in self._read(statement, *values)]

    def writer(self, beside: Beside | None = None) -> Writer:
        """``beside`` is done in the transaction of each batch; see `gradeline.store.shared`."""
        from gradeline.store.writer import Writer  # asyncio is loaded only where it is used

        return Writer(
            partial(self._commit, beside=beside), partial(self._commit_now, beside=beside), self._link.fold_log
        )

    def _commit(
        self, rows: Sequence[Row], beside: Beside | None = None, patience: float | None = None
    ) -> list[StoreError | None]:
        with self._link.writing(patience=patience) as connection:
            failpoint("batch-begun")
            refusals = put_acceptable_rows(connection, rows, self._link.begin)
            if beside is not None:
                from gradeline.store.sqlite_database import SqliteTransaction  # the service's alone

                stored = [row for row, refusal in zip(rows, refusals, strict=True) if refusal is None]
                beside(SqliteTransaction(connection), stored)
            failpoint("batch-written")
        failpoint("batch-committed")
        return refusals

    def _commit_now(self, rows: Sequence[Row], beside: Beside | None = None) -> list[StoreError | None] | None:
        """As `_commit`; None where another thread or process is writing, and nothing was done."""
        with self._link.if_free() as free:
            if not free:
                return None
            try:
                return self._commit(rows, beside, patience=0.0)
            except StoreError as error:
                if error.retryable:  # a transaction has its lock before it does anything
                    return None
                raise

    def _put(self, row: Row) -> None:
        (refusal,) = self._commit([row])
        if refusal is not None:
            raise refusal

    def _joined(
        self, pages: str, grades: str, run: str, source: str, start: tuple[int, str, int]
    ) -> Iterator[tuple[ResponseKey, str, str, list[Any]]]:
        """Responses in order, each with its grades. Page by page: between pages no read is open that would
        keep the log from being folded into the file, and each page may be fetched by another thread."""
        place = start
        while True:
            page = []
            size = 0
            with self._link.reading() as connection:
                rows = connection.execute(pages, (source, *place, PAGE_ROWS))
                for position, case, repeat, first, second in rows:
                    found = connection.execute(grades, (run, case, repeat)).fetchall()
                    page.append((ResponseKey(run, case, repeat), first, second, found))
                    place = (position, case, repeat)
                    size += len(first) + len(second)
                    if size > PAGE_CHARS:
                        break
                rows.close()
            if not page:
                return
            yield from page

    def _keys_of_cases(
        self, run: str, source: str, cases: Sequence[str]
    ) -> list[tuple[ResponseKey, str, str, list[Any]]]:
        wanted = list(dict.fromkeys(cases))
        with self._link.reading() as connection:
            rows: list[tuple[int, str, int, str, str]] = []
            for start in range(0, len(wanted), CASES_AT_ONCE):
                chunk = wanted[start : start + CASES_AT_ONCE]
                rows += connection.execute(keys_of_cases(len(chunk)), (source, *chunk))
            rows.sort(key=lambda row: row[:3])  # Python compares texts as SQLite does, by code points
            return [
                (
                    ResponseKey(run, case, repeat),
                    status,
                    asked,
                    connection.execute(FINGERPRINTS, (run, case, repeat)).fetchall(),
                )
                for _, case, repeat, status, asked in rows
            ]

    def _source(self, run: str) -> str:
        """Whose responses a run reads: its own, or those of the run it regrades."""
        seen = {run}
        source = run
        while True:
            rows = self._read(
                "SELECT parent FROM runs WHERE id = ?1"
                " AND NOT EXISTS (SELECT 1 FROM response_counts WHERE run = ?1 AND count > 0)",
                source,
            )
            if not rows or rows[0][0] is None or rows[0][0] in seen:
                return source
            source = rows[0][0]
            seen.add(source)

    def _place(self, source: str, key: ResponseKey) -> tuple[int, str, int]:
        rows = self._read("SELECT position FROM samples WHERE run = ? AND case_key = ?", source, key.case)
        if not rows:
            raise unknown_case(key.run, key.case)
        return rows[0][0], key.case, key.repeat

    def _require_run(self, run: str) -> None:
        if not self._read("SELECT 1 FROM runs WHERE id = ?", run):
            raise self._unknown_run(run)

    def _unknown_run(self, wanted: str) -> Exception:
        return unknown_run(wanted, self.list_runs(limit=6))

    def _go_on_deleting(self) -> None:
        """A little of what an interrupted deletion left; whoever opens the store does not want to wait for more."""
        for run in self._half_deleted()[:1]:
            with suppress(StoreError):  # another process may be at it
                next(removing(self.database.transact, run), None)

    def _half_deleted(self) -> list[str]:
        return [run for (run,) in self._read("SELECT run FROM deleted_runs")]


def _save_run(connection: sqlite3.Connection, run: Run) -> None:
    try:
        connection.execute(
            "INSERT INTO runs (id, name, parent, run) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET name = excluded.name, parent = excluded.parent, run = excluded.run",
            (run.id, run.name, run.parent, to_json(run)),
        )
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
            raise being_deleted(run.id) from None
        raise unknown_parent(run) from None


def _columns(rows: list[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(zip(*rows, strict=True))


def _digest(asked: str) -> str:
    """Older stores have the case itself in place of its digest."""
    return digest_of(asked) if asked[:1] == "{" else asked


def _digests(asked: Sequence[str]) -> Sequence[str]:
    """Of many cases, most of which have their digest already."""
    return asked if not any(one[:1] == "{" for one in asked) else list(map(_digest, asked))


def _measures(rows: Iterable[Sequence[Any]], digests: bool, clusters: Mapping[str, str]) -> Iterator[Measure]:
    """Rows of one response each, one after the other, as one measure each."""
    place: tuple[str, int] | None = None
    measure: Measure | None = None
    for _, case, repeat, status, latency_ms, cost, asked, grader, outcome, score, reported, paid in rows:
        if (case, repeat) != place:
            if measure is not None:
                yield measure
            place = (case, repeat)
            digest = _digest(asked) if digests else ""
            measure = Measure(case, repeat, status, latency_ms, cost, {}, digest, clusters.get(case))
        if measure is not None and grader is not None:
            measure.grades[grader] = GradeMeasure(_OUTCOMES[outcome], score, bool(reported), paid)
    if measure is not None:
        yield measure
