"""The results of runs: pages of them, one with everything stored about it, and the same case in other runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path, PurePath
from threading import BoundedSemaphore
from typing import Any

import msgspec
from msgspec import Struct

from gradeline.errors import Outcome
from gradeline.model import (
    ErrorInfo,
    Grade,
    Record,
    Response,
    ResponseKey,
    Run,
    Sample,
    Storage,
    case_digest,
    clean_text,
    from_json,
)
from gradeline.model.sample import join_turns
from gradeline.rest_types import (
    Result,
    ResultAttempt,
    ResultDetail,
    ResultPage,
    Score,
    read_result_id,
    result_id,
)
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.requests import PageRequest, decode_cursor, encode_cursor
from gradeline.service.result_blocks import BlockIndexes
from gradeline.service.settings import ServeSettings
from gradeline.service.summaries import Histograms, Summaries
from gradeline.store.database import Database
from gradeline.store.queries import (
    NEWEST,
    has_replaced_responses,
    is_test_case_id,
    newest_runs,
    replaced_responses,
    response_sources,
    samples_of_case,
)
from gradeline.store.result_pages import BEGINNING, ResultFilter, ResultPages, ResultPosition
from gradeline.store.sql_storage import response_source

LONGEST = 2_000
"""Maximum length of a text in a list, in characters."""

_MOST_ITEMS = 100


def to_result(record: Record, run: Run, names: Mapping[str, str]) -> Result:
    """A result as lists have it, with long texts shortened."""
    cut = _Cutter()
    fields = _fields(record, run, names, cut)
    return Result(**fields, truncated=cut.shortened)


def to_detail(record: Record, run: Run, names: Mapping[str, str], history: Sequence[ResultAttempt]) -> ResultDetail:
    """A result with everything that is stored about it."""
    return ResultDetail(
        **_fields(record, run, names, None),
        evaluation_id=run.id,
        sample=record.sample,
        response=record.response,
        submissions=record.submissions,
        grades=record.grades,
        history=list(history),
    )


def score_of(key: str, grade: Grade, name: str) -> Score:
    """A grade as a score, with full texts."""
    return _score(key, grade, name, None)


class _Cutter:
    """Shortens texts, and remembers whether any was too long."""

    def __init__(self) -> None:
        self.shortened = False

    def text(self, text: str) -> str:
        if len(text) <= LONGEST:
            return text
        self.shortened = True
        return text[:LONGEST]

    def data(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict | list) and len(value) > _MOST_ITEMS:
            self.shortened = True
        if isinstance(value, dict):
            return {key: self.data(item) for key, item in list(value.items())[:_MOST_ITEMS]}
        if isinstance(value, list):
            return [self.data(item) for item in value[:_MOST_ITEMS]]
        return value


def _fields(record: Record, run: Run, names: Mapping[str, str], cut: _Cutter | None) -> dict[str, Any]:
    sample, response = record.sample, record.response
    order = [key for key in run.graders if key in record.grades]
    order += [key for key in record.grades if key not in run.graders]
    outcomes = [record.grades[key].outcome for key in order]
    return {
        "result_id": result_id(record.case, record.repeat),
        "test_case_id": record.case,
        "repeat": record.repeat,
        "test_case_input": _cut_text(join_turns(sample.input), cut),
        "test_case_expected": None if sample.ground_truth is None else _cut_text(join_turns(sample.ground_truth), cut),
        "agent_response": _cut_text(response.text, cut),
        "response_status": response.status,
        "response_latency_ms": response.latency_ms,
        "error_message": None if response.error is None else _cut_text(response.error.message, cut),
        "scores": [_score(key, record.grades[key], names.get(key, key), cut) for key in order],
        "scores_succeeded": sum(outcome in (Outcome.PASS, Outcome.FAIL) for outcome in outcomes),
        "scores_failed": outcomes.count(Outcome.ERROR),
    }


def _score(key: str, grade: Grade, name: str, cut: _Cutter | None) -> Score:
    error = grade.error
    return Score(
        grader_id=key,
        grader_name=name,
        score_value=grade.score,
        score_status=grade.outcome,
        rationale=_cut_text(grade.rationale, cut),
        details=grade.metadata if cut is None else cut.data(grade.metadata),
        error_type=None if error is None else error.type,
        error_message=None if error is None else _cut_text(error.message, cut),
        latency_ms=grade.latency_ms,
    )


def _cut_text(text: str | None, cut: _Cutter | None) -> Any:
    return text if text is None or cut is None else cut.text(text)


_FILE = re.compile(r'(?<=File ")[^"\n]+(?=")')


class Tracebacks:
    """Replaces file paths in tracebacks: relative in the folder of graders, only the name elsewhere."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder.resolve()

    def shorten(self, traceback: str) -> str:
        return _FILE.sub(lambda found: self._short_path(PurePath(found[0])), traceback)

    def in_grade(self, grade: Grade) -> Grade:
        """The grade with its traceback shortened."""
        if grade.error is None or grade.error.traceback is None:
            return grade
        return msgspec.structs.replace(grade, error=self._in_error(grade.error))

    def in_response(self, response: Response) -> Response:
        """The response with its traceback shortened."""
        if response.error is None or response.error.traceback is None:
            return response
        return msgspec.structs.replace(response, error=self._in_error(response.error))

    def in_record(self, record: Record) -> Record:
        """The record with all tracebacks shortened; the same object if it has none."""
        grades = {key: self.in_grade(grade) for key, grade in record.grades.items()}
        response = self.in_response(record.response)
        if response is record.response and all(grades[key] is grade for key, grade in record.grades.items()):
            return record
        return msgspec.structs.replace(record, response=response, grades=grades)

    def _in_error(self, error: ErrorInfo) -> ErrorInfo:
        traceback = None if error.traceback is None else self.shorten(error.traceback)
        return msgspec.structs.replace(error, traceback=traceback)

    def _short_path(self, path: PurePath) -> str:
        if not path.is_absolute():
            return str(path)
        if self._folder is not None and path.is_relative_to(self._folder):
            return str(path.relative_to(self._folder))
        return f"…/{path.name}"


