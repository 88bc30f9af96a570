"""The results of runs: pages of them, one whole, and what a run comes to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path, PurePath
from threading import BoundedSemaphore
from typing import Any

import msgspec
from msgspec import Struct

from gradeline.errors import Outcome
from gradeline.model import ErrorInfo, Grade, Record, Response, ResponseKey, Run, Sample, Storage, clean_text, from_json
from gradeline.rest_types import (
    Attempt,
    EvaluationSummary,
    Result,
    ResultDetail,
    Score,
    join_turns,
    read_result_id,
    result_id,
)
from gradeline.service.case_history import CaseHistory, CaseRun, SameCase
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.histograms import Histograms
from gradeline.service.requests import PageRequest, decode_cursor, encode_cursor
from gradeline.service.result_blocks import ResultBlocks
from gradeline.service.result_scan import BEGINNING, Place, ResultFilter, ResultScan
from gradeline.service.run_rows import source_of
from gradeline.service.settings import ServeSettings
from gradeline.service.summaries import Summaries
from gradeline.store.database import Database

LONGEST = 2_000
"""Characters of a text in a list."""

_MOST_ITEMS = 100


def listed(record: Record, run: Run, names: Mapping[str, str]) -> Result:
    """The result in a list."""
    cut = _Cutter()
    fields = _fields(record, run, names, cut)
    return Result(**fields, truncated=cut.happened)


def detailed(record: Record, run: Run, names: Mapping[str, str], history: Sequence[Attempt]) -> ResultDetail:
    """The result alone, nothing left out."""
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
    """A grade as a score, nothing left out."""
    return _score(key, grade, name, None)


class _Cutter:
    """Shortens texts, and remembers that it had to."""

    def __init__(self) -> None:
        self.happened = False

    def text(self, text: str) -> str:
        if len(text) <= LONGEST:
            return text
        self.happened = True
        return text[:LONGEST]

    def data(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict | list) and len(value) > _MOST_ITEMS:
            self.happened = True
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
        "test_case_input": _shown(join_turns(sample.input), cut),
        "test_case_expected": None if sample.ground_truth is None else _shown(join_turns(sample.ground_truth), cut),
        "agent_response": _shown(response.text, cut),
        "response_status": response.status,
        "response_latency_ms": response.latency_ms,
        "error_message": None if response.error is None else _shown(response.error.message, cut),
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
        rationale=_shown(grade.rationale, cut),
        details=grade.metadata if cut is None else cut.data(grade.metadata),
        error_type=None if error is None else error.type,
        error_message=None if error is None else _shown(error.message, cut),
        latency_ms=grade.latency_ms,
    )


def _shown(text: str | None, cut: _Cutter | None) -> Any:
    return text if text is None or cut is None else cut.text(text)


_PLACE = re.compile(r'(?<=File ")[^"\n]+(?=")')


class Tracebacks:
    """Shows the files of a folder as they are named in it; of others the name alone."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder.resolve()

    def shown(self, traceback: str) -> str:
        return _PLACE.sub(lambda found: self._named(PurePath(found[0])), traceback)

    def in_grade(self, grade: Grade) -> Grade:
        """The grade with its traceback as it may be shown."""
        if grade.error is None or grade.error.traceback is None:
            return grade
        return msgspec.structs.replace(grade, error=self._in_error(grade.error))

    def in_response(self, response: Response) -> Response:
        """The response with its traceback as it may be shown."""
        if response.error is None or response.error.traceback is None:
            return response
        return msgspec.structs.replace(response, error=self._in_error(response.error))

    def in_record(self, record: Record) -> Record:
        """The record with every traceback as it may be shown; the same one where it has none."""
        grades = {key: self.in_grade(grade) for key, grade in record.grades.items()}
        response = self.in_response(record.response)
        if response is record.response and all(grades[key] is grade for key, grade in record.grades.items()):
            return record
        return msgspec.structs.replace(record, response=response, grades=grades)

    def _in_error(self, error: ErrorInfo) -> ErrorInfo:
        traceback = None if error.traceback is None else self.shown(error.traceback)
        return msgspec.structs.replace(error, traceback=traceback)

    def _named(self, path: PurePath) -> str:
        if not path.is_absolute():
            return str(path)
        if self._folder is not None and path.is_relative_to(self._folder):
            return str(path.relative_to(self._folder))
        return f"…/{path.name}"


EXPORTS_AT_ONCE = 8

_LAST_POSITION = 2**31 - 1_000_000
"""Beyond it no database has a position."""


class ResultPage(Struct, frozen=True, kw_only=True):
    """Some results of a run; the summary is always that of the whole run."""

    evaluation_id: str
    results: list[Result]
    summary: EvaluationSummary
    next_cursor: str | None


class _MadeFrom(Struct):
    name: str | None = None


class _KeptGrader(Struct):
    made_from: _MadeFrom = msgspec.field(default_factory=_MadeFrom, name="x-grader")


class _KeptSuite(Struct):
    graders: dict[str, _KeptGrader] = {}


class _Kept(Struct):
    """What the definition of a run says about its graders."""

    document: _KeptSuite | None = None


