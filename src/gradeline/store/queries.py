"""Statements on runs, their rows and test cases that both databases understand, for callers of a `Database`.

``read`` runs a query: `Database.read`, or `Transaction.run`, which sees what its transaction has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from gradeline.model.grade import Grade
from gradeline.model.record import from_json, to_json
from gradeline.model.response import Response
from gradeline.model.run import Run
from gradeline.model.sample import Sample, TestCase
from gradeline.store.database import Database, Dialect, Row, Transaction, Value
from gradeline.store.leases import Query, observed_run
from gradeline.store.result_pages import fence, join_samples
from gradeline.store.rows import validate_run, with_changes
from gradeline.store.sql_storage import response_source

NEWEST = 2**62
"""``before`` for the first page of `newest_runs`."""

_INSERT_ROWS = 500
_MAX_VALUES = 500
_PAGE_ROWS = 10_000
_MAX_COUNTED = 1_000
"""Cases that are counted one by one if several tags match; above that the total is capped."""
_MAX_MERGED = 100
"""Tags whose cases are merged in index order; the cases of more tags are sorted."""


def insert_rows(transaction: Transaction, table: str, columns: str, rows: Iterable[tuple[Value, ...]]) -> None:
    """Insert rows with a few large statements."""
    source = iter(rows)
    while chunk := list(islice(source, _INSERT_ROWS)):
        places = ", ".join([f"({', '.join('?' * len(chunk[0]))})"] * len(chunk))
        values = [value for row in chunk for value in row]
        transaction.run(f"INSERT INTO {table} ({columns}) VALUES {places}", *values)  # noqa: S608 - constants


def read_run(transaction: Transaction, run: str) -> Run | None:
    """The run as it is in this transaction."""
    rows = transaction.run("SELECT run FROM runs WHERE id = ?", run)
    return observed_run(rows[0][0], transaction.run) if rows else None


def insert_run(transaction: Transaction, run: Run) -> None:
    """Insert a run that has an id."""
    run = validate_run(run)
    statement = "INSERT INTO runs (id, name, parent, run) VALUES (?, ?, ?, ?)"
    transaction.run(statement, run.id, run.name, run.parent, to_json(run))


def update_run(transaction: Transaction, run: Run, **changes: Any) -> Run:
    """Store the run with some fields replaced, and return it."""
    new = with_changes(run, changes)
    transaction.run("UPDATE runs SET run = ? WHERE id = ?", to_json(new), new.id)
    return new


def insert_samples(transaction: Transaction, run: str, samples: Iterable[Sample]) -> None:
    """Insert the cases of a run, in their order."""
    rows = ((run, sample.case_key, position, to_json(sample)) for position, sample in enumerate(samples))
    insert_rows(transaction, "samples", "run, case_key, position, sample", rows)


def response_sources(read: Query, runs: Iterable[Run]) -> dict[str, str]:
    """`response_source` of each run, by its id."""
    return {run.id: run.id if run.parent is None else response_source(read, run.id) for run in runs}


PROGRESS_COLUMNS = """(SELECT run FROM runs WHERE id = ?),
    (SELECT coalesce(CAST(sum(count) AS BIGINT), 0) FROM response_counts WHERE run = ?),
    (SELECT coalesce(CAST(sum(count) AS BIGINT), 0) FROM response_counts WHERE run = ? AND status <> 'success'),
    (SELECT CAST(coalesce(min(total), 0) AS BIGINT) FROM
        (SELECT sum(count) AS total FROM grade_counts WHERE run = ? GROUP BY grader) AS by_grader)"""
"""The stored run, its responses, its failed responses and its graded results, for a SELECT that reads more of the same
moment. The values are the run, twice its `response_source`, and the run again."""


def newest_runs(
    read: Query, before: int, limit: int, skip: int = 0, statuses: Sequence[str] = ()
) -> list[tuple[int, Run]]:
    """A page of runs after their numbers, newest first; with ``statuses`` mostly runs that are stored with one."""
    condition, values = "n < ?", list[Value]([before])
    if statuses:
        # the stored form has the status as it is written here, so that the database can skip most other runs
        condition += f" AND ({' OR '.join(['run LIKE ?'] * len(statuses))})"
        values += [f'%"status":"{status}"%' for status in statuses]
    statement = f"SELECT n, run FROM runs WHERE {condition} ORDER BY n DESC LIMIT ? OFFSET ?"  # noqa: S608 - constants
    return [(int(n), observed_run(text, read)) for n, text in read(statement, *values, limit, skip)]


def count_runs(read: Query) -> int:
    return int(read("SELECT count(*) FROM runs")[0][0])


def run_exists(read: Query, run: str) -> bool:
    return bool(read("SELECT 1 FROM runs WHERE id = ?", run))


def select_in(read: Query, statement: str, values: Iterable[str]) -> Iterator[Row]:
    """The rows of a statement with ``IN ({places})``, for any number of values."""
    source = iter(dict.fromkeys(values))
    while chunk := list(islice(source, _MAX_VALUES)):
        yield from read(statement.format(places=", ".join("?" * len(chunk))), *chunk)


def baseline_names(read: Query, runs: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The names of the baselines that these runs are, by run; a run that is none is left out."""
    names: dict[str, tuple[str, ...]] = {}
    statement = "SELECT run, name FROM baselines WHERE run IN ({places}) ORDER BY name"
    for run, name in select_in(read, statement, runs):
        names[run] = (*names.get(run, ()), name)
    return names


