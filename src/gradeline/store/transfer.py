"""The cases of a run as lines of JSON, to copy a run into another store.

A line has everything that is stored for one case: `TransferCase`. The parts of a record are the stored JSON itself, so
that a copy has the same bytes. Not copied are replaced responses and the keys by which responses are reused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Annotated, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from gradeline.errors import DataError, StoreError
from gradeline.model.fingerprint import canonical_json
from gradeline.model.grade import Grade
from gradeline.model.label import LabelRow, RaterRole, SamplingMethod, Verdict
from gradeline.model.record import ResponseKey, from_json, to_json
from gradeline.model.response import Response
from gradeline.model.run import Run
from gradeline.model.sample import Sample
from gradeline.model.text import clean_text, quote
from gradeline.store.database import Database, Row, SharedStorage, Transaction
from gradeline.store.labels import (
    LabelDraw,
    create_label_tables,
    draws_of_cases,
    has_label_tables,
    insert_labels,
    labels_of_cases,
    put_draws,
)
from gradeline.store.leases import Query
from gradeline.store.queries import insert_rows
from gradeline.store.rows import RecordRow, grade_row, response_row
from gradeline.store.sql_storage import response_source

LINES_TYPE = "application/x-ndjson"
_CASES_AT_ONCE = 50
_PAGE_BYTES = 1_000_000
_PAGE_CASES = 500
START = (-1, "")
"""Position and key before the first case."""
_MAX_NUMBER = 10**9
"""Positions and repeats are below it."""
_MAX_KEY = 10_000
"""Characters of a case's or a grader's key."""
_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=_MAX_KEY)]
_Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
_Number: TypeAlias = Annotated[int, Meta(ge=0, lt=_MAX_NUMBER)]
_ABSENT = msgspec.Raw()
T = TypeVar("T", bound=msgspec.Struct)
_encoder = msgspec.json.Encoder()


class TransferLabel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rater's current label of a result, with the grade and response that it is about."""

    question: _Name
    verdict: Verdict | None = None
    score: _Share | None = None
    category: _Name | None = None
    comment: str = ""
    rater: Annotated[str, Meta(max_length=_MAX_KEY)] = ""
    role: RaterRole = "rater"
    probability: _Share | None = None
    sample: _Name | None = None
    at: str
    grade_outcome: str | None = None
    grade_score: float | None = None
    grader_fingerprint: str = ""
    case_digest: str
    response_digest: str