class Results:
    """What the runs of a store gave. An unknown run or result is an `ServiceError` NOT_FOUND."""

    def __init__(self, database: Database, storage: Storage, settings: ServeSettings) -> None:
        self._database = database
        self._storage = storage
        self._scan = ResultScan(database)
        self._same_case = SameCase(database)
        self.blocks = ResultBlocks(database, storage)
        self.summaries = Summaries(database, storage)
        self.histograms = Histograms(database, storage, self.summaries)
        self.export_slots = BoundedSemaphore(EXPORTS_AT_ONCE)
        self.tracebacks = Tracebacks(settings.graders_dir)

    def run(self, evaluation_id: str) -> Run:
        """The run of an id that came in a request."""
        run = None if clean_text(evaluation_id).changed else self._storage.get_run(evaluation_id)
        if run is None:
            raise not_found("evaluation", evaluation_id)
        return run

    def page(self, evaluation_id: str, where: ResultFilter, page: PageRequest) -> ResultPage:
        """A page of results, by case and repeat in the order of the suite."""
        run = self.run(evaluation_id)
        source = source_of(self._database.read, run.id)
        start, skip = self._start(source, page)
        index = self.blocks.of(run, source, where, skip)
        if index is not None:
            start, skip = index.skipped(where, start, skip)
        found = self._scan.page(
            run.id,
            source,
            where,
            start,
            skip=skip,
            limit=page.limit,
            repeats=run.repeats,
            stretches=None if index is None else index.stretches(where, start),
        )
        grades = self._scan.grades(run.id, found.places)
        names = self.names(run)
        results = []
        for place, sample, response in self._scan.bodies(source, found.places):
            record = Record(
                run.id,
                place.case,
                place.repeat,
                from_json(Sample, sample),
                from_json(Response, response),
                {},
                {one.grader: from_json(Grade, one.grade) for one in grades.get(place[1:], ())},
            )
            results.append(listed(record, run, names))
        following = None if found.following is None else _cursor(source, found.following, found.skip)
        return ResultPage(evaluation_id=run.id, results=results, summary=self.summaries.of(run), next_cursor=following)

    def detail(self, evaluation_id: str, result_id: str) -> ResultDetail:
        """One result with everything that is stored of it."""
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
                shown = listed(result, other, self.names(other))
                found.append(
                    CaseRun(evaluation_id=other.id, name=other.name, started_at=other.started_at, result=shown)
                )
            if len(found) == limit:
                break
        return CaseHistory(evaluation_id=run.id, result_id=result_id, runs=found)

    def record(self, run: Run, result_id: str) -> Record | None:
        """The record that a result's id names, as it is stored."""
        for case, repeat in read_result_id(result_id):
            if not clean_text(case).changed:
                record = self._storage.get_record(ResponseKey(run.id, case, repeat))
                if record is not None:
                    return record
        return None

    def of_record(
        self, run: Run, record: Record, names: Mapping[str, str], *, with_history: bool = True
    ) -> ResultDetail:
        """A record as a result, with the attempts that it replaced."""
        history = self._history(run, record) if with_history else []
        return detailed(self.tracebacks.in_record(record), run, names, history)

    def has_history(self, run: Run) -> bool:
        """Whether any answer of the run was replaced: mostly none was, and nobody need look for each."""
        return bool(self._database.read("SELECT 1 FROM response_history WHERE run = ? LIMIT 1", run.id))

    def names(self, run: Run) -> Mapping[str, str]:
        """What the graders were called when the run was started; one that is not here is called by its key."""
        try:
            kept = msgspec.json.decode(run.definition or "{}", type=_Kept)
        except msgspec.DecodeError:
            return {}
        graders = {} if kept.document is None else kept.document.graders
        return {key: entry.made_from.name for key, entry in graders.items() if entry.made_from.name}

    def _history(self, run: Run, record: Record) -> list[Attempt]:
        """The attempts before the one that counts; those of a regraded run are told with the run it regrades."""
        key = (run.id, record.case, record.repeat)
        responses = self._database.read(
            "SELECT attempt, response FROM response_history WHERE run = ? AND case_key = ? AND repeat = ?"
            " ORDER BY attempt",
            *key,
        )
        if not responses:
            return []
        grades: dict[int, dict[str, Grade]] = {}
        for attempt, grader, grade in self._database.read(
            "SELECT attempt, grader, grade FROM grade_history WHERE run = ? AND case_key = ? AND repeat = ?"
            " ORDER BY attempt, grader",
            *key,
        ):
            grades.setdefault(attempt, {})[grader] = self.tracebacks.in_grade(from_json(Grade, grade))
        return [
            Attempt(
                attempt=attempt,
                response=self.tracebacks.in_response(from_json(Response, response)),
                grades=grades.get(attempt, {}),
            )
            for attempt, response in responses
        ]

    def _start(self, source: str, page: PageRequest) -> tuple[Place, int]:
        if page.cursor is None:
            return BEGINNING, page.skip
        position, mark, repeat, skip = decode_cursor(page.cursor, int, str, int, int)
        if not (isinstance(position, int) and isinstance(repeat, int) and isinstance(skip, int)):
            raise _unknown_cursor()
        if 0 <= position < _LAST_POSITION and skip >= 0 and repeat < _LAST_POSITION:
            if mark == "":
                return Place(position, "", -1), skip
            for case in self._scan.cases_at(source, position):
                if _mark(source, case) == mark:
                    return Place(position, case, repeat), skip
        raise _unknown_cursor()


def _cursor(source: str, place: Place, skip: int) -> str:
    return encode_cursor(place.position, _mark(source, place.case) if place.repeat >= 0 else "", place.repeat, skip)


def _mark(source: str, case: str) -> str:
    """Names a case in a cursor: its key may be long, and a cursor is of one run alone."""
    return blake2b(f"{source}\0{case}".encode(), digest_size=9).hexdigest()


def _unknown_cursor() -> ServiceError:
    return ServiceError(
        Code.INVALID_INPUT,
        "Parameter 'cursor' is of another list or of a case that was moved; begin again without a cursor",
    )