def count_responses(read: Query, runs: Iterable[str]) -> dict[str, int]:
    """The number of responses by run; a run without any is left out."""
    statement = "SELECT run, CAST(sum(count) AS BIGINT) FROM response_counts WHERE run IN ({places}) GROUP BY run"
    return {run: int(count) for run, count in select_in(read, statement, runs)}


def count_outcomes(read: Query, runs: Iterable[str]) -> dict[tuple[str, str], dict[str, int]]:
    """The numbers of passes and fails, by run and grader."""
    statement = (
        "SELECT run, grader, outcome, count FROM grade_counts WHERE run IN ({places})"
        " AND outcome IN ('pass', 'fail') AND count > 0"
    )
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for run, grader, outcome, count in select_in(read, statement, runs):
        counts.setdefault((run, grader), {})[outcome] = int(count)
    return counts


def runs_with_clusters(read: Query, runs: Iterable[str]) -> set[str]:
    """Those of the runs whose cases have clusters."""
    statement = (
        "SELECT id FROM runs WHERE id IN ({places}) AND EXISTS (SELECT 1 FROM clusters WHERE clusters.run = runs.id)"
    )
    return {run for (run,) in select_in(read, statement, runs)}


def successful_latencies(read: Query, run: str) -> Iterator[list[float]]:
    """The latencies of the successful responses of a run, in pages."""
    case, repeat = "", -1
    while rows := read(
        "SELECT case_key, repeat, latency_ms FROM responses WHERE run = ? AND (case_key, repeat) > (?, ?)"
        " AND status = 'success' ORDER BY case_key, repeat LIMIT ?",
        run,
        case,
        repeat,
        _PAGE_ROWS,
    ):
        yield [latency_ms for _, _, latency_ms in rows if latency_ms is not None]
        case, repeat = rows[-1][:2]


def count_scored(read: Query, run: str) -> int:
    """The number of results with a score, counted in pages: over millions one statement would take minutes."""
    scored, case, repeat = 0, "", -1
    while rows := read(
        "SELECT case_key, repeat FROM grades WHERE run = ? AND (case_key, repeat) > (?, ?)"
        " AND outcome IN ('pass', 'fail') GROUP BY case_key, repeat ORDER BY case_key, repeat LIMIT ?",
        run,
        case,
        repeat,
        _PAGE_ROWS,
    ):
        scored += len(rows)
        case, repeat = rows[-1]
    return scored


def score_bins(read: Query, run: str, edges: Sequence[float]) -> list[tuple[str, int, int]]:
    """The grader, the index of the bin and the number of scores in it, for each bin that has any."""
    statement = f"""SELECT grader, bin, count(*) FROM (
            SELECT grader, {_bin_of("score", len(edges) - 1)} AS bin FROM grades WHERE run = ? AND score IS NOT NULL
        ) AS scores GROUP BY grader, bin"""  # noqa: S608 - constants
    return [(grader, index, count) for grader, index, count in read(statement, *edges[1:-1], run)]


