"""The part of `Storage` that is the same SQL in every database. Statements have ``?`` for their values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from gradeline.errors import ConfigError, Problem, StoreError
from gradeline.model.baseline import Baseline
from gradeline.model.grade import Grade
from gradeline.model.observation import EVERYTHING, Observation, ObservationFilter, ObservationSums
from gradeline.model.record import GradeKey, ResponseKey, from_json, to_json
from gradeline.model.response import Response
from gradeline.model.run import Counts, OrderCounts, Run, SelectiveCounts
from gradeline.model.sample import Sample, TestCase
from gradeline.model.text import quote
from gradeline.store.baselines import baseline_run, other_suites, put_baseline, read_baselines, remove_baseline
from gradeline.store.leases import Query, observed_run
from gradeline.store.maintenance import remove_rows
from gradeline.store.rows import (
    OBSERVATION_FIELDS,
    PROBE_RUN,
    RecordRow,
    Tally,
    choose_run,
    counts_of,
    grade_row,
    new_id,
    observation_of_row,
    response_row,
    steps_back,
    sums_of_row,
    unknown_case,
    unknown_run,
)

if TYPE_CHECKING:
    from gradeline.store.database import CommitHook, Database, T, Transaction

SAMPLES_AT_ONCE = 500
_CANDIDATES = 20
_PROBES = f"{PROBE_RUN}%"
_AFTER_EVERY_ID = "\U0010ffff"
_SAMPLE_PAGE = """
    SELECT position, case_key, sample FROM samples WHERE run = ? AND (position, case_key) > (?, ?)
    ORDER BY position, case_key LIMIT ?"""
_GROUP = ("task_family", "candidate_adapter", "baseline_adapter", "grader_id")
"""Columns by which observations are grouped."""
_CASE = (*_GROUP, "case_key", "observation")
"""Columns of a case, which counts once. For observations without a case ``observation`` is the key."""


class SqlStorage(ABC):
    """Base of the storages in a database, which add what the databases do differently: connections, locks, writes and
    the statements that read many rows."""

    ORDER_COUNTS: ClassVar[str]
    """The statement of `order_counts`."""
    SELECTIVE_COUNTS: ClassVar[str]
    """The statement of `selective_counts`."""

    @property
    @abstractmethod
    def database(self) -> Database:
        """The database itself, for tables that other parts of the program add."""

    @abstractmethod
    def _read(self, statement: str, *values: Any) -> list[Any]:
        """The rows of a query; values that the database cannot store match nothing."""

    @abstractmethod
    def _change(self, statement: str, *values: Any) -> int:
        """Run a statement in a transaction and return the number of rows."""

    @abstractmethod
    def _transact(self, work: Callable[[Transaction], T]) -> T:
        """Do the work in one transaction."""

    @abstractmethod
    def _commit(self, rows: Sequence[RecordRow], hook: CommitHook | None = None) -> list[StoreError | None]:
        """Store the rows that can be stored, and return for each its error or None."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save_test_case(self, test_case: TestCase) -> str:
        if not test_case.id:
            test_case = msgspec.structs.replace(test_case, id=new_id())
        self._change(
            "INSERT INTO test_cases (id, test_case) VALUES (?, ?)"
            " ON CONFLICT (id) DO UPDATE SET test_case = excluded.test_case, deleted = 0",
            test_case.id,
            to_json(test_case),
        )
        return test_case.id

    def get_test_case(self, id: str) -> TestCase | None:  # noqa: A002 - part of the public protocol
        rows = self._read("SELECT test_case FROM test_cases WHERE id = ? AND deleted = 0", id)
        return from_json(TestCase, rows[0][0]) if rows else None

    def list_test_cases(self) -> list[TestCase]:
        rows = self._read("SELECT test_case FROM test_cases WHERE deleted = 0 ORDER BY n")
        return [from_json(TestCase, row[0]) for row in rows]

    def delete_test_case(self, id: str) -> bool:  # noqa: A002 - part of the public protocol
        return self._change("UPDATE test_cases SET deleted = 1 WHERE id = ? AND deleted = 0", id) > 0

    def get_run(self, id: str) -> Run | None:  # noqa: A002 - part of the public protocol
        rows = self._read("SELECT run FROM runs WHERE id = ?", id)
        return observed_run(rows[0][0], self.database.read) if rows else None

    def find_run(self, reference: str, suite: str | None = None) -> Run:
        back = steps_back(reference)
        if back is not None:
            rows = self._read(
                "SELECT run FROM runs WHERE id NOT LIKE ? ORDER BY n DESC LIMIT 1 OFFSET ?", _PROBES, back
            )
            found = observed_run(rows[0][0], self.database.read) if rows else None
        else:
            rows = self._read(
                "SELECT run FROM runs WHERE id = ? OR name = ? OR (id >= ? AND id < ?)"
                " ORDER BY id = ? DESC, name = ? DESC, n DESC LIMIT ?",
                *(reference, reference, reference, reference + _AFTER_EVERY_ID, reference, reference),
                _CANDIDATES,
            )
            found = self._choose(reference, self._observed(rows), suite) if reference else None
        if found is None:
            raise self._unknown_reference(reference, suite)
        return found

    def _choose(self, reference: str, matching: Sequence[Run], suite: str | None) -> Run | None:
        """An id is exact; a baseline comes before names and the beginnings of ids."""
        if any(run.id == reference for run in matching):
            return choose_run(reference, matching)
        return baseline_run(self._read, reference, suite) or choose_run(reference, matching)

    def _unknown_reference(self, reference: str, suite: str | None) -> Exception:
        others = "" if suite is None else other_suites(self._read, reference)
        if not others:
            return self._unknown_run(reference)
        reason = f"the baseline {quote(reference)} is set for {others}, not for the suite {quote(suite)}"
        return ConfigError(Problem("", f"no run {quote(reference)}: {reason}"))

    def set_baseline(self, name: str, run: Run, *, by: str, at: str) -> Baseline | None:
        return self._transact(lambda transaction: put_baseline(transaction, name, run, by=by, at=at))

    def clear_baseline(self, name: str, suite: str | None = None) -> Baseline:
        return self._transact(lambda transaction: remove_baseline(transaction, name, suite))

    def list_baselines(self, suite: str | None = None) -> list[Baseline]:
        return read_baselines(self._read, suite)

    def list_runs(self, limit: int = 50, before: str | None = None) -> list[Run]:
        if before is None:
            return self._observed(self._read("SELECT run FROM runs ORDER BY n DESC LIMIT ?", limit))
        cursor = self._read("SELECT n FROM runs WHERE id = ?", before)
        if not cursor:
            raise self._unknown_run(before)
        rows = self._read("SELECT run FROM runs WHERE n < ? ORDER BY n DESC LIMIT ?", cursor[0][0], limit)
        return self._observed(rows)

    def _observed(self, rows: Sequence[Any]) -> list[Run]:
        query = self.database.read
        return [observed_run(row[0], query) for row in rows]

    def finish_deletions(self) -> None:
        """Remove the remaining rows of deleted runs."""
        for run in self._unfinished_deletions():
            for _ in remove_rows(self._transact, run):
                pass

    def _continue_deletion(self) -> None:
        """Remove a few rows of a deletion that was interrupted; opening a store must not take long."""
        for run in self._unfinished_deletions()[:1]:
            with suppress(StoreError):  # the store is usable without it, and another process may be writing
                next(remove_rows(self._transact, run), None)

    def _unfinished_deletions(self) -> list[str]:
        return [row[0] for row in self._read("SELECT run FROM deleted_runs")]

    def samples(self, run: str) -> Iterator[Sample]:
        self._require_run(run)
        cursor: tuple[int, str] = (-1, "")
        while rows := self._read(_SAMPLE_PAGE, run, *cursor, SAMPLES_AT_ONCE):
            yield from (from_json(Sample, row[2]) for row in rows)
            cursor = (rows[-1][0], rows[-1][1])

    def get_sample(self, run: str, case: str) -> Sample | None:
        rows = self._read(
            "SELECT sample FROM samples JOIN runs ON runs.id = samples.run WHERE samples.run = ? AND case_key = ?",
            self._source(run),
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

    def put_rows(self, rows: Sequence[RecordRow], hook: CommitHook) -> None:
        self._commit(rows, hook)

    def clusters(self, run: str) -> dict[str, str]:
        self._require_run(run)
        statement = "SELECT case_key, cluster FROM clusters WHERE run = ?"
        rows = self._read(statement, run) or self._read(statement, self._source(run))
        return {row[0]: row[1] for row in rows}

    def counts(self, run: str) -> Counts:
        self._require_run(run)
        responses = self._read("SELECT status, count FROM response_counts WHERE run = ?", self._source(run))
        grades = self._read(
            "SELECT grader, outcome, count, units, squares FROM grade_counts WHERE run = ? AND count > 0", run
        )
        return counts_of(
            ((status, count) for status, count in responses),
            (
                Tally(grader, outcome, count, int(units), int(squares))
                for grader, outcome, count, units, squares in grades
            ),
        )

    def order_counts(self, run: str) -> dict[str, OrderCounts]:
        self._require_run(run)
        return {grader: OrderCounts(first, second) for grader, first, second in self._read(self.ORDER_COUNTS, run)}

    def selective_counts(self, run: str) -> dict[str, SelectiveCounts]:
        self._require_run(run)
        return {
            grader: SelectiveCounts(second, unsure) for grader, second, unsure in self._read(self.SELECTIVE_COUNTS, run)
        }

    def observations(
        self, where: ObservationFilter = EVERYTHING, after: int = 0, limit: int = 1000
    ) -> list[Observation]:
        statement, values = observation_page(where, after, limit)
        return [observation_of_row(row) for row in self._read(statement, *values)]

    def observation_sums(self, where: ObservationFilter = EVERYTHING) -> list[ObservationSums]:
        statement, values = sums_statement(where)
        return [sums_of_row(row) for row in self._read(statement, *values)]

    def _put(self, row: RecordRow) -> None:
        (error,) = self._commit([row])
        if error is not None:
            raise error

    def _source(self, run: str) -> str:
        return response_source(self._read, run)

    def _position(self, source: str, key: ResponseKey) -> tuple[int, str, int]:
        rows = self._read("SELECT position FROM samples WHERE run = ? AND case_key = ?", source, key.case)
        if not rows:
            raise unknown_case(key.run, key.case)
        return rows[0][0], key.case, key.repeat

    def _require_run(self, run: str) -> None:
        if not self._read("SELECT 1 FROM runs WHERE id = ?", run):
            raise self._unknown_run(run)

    def _unknown_run(self, reference: str) -> Exception:
        return unknown_run(reference, self.list_runs(limit=6))


def response_source(read: Query, run: str) -> str:
    """The run whose responses this run has: itself, or the run it regrades."""
    return response_chain(read, run)[-1]


def response_chain(read: Query, run: str) -> list[str]:
    """The run and the runs that it regrades, up to the one that has the responses."""
    chain: list[str] = []
    while run not in chain:
        chain.append(run)
        # the counts are few; with the responses themselves PostgreSQL's planner would scan a large run
        rows = read(
            "SELECT parent FROM runs WHERE id = ?"
            " AND NOT EXISTS (SELECT 1 FROM response_counts WHERE run = ? AND count > 0)",
            run,
            run,
        )
        if not rows or rows[0][0] is None:
            break
        run = rows[0][0]
    return chain


def observation_page(where: ObservationFilter, after: int, limit: int) -> tuple[str, list[object]]:
    """The statement and its values that read a page, by id. `observation_of_row` decodes the rows."""
    criteria = where.criteria()
    condition = " AND ".join(("id > ?", *(f"{name} = ?" for name in criteria)))
    columns = ", ".join(("id", *OBSERVATION_FIELDS))
    statement = f"SELECT {columns} FROM observations WHERE {condition} ORDER BY id LIMIT ?"  # noqa: S608 - made of constants
    return statement, [after, *criteria.values(), limit]


def sums_statement(where: ObservationFilter) -> tuple[str, list[object]]:
    """The statement and its values that sum up observations, each case with its mean. `sums_of_row` decodes the rows.

    In integers, so that the order of rows cannot change a sum: the mean of each case, then the sums of the means and of
    their squares. To avoid overflow, a mean is split into its upper and lower six digits.
    """
    criteria = where.criteria()
    condition = " AND ".join(f"{name} = ?" for name in criteria) or "TRUE"
    group = ", ".join(_GROUP)
    cases = f"""
        SELECT {group}, sum(total) AS total, sum(scored) AS scored, max(latest) AS latest,
            CAST(sum(units) AS BIGINT) / nullif(CAST(sum(scored) AS BIGINT), 0) AS mean
        FROM observation_cases WHERE {condition} GROUP BY {", ".join(_CASE)}"""  # noqa: S608 - made of constants
    high, low = "(mean / 1000000)", "(mean % 1000000)"
    square = f"{high} * {high} + (2 * {high} * {low} + {low} * {low} / 1000000) / 1000000"
    statement = f"""
        SELECT {group}, sum(total), sum(scored), count(mean), coalesce(sum(mean), 0),
            coalesce(sum({square}), 0), max(latest)
        FROM ({cases}) AS cells GROUP BY {group} ORDER BY {group}"""  # noqa: S608 - made of constants
    return statement, list(criteria.values())