EXPORTS_AT_ONCE = 8

_LAST_POSITION = 2**31 - 1_000_000
"""Positions in the databases are below this number."""


class _StoredGraderOrigin(Struct):
    name: str | None = None


class _StoredGrader(Struct):
    origin: _StoredGraderOrigin = msgspec.field(default_factory=_StoredGraderOrigin, name="x-grader")


class _StoredSuite(Struct):
    graders: dict[str, _StoredGrader] = {}


class _StoredDefinition(Struct):
    """The part of a run's definition with the names of its graders."""

    document: _StoredSuite | None = None


RUNS_SEARCHED = 1_000
"""The number of newest runs in which the same case is searched."""
_RUNS_PER_QUERY = 100


class CaseRun(Struct, frozen=True, kw_only=True):
    """The case in one run."""

    evaluation_id: str
    name: str
    started_at: str | None
    result: Result


class CaseHistory(Struct, frozen=True, kw_only=True):
    """The same case in other runs, newest run first.

    A case is the same when its id and its content (input, expected output, metadata) are the same and it belongs to the
    same suite; a stored test case is the same in every suite. The newest 1,000 runs of the store are searched.
    """

    evaluation_id: str
    result_id: str
    runs: list[CaseRun]


class CaseFinder:
    """Finds the runs that have the same case."""

    def __init__(self, database: Database) -> None:
        self._read = database.read

    def runs(self, run: Run, record: Record) -> Iterator[Run]:
        """Other runs with this case, newest first."""
        digest = case_digest(record.sample)
        # no other case has the id of a stored test case, which may be deleted
        in_all_suites = is_test_case_id(self._read, record.case)
        for chunk in self._chunks():
            others = [one for one in chunk if one.id != run.id and (in_all_suites or one.suite == run.suite)]
            sources = response_sources(self._read, others)
            samples = samples_of_case(self._read, sources.values(), record.case)
            yield from (
                one for one in others if sources[one.id] in samples and case_digest(samples[sources[one.id]]) == digest
            )

    def _chunks(self) -> Iterator[list[Run]]:
        before, searched = NEWEST, 0
        while searched < RUNS_SEARCHED and (rows := newest_runs(self._read, before, _RUNS_PER_QUERY)):
            yield [run for _, run in rows]
            before, searched = rows[-1][0], searched + len(rows)