class LatencyBin(NamedTuple):
    """A bin of a histogram with the number of its values, the lowest and the highest of them."""

    bin: int
    number: int
    low: float
    high: float


def latency_bins(read: Query, run: str, edges: Sequence[float]) -> list[LatencyBin]:
    """The bins that have latencies of successful responses."""
    statement = f"""SELECT bin, count(*), min(latency_ms), max(latency_ms) FROM (
            SELECT latency_ms, {_bin_of("latency_ms", len(edges) - 1)} AS bin FROM responses
            WHERE run = ? AND status = 'success' AND latency_ms IS NOT NULL
        ) AS latencies GROUP BY bin"""  # noqa: S608 - constants
    return [LatencyBin(*row) for row in read(statement, *edges[1:-1], run)]


def _bin_of(column: str, bins: int) -> str:
    """The index of a value's bin; the inner edges are the values. Comparing is exact, dividing would not be."""
    whens = " ".join(f"WHEN {column} < ? THEN {index}" for index in range(bins - 1))
    return f"CASE {whens} ELSE {bins - 1} END"


def max_latency(read: Query, run: str) -> float:
    """The highest latency of a successful response in milliseconds; 0 if there is none."""
    rows = read("SELECT max(latency_ms) FROM responses WHERE run = ? AND status = 'success'", run)
    return float(rows[0][0] or 0.0)


def samples_of_case(read: Query, runs: Iterable[str], case: str) -> dict[str, Sample]:
    """The case as each of the runs has it, by run."""

    def query(statement: str, *values: Value) -> list[Row]:
        return read(statement, case, *values)

    statement = "SELECT run, sample FROM samples WHERE case_key = ? AND run IN ({places})"
    return {run: from_json(Sample, sample) for run, sample in select_in(query, statement, runs)}


class ReplacedResponse(NamedTuple):
    """A response that a retry replaced, with its grades."""

    attempt: int
    response: Response
    grades: dict[str, Grade]


def replaced_responses(read: Query, run: str, case: str, repeat: int) -> list[ReplacedResponse]:
    """The earlier responses of a result, oldest first."""
    where = "WHERE run = ? AND case_key = ? AND repeat = ? ORDER BY attempt"
    responses = read(f"SELECT attempt, response FROM response_history {where}", run, case, repeat)  # noqa: S608 - constants
    if not responses:
        return []
    grades: dict[int, dict[str, Grade]] = {}
    statement = f"SELECT attempt, grader, grade FROM grade_history {where}, grader"  # noqa: S608 - constants
    for attempt, grader, grade in read(statement, run, case, repeat):
        grades.setdefault(attempt, {})[grader] = from_json(Grade, grade)
    return [
        ReplacedResponse(attempt, from_json(Response, response), grades.get(attempt, {}))
        for attempt, response in responses
    ]


def has_replaced_responses(read: Query, run: str) -> bool:
    return bool(read("SELECT 1 FROM response_history WHERE run = ? LIMIT 1", run))


# of an input of several turns the first one
_TEXTS = {
    "sqlite": (
        "coalesce(json_extract(samples.sample, '$.input[0]'), json_extract(samples.sample, '$.input'))",
        "json_extract(responses.response, '$.text')",
    ),
    "postgresql": (
        "coalesce(samples.sample::json #>> '{{input,0}}', samples.sample::json ->> 'input')",
        "responses.response::json ->> 'text'",
    ),
}


def excerpts(
    read: Query, dialect: Dialect, run: str, cases: Iterable[str], chars: int
) -> Iterator[tuple[str, str | None, str | None]]:
    """Each case with the beginnings of its input and of the response at its first repeat."""
    prompt, answer = _TEXTS[dialect.name]

    def query(statement: str, *values: Value) -> list[Row]:
        return read(statement, chars, chars, run, *values)

    statement = f"""SELECT samples.case_key, substr({prompt}, 1, ?), substr({answer}, 1, ?)
        FROM samples LEFT JOIN responses ON responses.run = samples.run
            AND responses.case_key = samples.case_key AND responses.repeat = 0
        WHERE samples.run = ? AND samples.case_key IN ({{places}})"""  # noqa: S608 - constants
    return ((case, first, second) for case, first, second in select_in(query, statement, cases))


