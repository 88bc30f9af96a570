"""A store in this process's memory: for tests, trials and `--store memory://`. It ends with the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from threading import RLock
from typing import TYPE_CHECKING, Any, Self

import msgspec

from gradeline.errors import ORDER_DECIDED, Outcome, StoreError
from gradeline.model.case import TestCase
from gradeline.model.codec import from_json, to_json
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
from gradeline.store.observations import Cell, added, cell_of, sums_of
from gradeline.store.owner import observed_run
from gradeline.store.rows import (
    GradeRow,
    ResponseRow,
    Row,
    Tally,
    changed,
    checked,
    choose_run,
    claimed,
    counts_of,
    grade_row,
    new_id,
    parent_in_use,
    record_of,
    response_row,
    steps_back,
    unknown_case,
    unknown_parent,
    unknown_run,
    unsaved_run,
)

if TYPE_CHECKING:
    from gradeline.store.writer import Writer


class _Rows:
    """What one run holds. Texts, as in every store: nobody can change them from outside."""

    def __init__(self) -> None:
        self.samples: dict[str, tuple[int, str]] = {}
        self.next_position = 0
        self.clusters: dict[str, str] = {}
        self.responses: dict[tuple[str, int], ResponseRow] = {}
        self.grades: dict[tuple[str, int], dict[str, GradeRow]] = {}

    def put_sample(self, case: str, sample: str, position: int | None) -> None:
        if position is None:
            known = self.samples.get(case)
            position = known[0] if known else self.next_position
        self.samples[case] = (position, sample)
        self.next_position = max(self.next_position, position + 1)

    def put(self, row: Row) -> None:
        if isinstance(row, ResponseRow):
            self.put_sample(row.case, row.sample, row.position)
            place = (row.case, row.repeat)
            known = self.responses.get(place)
            if known is not None and (known.response, known.digest) != (row.response, row.digest):
                self.grades.pop(place, None)
            self.responses[place] = row
            if row.cluster is not None:
                self.clusters[row.case] = row.cluster
        else:
            self.grades.setdefault((row.case, row.repeat), {})[row.grader] = row

    def place(self, case: str, repeat: int) -> tuple[int, str, int]:
        return self.samples[case][0], case, repeat


class _Ledger:
    """Observations in the order of arrival, so that an id is a place."""

    def __init__(self) -> None:
        self.rows: list[Observation] = []
        self._ids: dict[str, int] = {}
        self._cells: dict[tuple[str | None, ...], tuple[Observation, Cell]] = {}

    def put(self, observation: Observation) -> int:
        known = self._ids.get(observation.idempotency_key)
        if known is not None:
            return known
        number = len(self.rows) + 1
        self.rows.append(msgspec.structs.replace(observation, id=number))
        self._ids[observation.idempotency_key] = number
        cell = cell_of(observation)
        names = (getattr(observation, name) for name in ObservationFilter._fields)
        alike = (*names, *cell.case)
        first, sums = self._cells.get(alike, (observation, None))
        self._cells[alike] = (first, cell if sums is None else added(sums, cell))
        return number

    def page(self, where: ObservationFilter, after: int, limit: int) -> list[Observation]:
        return list(islice(filter(where.admits, islice(self.rows, max(after, 0), None)), limit))

    def sums(self, where: ObservationFilter) -> list[ObservationSums]:
        return sums_of(cell for one, cell in self._cells.values() if where.admits(one))


class InMemoryStorage:
    """`Storage` in dictionaries."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._cases: dict[str, str] = {}
        self._deleted: set[str] = set()
        self._runs: dict[str, str] = {}
        self._rows: dict[str, _Rows] = {}
        self._cached: dict[str, str] = {}
        self._ledger = _Ledger()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held open."""

    def save_test_case(self, test_case: TestCase) -> str:
        if not test_case.id:
            test_case = msgspec.structs.replace(test_case, id=new_id())
        with self._lock:
            self._cases[test_case.id] = to_json(test_case)
            self._deleted.discard(test_case.id)
        return test_case.id

    def get_test_case(self, id: str) -> TestCase | None:  # noqa: A002 - the seed's name
        with self._lock:
            text = None if id in self._deleted else self._cases.get(id)
        return None if text is None else from_json(TestCase, text)

    def list_test_cases(self) -> list[TestCase]:
        with self._lock:
            texts = [text for id_, text in self._cases.items() if id_ not in self._deleted]
        return [from_json(TestCase, text) for text in texts]

    def delete_test_case(self, id: str) -> bool:  # noqa: A002 - the seed's name
        with self._lock:
            found = id in self._cases and id not in self._deleted
            if found:
                self._deleted.add(id)
        return found

    def save_run(self, run: Run) -> str:
        run = checked(run)
        with self._lock:
            if run.parent is not None and run.parent not in self._runs:
                raise unknown_parent(run)
            self._runs[run.id] = to_json(run)
            self._rows.setdefault(run.id, _Rows())
        return run.id

    def get_run(self, id: str) -> Run | None:  # noqa: A002 - as the seed names it
        with self._lock:
            text = self._runs.get(id)
        return None if text is None else observed_run(text, None)

    def find_run(self, wanted: str) -> Run:
        with self._lock:
            newest = self._newest()
        back = steps_back(wanted)
        if back is not None:
            found = newest[back] if back < len(newest) else None
        else:
            found = choose_run(wanted, newest) if wanted else None
        if found is None:
            raise unknown_run(wanted, newest)
        return found

    def list_runs(self, limit: int = 50, before: str | None = None) -> list[Run]:
        with self._lock:
            newest = self._newest()
        if before is None:
            return newest[:limit]
        ids = [run.id for run in newest]
        if before not in ids:
            raise unknown_run(before, newest)
        start = ids.index(before) + 1
        return newest[start : start + limit]

    def update_run(self, id: str, **changes: Any) -> Run:  # noqa: A002 - as the seed names it
        with self._lock:
            run = changed(self._required(id), changes)
            self.save_run(run)
        return run

    def claim_run(self, id: str, owner: str, previous: str | None) -> Run | None:  # noqa: A002 - as the seed names it
        with self._lock:
            run = claimed(self._required(id), owner, previous)
            if run is not None:
                self.save_run(run)
        return run

    def delete_run(self, id: str) -> bool:  # noqa: A002 - as the seed names it
        with self._lock:
            children = [run.id for run in self._newest() if run.parent == id and run.id != id]
            if children:
                raise parent_in_use(id, children)
            self._rows.pop(id, None)
            return self._runs.pop(id, None) is not None

    def put_samples(self, run: str, samples: Iterable[Sample], start: int = 0) -> None:
        for position, sample in enumerate(samples, start):
            with self._lock:
                self._rows_of(run).put_sample(sample.case_key, to_json(sample), position)

    def samples(self, run: str) -> Iterator[Sample]:
        with self._lock:
            self._required(run)
            stored = sorted((position, case, text) for case, (position, text) in self._rows[run].samples.items())
        return (from_json(Sample, text) for _, _, text in stored)

    def get_sample(self, run: str, case: str) -> Sample | None:
        with self._lock:
            found = self._source(run).samples.get(case) if run in self._runs else None
        return None if found is None else from_json(Sample, found[1])

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
        with self._lock:
            text = self._cached.get(cache_key)
        return None if text is None else from_json(Response, text)

    def get_response(self, key: ResponseKey) -> Response | None:
        with self._lock:
            found = self._source(key.run).responses.get((key.case, key.repeat)) if key.run in self._runs else None
        return None if found is None else from_json(Response, found.response)

    def put_grade(self, key: GradeKey, grade: Grade, submission: str | None = None) -> None:
        self._put(grade_row(key, grade, submission))

    def get_record(self, key: ResponseKey) -> Record | None:
        with self._lock:
            if key.run not in self._runs:
                return None
            source = self._source(key.run)
            row = source.responses.get((key.case, key.repeat))
        return None if row is None else self._record(key.run, source.samples[key.case][1], row)

    def records(self, run: str, after: ResponseKey | None = None) -> Iterator[Record]:
        return (self._record(run, sample, row) for sample, row in self._ordered(run, after))

    def keys_of(self, run: str, cases: Sequence[str] | None = None) -> Iterator[StoredKey]:
        return (
            StoredKey(
                ResponseKey(run, row.case, row.repeat),
                row.status,
                {grade.grader: grade.fingerprint for grade in self._grades(run, row)},
                row.digest,
                frozenset(grade.grader for grade in self._grades(run, row) if _unscored(grade)),
            )
            for _, row in self._ordered(run, None, cases)
        )

    def put_clusters(self, run: str, clusters: Iterable[tuple[str, str]]) -> None:
        with self._lock:
            self._rows_of(run).clusters = dict(clusters)

    def clusters(self, run: str) -> dict[str, str]:
        with self._lock:
            self._required(run)
            return dict(self._rows[run].clusters or self._source(run).clusters)

    def measures(self, run: str, *, digests: bool = False) -> Iterator[Measure]:
        clusters = self.clusters(run) if digests else {}
        return (
            Measure(
                row.case,
                row.repeat,
                row.status,
                row.latency_ms,
                row.cost,
                {
                    grade.grader: GradeMeasure(Outcome(grade.outcome), grade.score, grade.reported_error, grade.cost)
                    for grade in self._grades(run, row)
                },
                row.digest if digests else "",
                clusters.get(row.case),
            )
            for _, row in self._ordered(run, None)
        )

    def columns(self, run: str, *, named: bool = True, digests: bool = False) -> Iterator[Columns]:
        ordered = [row for _, row in self._ordered(run, None)]
        positions = {case: place for place, case in enumerate(dict.fromkeys(row.case for row in ordered))}
        rows = sorted(ordered, key=lambda row: (row.case, row.repeat))
        if not rows:
            return
        grades = [grade for row in rows for grade in sorted(self._grades(run, row), key=lambda grade: grade.grader)]
        yield Columns(
            ResponseColumns(
                [row.case for row in rows if named],
                [row.status for row in rows],
                [row.latency_ms for row in rows],
                [row.cost for row in rows],
                [row.digest for row in rows if digests],
                [positions[row.case] for row in rows if digests],
            ),
            GradeColumns(
                [grade.case for grade in grades if named],
                [grade.grader for grade in grades],
                [grade.outcome for grade in grades if named],
                [grade.score for grade in grades],
                [grade.reported_error for grade in grades],
                [grade.cost for grade in grades],
            ),
        )

    def counts(self, run: str) -> Counts:
        with self._lock:
            self._required(run)
            grades = [grade for by_grader in self._rows[run].grades.values() for grade in by_grader.values()]
            statuses = [row.status for row in self._source(run).responses.values()]
        return counts_of(
            ((status, 1) for status in statuses),
            (Tally(grade.grader, grade.outcome, 1, grade.units, grade.squares) for grade in grades),
        )

    def order_counts(self, run: str) -> dict[str, OrderCounts]:
        with self._lock:
            self._required(run)
            rows = [row for grades in self._rows[run].grades.values() for row in grades.values()]
        found: dict[str, OrderCounts] = {}
        for row in rows:
            if row.outcome == Outcome.ERROR and not _unscored(row):
                first, second = found.get(row.grader, OrderCounts(0, 0))
                favoured = from_json(Grade, row.grade).metadata.get("favoured")
                found[row.grader] = OrderCounts(first + (favoured == "first"), second + (favoured == "second"))
        return found

    def put_observations(self, observations: Sequence[Observation]) -> list[int]:
        with self._lock:
            return [self._ledger.put(one) for one in observations]

    def observations(
        self, where: ObservationFilter = EVERYTHING, after: int = 0, limit: int = 1000
    ) -> list[Observation]:
        with self._lock:
            return self._ledger.page(where, after, limit)

    def observation_sums(self, where: ObservationFilter = EVERYTHING) -> list[ObservationSums]:
        with self._lock:
            return self._ledger.sums(where)

    def writer(self) -> Writer:
        from gradeline.store.writer import Writer  # asyncio is loaded only where it is used

        return Writer(self._commit, self._commit)

    def _commit(self, rows: Sequence[Row]) -> list[StoreError | None]:
        refusals: list[StoreError | None] = []
        for row in rows:
            try:
                self._put(row)
                refusals.append(None)
            except StoreError as error:
                refusals.append(error)
        return refusals

    def _put(self, row: Row) -> None:
        with self._lock:
            self._rows_of(row.run).put(row)
            if isinstance(row, ResponseRow) and row.cache_key is not None and row.status == "success":
                self._cached[row.cache_key] = row.response

    def _rows_of(self, run: str) -> _Rows:
        if run not in self._rows:
            raise unsaved_run(run)
        return self._rows[run]

    def _newest(self) -> list[Run]:
        return [observed_run(text, None) for text in reversed(self._runs.values())]

    def _required(self, run: str) -> Run:
        found = self.get_run(run)
        if found is None:
            raise unknown_run(run, self._newest())
        return found

    def _source(self, run: str) -> _Rows:
        """Whose responses a run reads: its own, or those of the run it regrades."""
        seen = {run}
        source: str | None = run
        while source is not None and not self._rows[source].responses:
            source = self._required(source).parent
            if source in seen:
                break
            seen.add(source or "")
        return self._rows[source or run]

    def _ordered(
        self, run: str, after: ResponseKey | None, cases: Sequence[str] | None = None
    ) -> list[tuple[str, ResponseRow]]:
        """The responses that the run reads, each with its sample."""
        with self._lock:
            self._required(run)
            source = self._source(run)
            wanted = source.samples if cases is None else frozenset(cases)
            found = (row for row in source.responses.values() if row.case in wanted)
            rows = sorted(found, key=lambda row: source.place(row.case, row.repeat))
            if after is not None:
                if after.case not in source.samples:
                    raise unknown_case(run, after.case)
                start = source.place(after.case, after.repeat)
                rows = [row for row in rows if source.place(row.case, row.repeat) > start]
            return [(source.samples[row.case][1], row) for row in rows]

    def _grades(self, run: str, row: ResponseRow) -> list[GradeRow]:
        with self._lock:
            rows = self._rows.get(run)
            grades = rows.grades.get((row.case, row.repeat), {}) if rows else {}
            return [grades[grader] for grader in sorted(grades)]

    def _record(self, run: str, sample: str, row: ResponseRow) -> Record:
        grades = [(grade.grader, grade.grade, grade.submission) for grade in self._grades(run, row)]
        return record_of(ResponseKey(run, row.case, row.repeat), sample, row.response, grades)


def _unscored(row: GradeRow) -> bool:
    """Whether the grader failed, and may be asked again; a judge whose orders disagree has given its verdicts."""
    if row.outcome != Outcome.ERROR:
        return False
    error = from_json(Grade, row.grade).error
    return error is None or error.type != ORDER_DECIDED