class Results:
    """The results of the runs of a store. An unknown run or result is a `ServiceError` NOT_FOUND."""

    def __init__(self, database: Database, storage: Storage, settings: ServeSettings) -> None:
        self._database = database
        self._storage = storage
        self._pages = ResultPages(database)
        self._same_case = CaseFinder(database)
        self.blocks = BlockIndexes(database, storage)
        self.summaries = Summaries(database, storage)
        self.histograms = Histograms(database, storage, self.summaries)
        self.export_slots = BoundedSemaphore(EXPORTS_AT_ONCE)
        self.tracebacks = Tracebacks(settings.graders_dir)

    def run(self, evaluation_id: str) -> Run:
        """The run with an id from a request."""
        run = None if clean_text(evaluation_id).changed else self._storage.get_run(evaluation_id)
        if run is None:
            raise not_found("evaluation", evaluation_id)
        return run

    def page(self, evaluation_id: str, where: ResultFilter, page: PageRequest) -> ResultPage:
        """A page of results, by case and repeat in the order of the suite."""
        run = self.run(evaluation_id)
        source = response_source(self._database.read, run.id)
        start, skip = self._start(source, page)
        index = self.blocks.of(run, source, where, skip)
        if index is not None:
            start, skip = index.skipped(where, start, skip)
        found = self._pages.page(
            run.id,
            source,
            where,
            start,
            skip=skip,
            limit=page.limit,
            repeats=run.repeats,
            ranges=None if index is None else index.ranges(where, start),
        )
        grades = self._pages.grades(run.id, found.positions)
        names = self.names(run)
        results = []
        for position, sample, response in self._pages.texts(source, found.positions):
            record = Record(
                run.id,
                position.case,
                position.repeat,
                from_json(Sample, sample),
                from_json(Response, response),
                {},
                {one.grader: from_json(Grade, one.grade) for one in grades.get(position[1:], ())},
            )
            results.append(to_result(record, run, names))
        following = None if found.following is None else _cursor(source, found.following, found.skip)
        return ResultPage(evaluation_id=run.id, results=results, summary=self.summaries.of(run), next_cursor=following)

    def detail(self, evaluation_id: str, result_id: str) -> ResultDetail:
        """A result with everything that is stored about it."""
        run = self.run(evaluation_id)
        record = self.record(run, result_id)
        if record is None:
            raise not_found("result", result_id)
        return self.of_record(run, record, self.names(run))

    def case_history(self, evaluation_id: str, result_id: str, limit: int) -> CaseHistory:
        """The same case and repeat in other runs, the newest first."""
        run = self.run(evaluation_id)
        record = self.record(run, result_id)
        if record is None:
            raise not_found("result", result_id)
        found: list[CaseRun] = []
        for other in self._same_case.runs(run, record):
            result = self._storage.get_record(ResponseKey(other.id, record.case, record.repeat))
            if result is not None:
                shown = to_result(result, other, self.names(other))
                found.append(
                    CaseRun(evaluation_id=other.id, name=other.name, started_at=other.started_at, result=shown)
                )
            if len(found) == limit:
                break
        return CaseHistory(evaluation_id=run.id, result_id=result_id, runs=found)

    def record(self, run: Run, result_id: str) -> Record | None:
        """The stored record of a result; None if there is no such result."""
        for case, repeat in read_result_id(result_id):
            if not clean_text(case).changed:
                record = self._storage.get_record(ResponseKey(run.id, case, repeat))
                if record is not None:
                    return record
        return None

    def of_record(
        self, run: Run, record: Record, names: Mapping[str, str], *, with_history: bool = True
    ) -> ResultDetail:
        """A record as a result, with its earlier attempts."""
        history = self._history(run, record) if with_history else []
        return to_detail(self.tracebacks.in_record(record), run, names, history)

    def has_history(self, run: Run) -> bool:
        """Whether any response of the run was replaced; usually none was."""
        return has_replaced_responses(self._database.read, run.id)

    def names(self, run: Run) -> Mapping[str, str]:
        """The names of the graders when the run was started, by key; a missing grader is named by its key."""
        try:
            definition = msgspec.json.decode(run.definition or "{}", type=_StoredDefinition)
        except msgspec.DecodeError:
            return {}
        graders = {} if definition.document is None else definition.document.graders
        return {key: entry.origin.name for key, entry in graders.items() if entry.origin.name}

    def _history(self, run: Run, record: Record) -> list[ResultAttempt]:
        """The earlier attempts; a run that regrades has none, as they belong to the run it regrades."""
        return [
            ResultAttempt(
                attempt=one.attempt,
                response=self.tracebacks.in_response(one.response),
                grades={grader: self.tracebacks.in_grade(grade) for grader, grade in one.grades.items()},
            )
            for one in replaced_responses(self._database.read, run.id, record.case, record.repeat)
        ]

    def _start(self, source: str, page: PageRequest) -> tuple[ResultPosition, int]:
        if page.cursor is None:
            return BEGINNING, page.skip
        position, mark, repeat, skip = decode_cursor(page.cursor, int, str, int, int)
        if not (isinstance(position, int) and isinstance(repeat, int) and isinstance(skip, int)):
            raise _unknown_cursor()
        if 0 <= position < _LAST_POSITION and skip >= 0 and repeat < _LAST_POSITION:
            if mark == "":
                return ResultPosition(position, "", -1), skip
            for case in self._pages.cases_at(source, position):
                if _mark(source, case) == mark:
                    return ResultPosition(position, case, repeat), skip
        raise _unknown_cursor()


def _cursor(source: str, at: ResultPosition, skip: int) -> str:
    return encode_cursor(at.position, _mark(source, at.case) if at.repeat >= 0 else "", at.repeat, skip)


def _mark(source: str, case: str) -> str:
    """Identifies a case in a cursor: its key may be long, and a cursor is valid for one run only."""
    return blake2b(f"{source}\0{case}".encode(), digest_size=9).hexdigest()


def _unknown_cursor() -> ServiceError:
    return ServiceError(
        Code.INVALID_INPUT,
        "Parameter 'cursor' belongs to another list, or to a case that was moved; start again without a cursor",
    )