def read_test_case(read: Query, case: str) -> TestCase | None:
    rows = read("SELECT test_case FROM test_cases WHERE id = ? AND deleted = 0", case)
    return from_json(TestCase, rows[0][0]) if rows else None


def lock_test_case(transaction: Transaction, case: str) -> TestCase | None:
    """The test case, locked until the transaction ends; an update that changes nothing locks in either database."""
    statement = "UPDATE test_cases SET deleted = deleted WHERE id = ? AND deleted = 0 RETURNING test_case"
    rows = transaction.run(statement, case)
    return from_json(TestCase, rows[0][0]) if rows else None


def update_test_case(transaction: Transaction, case: TestCase) -> None:
    transaction.run("UPDATE test_cases SET test_case = ? WHERE id = ?", to_json(case), case.id)


def hide_test_case(transaction: Transaction, case: str) -> list[Row]:
    """Mark a test case as deleted; returns a row with the key that created it, or no row if there is no such case."""
    return transaction.run("UPDATE test_cases SET deleted = 1 WHERE id = ? AND deleted = 0 RETURNING created_by", case)


def is_test_case_id(read: Query, case: str) -> bool:
    """Whether a test case has this id, deleted ones included."""
    return bool(read("SELECT 1 FROM test_cases WHERE id = ?", case))


def list_test_cases(read: Query, after: int, limit: int, skip: int = 0) -> list[tuple[int, TestCase]]:
    """A page of test cases after their numbers, oldest first."""
    statement = "SELECT n, test_case FROM test_cases WHERE n > ? AND deleted = 0 ORDER BY n LIMIT ? OFFSET ?"
    return [(int(n), from_json(TestCase, text)) for n, text in read(statement, after, limit, skip)]


def find_test_cases(read: Query, ids: Iterable[str]) -> dict[str, TestCase]:
    """The existing ones of these test cases."""
    statement = "SELECT id, test_case FROM test_cases WHERE deleted = 0 AND id IN ({places})"
    return {case: from_json(TestCase, text) for case, text in select_in(read, statement, ids)}


def select_test_cases(
    read: Query, numbers: str, values: Sequence[Value], limit: int, skip: int
) -> list[tuple[int, TestCase]]:
    """The page of test cases whose numbers ``n`` the query ``numbers`` gives, oldest first."""
    rows = read(
        f"""SELECT test_cases.n, test_cases.test_case FROM (
            SELECT n FROM ({numbers}) AS merged ORDER BY n LIMIT ? OFFSET ?
        ) AS page CROSS JOIN test_cases WHERE test_cases.n = page.n AND test_cases.deleted = 0
        ORDER BY test_cases.n""",  # noqa: S608 - constants
        *values,
        limit,
        skip,
    )
    return [(int(n), from_json(TestCase, text)) for n, text in rows]


def insert_test_cases(transaction: Transaction, rows: Iterable[tuple[str, str, str | None]]) -> None:
    """Insert test cases: the id, the stored form and the key that created it."""
    insert_rows(transaction, "test_cases", "id, test_case, created_by", rows)


def copy_test_cases(transaction: Transaction, query: str, *values: Value) -> None:
    """Insert the test cases that a query gives: id, stored form and the key that created it."""
    transaction.run(f"INSERT INTO test_cases (id, test_case, created_by) {query}", *values)


def count_test_cases(read: Query) -> int:
    """The number of test cases, from a counter."""
    ((live,),) = read("SELECT live FROM case_totals")
    return int(live)


def order_new_test_cases(transaction: Transaction) -> None:
    """Ensure that new cases are numbered in the order of their commits, so that a reader by number misses none."""
    transaction.run("UPDATE case_totals SET live = live")


class TagMatch(NamedTuple):
    """The tags in use that contain a text, each with its number of cases."""

    part: str
    cases: dict[str, int]