class TransferDraw(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The place of a result in a sample that was drawn for labelling."""

    sample: _Name
    question: _Name
    place: _Number
    method: SamplingMethod
    seed: Annotated[int, Meta(ge=0, lt=2**53)]
    probability: _Share | None = None
    stratum: str = ""
    stratum_size: _Number
    population: _Number
    at: str


class TransferGrade(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A grade of a result."""

    grader: str
    grade: msgspec.Raw
    """A stored `Grade`."""
    submission: str | None = None


class TransferResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A response and its grades."""

    repeat: int
    response: msgspec.Raw = _ABSENT
    """A stored `Response`; absent in a run that regrades another."""
    grades: list[TransferGrade] = []
    labels: list[TransferLabel] = []
    draws: list[TransferDraw] = []


class TransferCase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that is stored for one case of a run."""

    case: str
    position: int
    sample: msgspec.Raw = _ABSENT
    """A stored `Sample`; absent in a run that regrades another."""
    cluster: str | None = None
    results: list[TransferResult] = []


class Content(NamedTuple):
    """The digest and size that identify the content of a run."""

    digest: str
    cases: int
    size: int
    """Bytes of the lines."""


class ContentDigest:
    """A digest of a run's header and its lines in order, which can be continued from its last value."""

    def __init__(self, value: str) -> None:
        self.value = value

    @classmethod
    def of_header(cls, header: object) -> ContentDigest:
        """Begin with the header as JSON data, however it is formatted."""
        return cls(blake2b(canonical_json(header), digest_size=32).hexdigest())

    def add(self, line: bytes) -> None:
        inner = blake2b(line, digest_size=32).digest()
        self.value = blake2b(bytes.fromhex(self.value) + inner, digest_size=32).hexdigest()


def header_of(run: Run) -> dict[str, object]:
    """The run as JSON data, without the fields that only concern its own store."""
    header: dict[str, object] = msgspec.json.decode(to_json(msgspec.structs.replace(run, owner=None)))
    return header


def content_of(header: object, lines: Iterable[bytes]) -> Content:
    """The digest and the size of a run. Reads all its rows."""
    digest, cases, size = ContentDigest.of_header(header), 0, 0
    for line in lines:
        digest.add(line)
        cases += 1
        size += len(line) + 1
    return Content(digest.value, cases, size)


def case_lines(database: Database, run: str) -> Iterator[bytes]:
    """The lines of a run by the position of their cases, in constant memory, without line ends."""
    return (_encoder.encode(case) for case in read_cases(database, run))


class CasePage(NamedTuple):
    """Some of the lines of a run."""

    lines: list[bytes]
    last: tuple[int, str] | None
    """Position and key of the last case if more follow."""


def case_page(database: Database, run: str, after: tuple[int, str] = START) -> CasePage:
    """The lines that follow a case, as many as make a page of bounded size, but at least one."""
    lines: list[bytes] = []
    size, last = 0, after
    for case in read_cases(database, run, after):
        line = _encoder.encode(case)
        if lines and (size + len(line) > _PAGE_BYTES or len(lines) >= _PAGE_CASES):
            return CasePage(lines, last)
        lines.append(line)
        size, last = size + len(line), (case.position, case.case)
    return CasePage(lines, None)


def read_cases(database: Database, run: str, after: tuple[int, str] = START) -> Iterator[TransferCase]:
    """The cases of a run by position. A run that regrades another has those that it has grades or labels of."""
    read = database.read
    source = response_source(read, run)
    labelled = has_label_tables(read)
    while rows := read(
        "SELECT position, case_key, sample FROM samples WHERE run = ? AND (position, case_key) > (?, ?)"
        " ORDER BY position, case_key LIMIT ?",
        source,
        *after,
        _CASES_AT_ONCE,
    ):
        keys = [case for _, case, _ in rows]
        responses = _responses(read, run, keys)
        grades = _grades(read, run, keys)
        people = _people(read, run, keys) if labelled else _NO_LABELS
        clusters: dict[str, str] = dict(_of_cases(read, "case_key, cluster FROM clusters", run, keys, "case_key"))
        for position, case, sample in rows:
            if source == run:
                own = [_result(case, repeat, grades[case], people, _raw(text)) for repeat, text in responses[case]]
                yield TransferCase(
                    case=case, position=position, sample=_raw(sample), cluster=clusters.get(case), results=own
                )
            elif repeats := grades[case].keys() | people.repeats.get(case, set()):
                regraded = [_result(case, repeat, grades[case], people) for repeat in sorted(repeats)]
                yield TransferCase(case=case, position=position, cluster=clusters.get(case), results=regraded)
        after = rows[-1][:2]


class CaseRows(NamedTuple):
    """The rows of one case."""

    case: str
    records: list[RecordRow]
    samples: list[tuple[str, str, int, str]]
    """The case itself, if no response stores it: (run, case, position, sample)."""
    clusters: list[tuple[str, str, str]]
    """Its cluster, if no response stores it: (run, case, cluster)."""
    labels: list[LabelRow]
    draws: list[LabelDraw]
    results: list[tuple[str, int]]
    """The case and repeat of each result that has no response of its own."""


def read_line(line: bytes, run: str) -> CaseRows:
    """The rows of a line of `case_lines`; `DataError` if it is invalid."""
    try:
        read = msgspec.json.decode(line, type=TransferCase)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not a case of a run: {error}") from None
    case = read.case
    _require(0 < len(case) <= _MAX_KEY, f"a case has an id of {len(case):,} characters; use 1 to {_MAX_KEY:,}")
    place = f"case {quote(case, 60)}"
    _require(
        0 <= read.position < _MAX_NUMBER, f"{place}: the position {read.position} is not from 0 to {_MAX_NUMBER:,}"
    )
    sample = from_json(Sample, bytes(read.sample)) if bytes(read.sample) else None
    _require(sample is None or sample.case_key == case, f"{place}: its sample has another id")
    rows = CaseRows(case, [], [], [], [], [], [])
    repeats: set[int] = set()
    for result in read.results:
        repeat = result.repeat
        _require_number(repeat, f"{place}: the repeat")
        _require(repeat not in repeats, f"{place}: the repeat {repeat} is there twice")
        repeats.add(repeat)
        key = ResponseKey(run, case, repeat)
        if bytes(result.response):
            if sample is None:
                raise DataError(f"{place}: a response without its sample")
            response = from_json(Response, bytes(result.response))
            rows.records.append(response_row(key, response, sample, read.position)._replace(cluster=read.cluster))
        else:
            rows.results.append((case, repeat))
        _add_grades(rows, key, result.grades)
        _add_labels(rows, key, result)
    own = len(read.results) - len(rows.results)
    _require(own in (0, len(read.results)), f"{place}: some results have a response and others have none")
    if not own:
        if sample is not None:
            rows.samples.append((run, case, read.position, to_json(sample)))
        if read.cluster is not None:
            rows.clusters.append((run, case, read.cluster))
    return rows


def _add_grades(rows: CaseRows, key: ResponseKey, grades: Sequence[TransferGrade]) -> None:
    place = f"case {quote(key.case, 60)}, repeat {key.repeat}"
    graders: set[str] = set()
    for one in grades:
        grader = one.grader
        _require(0 < len(grader) <= _MAX_KEY, f"{place}: a grader's key has {len(grader):,} characters")
        _require(grader not in graders, f"{place}: two grades by {quote(grader, 60)}")
        graders.add(grader)
        grade = from_json(Grade, bytes(one.grade))
        score = grade.score
        _require(
            score is None or 0 <= score <= 1, f"{place}: the score {score} of {quote(grader, 60)} is not from 0 to 1"
        )
        rows.records.append(grade_row((*key, grader), grade, one.submission))


def _add_labels(rows: CaseRows, key: ResponseKey, result: TransferResult) -> None:
    place = f"case {quote(key.case, 60)}, repeat {key.repeat}"
    for found in (*result.labels, *result.draws):
        fields = msgspec.structs.asdict(found)
        changed = next(
            (name for name, value in fields.items() if isinstance(value, str) and clean_text(value).changed), ""
        )
        _require(not changed, f"{place}: the {changed} of a label contains NUL or half a surrogate pair")
    rows.labels.extend(
        LabelRow(case=key.case, repeat=key.repeat, **msgspec.structs.asdict(label)) for label in result.labels
    )
    rows.draws.extend(
        LabelDraw(case=key.case, repeat=key.repeat, **msgspec.structs.asdict(draw)) for draw in result.draws
    )


def _require_number(number: int, what: str) -> None:
    _require(0 <= number < _MAX_NUMBER, f"{what} {number} is not from 0 to {_MAX_NUMBER - 1:,}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise DataError(message)


def put_case_extras(transaction: Transaction, run: str, cases: Sequence[CaseRows]) -> None:
    """Store what a batch of responses and grades leaves out: cases without a response, clusters, labels and draws."""
    insert_rows(
        transaction, "samples", "run, case_key, position, sample", (row for one in cases for row in one.samples)
    )
    insert_rows(transaction, "clusters", "run, case_key, cluster", (row for one in cases for row in one.clusters))
    insert_labels(transaction, run, (label for one in cases for label in one.labels))
    put_draws(transaction, run, [draw for one in cases for draw in one.draws])


def put_cases(storage: SharedStorage, run: str, lines: Iterable[str]) -> None:
    """Store the cases of these lines in one transaction; the run exists and has none of them."""
    cases = [read_line(line.encode(), run) for line in lines]
    if any(one.labels or one.draws for one in cases):
        create_label_tables(storage.database)
    rows = [row for one in cases for row in one.records]

    def work(transaction: Transaction, stored: Sequence[RecordRow]) -> None:
        if len(stored) != len(rows):
            raise StoreError(f"the store cannot hold a row of the run {run}")
        put_case_extras(transaction, run, cases)

    storage.put_rows(rows, work)


def _responses(read: Query, run: str, cases: Sequence[str]) -> dict[str, list[tuple[int, str]]]:
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for case, repeat, response in _of_cases(read, "case_key, repeat, response FROM responses", run, cases, "repeat"):
        found[case].append((repeat, response))
    return found


def _grades(read: Query, run: str, cases: Sequence[str]) -> dict[str, dict[int, list[TransferGrade]]]:
    """The grades by case and repeat, in the order of their graders."""
    found: dict[str, dict[int, list[TransferGrade]]] = defaultdict(lambda: defaultdict(list))
    rows = _of_cases(
        read, "case_key, repeat, grader, grade, submission FROM grades", run, cases, "case_key, repeat, grader"
    )
    for case, repeat, grader, grade, submission in rows:
        found[case][repeat].append(TransferGrade(grader=grader, grade=_raw(grade), submission=submission))
    return found


class _People(NamedTuple):
    """What people did with the results of some cases, by case and repeat."""

    labels: dict[tuple[str, int], list[LabelRow]]
    draws: dict[tuple[str, int], list[LabelDraw]]
    repeats: dict[str, set[int]]
    """The repeats of each case with any of these."""


_NO_LABELS = _People({}, {}, {})


def _people(read: Query, run: str, cases: Sequence[str]) -> _People:
    found = _People(labels_of_cases(read, run, cases), draws_of_cases(read, run, cases), defaultdict(set))
    for case, repeat in (*found.labels, *found.draws):
        found.repeats[case].add(repeat)
    return found


def _of_cases(read: Query, columns: str, run: str, cases: Sequence[str], order: str) -> list[Row]:
    places = ", ".join("?" * len(cases))
    statement = f"SELECT {columns} WHERE run = ? AND case_key IN ({places}) ORDER BY {order}"
    return read(statement, run, *cases)


def _result(
    case: str,
    repeat: int,
    grades: dict[int, list[TransferGrade]],
    people: _People,
    response: msgspec.Raw = _ABSENT,
) -> TransferResult:
    return TransferResult(
        repeat=repeat,
        response=response,
        grades=grades.get(repeat, []),
        labels=[_fields(TransferLabel, row) for row in people.labels.get((case, repeat), ())],
        draws=[_fields(TransferDraw, draw) for draw in people.draws.get((case, repeat), ())],
    )


def _fields(kind: type[T], row: NamedTuple) -> T:
    return kind(**{name: getattr(row, name) for name in kind.__struct_fields__})


def _raw(stored: str) -> msgspec.Raw:
    return msgspec.Raw(stored.encode())