class CaseTags:
    """Finds test cases by part of a tag."""

    def __init__(self, database: Database) -> None:
        self._database = database
        find = "instr" if database.dialect.name == "sqlite" else "strpos"
        self._in_use = f"FROM tag_counts WHERE live > 0 AND {find}(tag, ?) > 0"

    def match(self, part: str) -> TagMatch:
        rows = self._database.read(f"SELECT tag, live {self._in_use} ORDER BY tag", part)
        return TagMatch(part, {tag: int(live) for tag, live in rows})

    def page(self, match: TagMatch, after: int, limit: int, skip: int = 0) -> list[tuple[int, TestCase]]:
        """The cases with any of the tags, after their numbers, from after one number on."""
        if not match.cases:
            return []
        numbers, values = self._numbers(match, after, limit + skip)
        return select_test_cases(self._database.read, numbers, values, limit, skip)

    def count(self, match: TagMatch) -> tuple[int, bool]:
        """The number of cases with any of the tags, and whether there are more, which is possible with several tags."""
        if len(match.cases) < 2:
            return sum(match.cases.values()), False
        if max(match.cases.values()) > _MAX_COUNTED:
            return _MAX_COUNTED, True
        # a case may have several of the tags
        numbers, values = self._numbers(match, 0, _MAX_COUNTED + 1)
        ((number,),) = self._database.read(
            f"SELECT count(*) FROM (SELECT n FROM ({numbers}) AS merged LIMIT ?) AS counted",  # noqa: S608 - constants
            *values,
            _MAX_COUNTED + 1,
        )
        return min(int(number), _MAX_COUNTED), number > _MAX_COUNTED

    def _numbers(self, match: TagMatch, after: int, most: int) -> tuple[str, list[Value]]:
        """A query for the numbers of the first cases with any of the tags."""
        if len(match.cases) > _MAX_MERGED:
            every = f"SELECT DISTINCT n FROM case_tags WHERE tag IN (SELECT tag {self._in_use}) AND n > ?"  # noqa: S608 - constants
            return every, [match.part, after]
        one = "SELECT n FROM (SELECT n FROM case_tags WHERE tag = ? AND n > ? ORDER BY n LIMIT ?) AS tagged"
        values: list[Value] = [value for tag in match.cases for value in (tag, after, most)]
        return " UNION ".join([one] * len(match.cases)), values


class BlockQueries:
    """Counts of results in blocks of ``positions`` positions each, for an index of a run."""

    def __init__(self, database: Database, source: str, positions: int) -> None:
        self._database = database
        self._source = source
        self._positions = positions

    def responses(self, first: int, end: int, bins: Sequence[float]) -> list[Row]:
        """Block, status, bin of the latency and number of responses."""
        latency_bin = _block_bin("responses.latency_ms", bins)
        statement = f"""SELECT samples.position / ?, responses.status, {latency_bin}, count(*)
            FROM {join_samples("responses", self._database.dialect)} AND samples.run = ?
                AND samples.position >= ? AND samples.position < ? GROUP BY 1, 2, 3"""  # noqa: S608 - constants
        return self._database.read(statement, self._positions, self._source, self._source, first, end)

    def grades(self, run: str, first: int, end: int, bins: Sequence[float]) -> list[Row]:
        """Block, grader, outcome, bin of the score and number of grades; a grade without a response is no result."""
        dialect = self._database.dialect
        statement = f"""SELECT samples.position / ?, grades.grader, grades.outcome, {_block_bin("grades.score", bins)},
                count(*)
            FROM {join_samples("grades", dialect)} AND samples.run = ?
                AND samples.position >= ? AND samples.position < ? AND EXISTS (
                    SELECT 1 FROM responses WHERE responses.run = samples.run
                        AND responses.case_key = samples.case_key AND responses.repeat = grades.repeat
                        {fence(dialect)})
            GROUP BY 1, 2, 3, 4"""  # noqa: S608 - constants
        return self._database.read(statement, self._positions, run, self._source, first, end)

    def tags(self, first: int, end: int) -> list[Row]:
        """Block and tags, as a JSON list."""
        tags = {"sqlite": "json_extract(sample, '$.tags')", "postgresql": "(sample::json -> 'tags')::text"}
        statement = f"""SELECT DISTINCT position / ?, {tags[self._database.dialect.name]} FROM samples
            WHERE run = ? AND position >= ? AND position < ?"""  # noqa: S608 - constants
        return self._database.read(statement, self._positions, self._source, first, end)


def _block_bin(column: str, ends: Sequence[float]) -> str:
    """The index of a value's bin; NULL if there is no value."""
    whens = " ".join(f"WHEN {column} < {end!r} THEN {index}" for index, end in enumerate(ends))
    return f"CASE WHEN {column} IS NULL THEN NULL {whens} ELSE {len(ends)} END"
