"""Logs of Inspect: each becomes a run, and their cases and responses become a suite that grades them again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gradeline.errors import ConfigError, DataError, Problem
from gradeline.importers.inspect_files import SUFFIX, InspectLog, UnreadableSample, open_log
from gradeline.importers.inspect_format import LoggedSample, LoggedScorer, LoggedStats
from gradeline.importers.inspect_sample import ImportedSample, import_sample
from gradeline.importers.inspect_scores import ScoreColumns, suite_grader
from gradeline.importers.kinds import ImportOptions, Source
from gradeline.importers.output import ANSWERS, ImportedResult, ImportedRun, ImportOutput
from gradeline.importers.report import ImportReport, item_name
from gradeline.importers.zip_members import LOCAL_MARK
from gradeline.model import Sample, clean_data, clean_text
from gradeline.report.inspect_log import HEADER, START

_DOCUMENT = re.compile(r'\{\s*+"version"\s*+:\s*+\d++\s*+,\s*+"status"\s*+:\s*+"\w++"\s*+,\s*+"eval"\s*+:\s*+\{')
"""The start of a JSON log, which may be too large for detection to parse."""
_KEYS = frozenset({"version", "status", "eval"})
_MAX_LOGS = 1_000
_LOOKED_AT = 20
"""Maximum number of JSON files in a folder that detection opens."""


def matches(source: Source) -> bool:
    """An ``.eval`` archive, whole or cut off, a JSON log, or a folder with either."""
    if not source.path.is_dir():
        return _is_archive(source) or _is_document(source)
    if any(name.endswith(SUFFIX) for name in source.names):
        return True
    documents = [name for name in sorted(source.names) if name.endswith(".json")][:_LOOKED_AT]
    return any(_is_json_log(source.path / name) for name in documents)


def _is_archive(source: Source) -> bool:
    return source.head.startswith(LOCAL_MARK.decode()) and (
        source.path.suffix == SUFFIX or not source.names.isdisjoint((HEADER, START)) or START in source.head
    )


def _is_document(source: Source) -> bool:
    return _DOCUMENT.match(source.head.lstrip()) is not None or source.first_row.keys() >= _KEYS


def _is_json_log(path: Path) -> bool:
    return path.is_file() and _is_document(Source(path))


def read(source: Source, options: ImportOptions, output: ImportOutput) -> None:
    """Store a run for each log, and write a suite that grades the responses of the first log again."""
    with ExitStack() as stack:
        logs = _opened(source, output.report, stack)
        suite = _Suite(output)
        for log in _prefixed(logs):
            _LogImport(log, suite, options, output).store()
        suite.write(logs, options, source.path)


class _OpenLog(NamedTuple):
    """An open log, and the prefix of the ids of its cases."""

    file: InspectLog
    prefix: str
    variant: str | None


def _opened(source: Source, report: ImportReport, stack: ExitStack) -> list[InspectLog]:
    if not source.path.is_dir():
        return [_closed_with(stack, open_log(source.path))]
    names = sorted(name for name in source.names if name.endswith((SUFFIX, ".json")))
    if len(names) > _MAX_LOGS:
        what = f"has {len(names):,} logs, and at most {_MAX_LOGS:,} are imported at once; import its parts"
        raise ConfigError(Problem(str(source.path), what))
    found = []
    for name in names:
        path = source.path / name
        if not path.is_file() or (path.suffix != SUFFIX and not _is_json_log(path)):
            continue
        try:
            found.append(_closed_with(stack, open_log(path)))
        except ConfigError as error:
            report.not_mapped(name, "log", error.problems[0].message)
    if not found:
        raise ConfigError(Problem(str(source.path), "has no log of Inspect that can be read"))
    return found


def _closed_with(stack: ExitStack, log: InspectLog) -> InspectLog:
    stack.callback(log.close)
    return log


def _prefixed(logs: Sequence[InspectLog]) -> Iterator[_OpenLog]:
    """Ids of cases are unique within a task; logs of one task share their cases."""
    tasks = {log.header.eval.task for log in logs}
    models = {log.header.eval.model for log in logs}
    for log in logs:
        spec = log.header.eval
        prefix = f"{clean_text(spec.task).text}/" if len(tasks) > 1 else ""
        yield _OpenLog(log, prefix, clean_text(spec.model).text if len(models) > 1 else None)


class _LogImport:
    """Reads a log twice: for the columns of its scores, then for its samples."""

    def __init__(self, log: _OpenLog, suite: _Suite, options: ImportOptions, output: ImportOutput) -> None:
        self.log = log
        self.file = log.file
        self.spec = log.file.header.eval
        self.name = options.name or clean_text(self.spec.task).text
        self.columns = ScoreColumns(self.spec, self.file.scores())
        self._suite = suite
        self._output = output
        self._report = output.report
        self._seen: set[tuple[str, int]] = set()

    def store(self) -> None:
        """Store the log as a run."""
        name = self.file.path.name
        self._report.mapped(name, "log", "run")
        events = "messages and tool calls are kept; events, store and sandbox stay in the log"
        self._report.approximated(name, "transcript", "trajectory", events)
        for column in self.columns.left_out:
            what = f"is beyond the first {len(self.columns.graders)} columns of scores; import fewer scorers"
            self._report.not_mapped(name, item_name("score", column.name), what)
        if self.file.cut_off is not None:
            self._report.not_mapped(name, "rest of the log", f"{self.file.cut_off}; what is before it was read")
        self._output.add_run(self._run(), self._results())

    def _run(self) -> ImportedRun:
        variant, stats = self.log.variant, self.file.header.stats or LoggedStats()
        return ImportedRun(
            name=self.name if variant is None else f"{self.name} [{variant}]",
            suite=self.name,
            target=self._target(),
            graders=self.columns.graders,
            variant=variant,
            repeats=self.columns.epochs,
            started_at=_time(stats.started_at or self.spec.created),
            completed_at=_time(stats.completed_at),
            error_message=self._error(),
        )

    def _target(self) -> dict[str, Any]:
        """The target of the run. Arguments are left out, because they may contain secrets."""
        spec = self.spec
        revision = spec.revision or {}
        found = {
            "kind": "inspect",
            "model": spec.model,
            "task": spec.task,
            "task_version": spec.task_version,
            "solver": spec.solver,
            "commit": revision.get("commit"),
            "packages": spec.packages or None,
            "log": self.file.path.name,
        }
        data: dict[str, Any] = clean_data({key: value for key, value in found.items() if value is not None})
        return data

    def _error(self) -> str | None:
        """Why the run is not complete."""
        header = self.file.header
        if self.file.cut_off is not None:
            return f"the log is not whole: {self.file.cut_off}"
        if header.status == "success":
            return None
        reason = "the log ends before the run did" if header.error is None else header.error.message
        return clean_text(f"Inspect's status is {header.status}: {reason}"[:10_000]).text

    def _results(self) -> Iterator[ImportedResult]:
        for placed in self.file.samples():
            if isinstance(placed, UnreadableSample):
                self._report.not_mapped(placed.place, "sample", placed.reason)
                continue
            try:
                result, sample = self._result(placed.sample)
            except DataError as error:
                self._report.not_mapped(placed.place, "sample", str(error))
                continue
            key = (result.sample.case_key, result.repeat)
            if key in self._seen:
                self._report.not_mapped(placed.place, "sample", "its id and epoch are those of another; that is kept")
                continue
            self._seen.add(key)
            self._report_sample(placed.place, placed.sample, sample)
            self._suite.add(self.log, sample, result.repeat)
            yield result

    def _result(self, logged: LoggedSample) -> tuple[ImportedResult, ImportedSample]:
        sample = import_sample(logged, self.log.prefix)
        scores = logged.scores or {}
        grades = self.columns.skipped() if logged.error is not None else self.columns.grades(scores, logged.limit)
        return ImportedResult(sample.case, sample.response, grades, logged.epoch - 1), sample

    def _report_sample(self, place: str, logged: LoggedSample, sample: ImportedSample) -> None:
        self._report.mapped(place, "sample", "case and response")
        for what, became, differs in sample.approximated:
            self._report.approximated(place, what, became, differs)
        if logged.limit is not None:
            self._report.mapped(place, item_name("limit", logged.limit.type), "the end of the trajectory")
        if logged.error is None:
            self.columns.report(place, logged.scores or {}, self._report)
        elif logged.scores:
            self._report.not_mapped(place, "scores of a failed sample", "a failed call has no grades; see the log")


class _Suite:
    """The suite of all logs: every case once, and the responses of the first log of each task."""

    def __init__(self, output: ImportOutput) -> None:
        self._output = output
        self._cases: set[str] = set()
        self._answered: dict[str, _OpenLog] = {}
        self._repeats = 1

    def add(self, log: _OpenLog, sample: ImportedSample, repeat: int) -> None:
        """Add a case unless there is one with its id, and its response if it is of the first log."""
        key = sample.case.case_key
        if key not in self._cases:
            self._cases.add(key)
            self._output.add_case(_case(sample.case))
        if self._answered.setdefault(log.prefix, log) is log:
            self._output.add_answer(key, sample.response)
            self._repeats = max(self._repeats, repeat + 1)

    def write(self, logs: Sequence[InspectLog], options: ImportOptions, source: Path) -> None:
        """Write the suite file; `ConfigError` if there are no cases."""
        if not self._cases:
            found = [item for item in self._output.report.items if item.what == "sample"]
            why = f"{found[0].places[0]} {found[0].note}" if found else "run Inspect with --log-samples"
            raise ConfigError(Problem(str(source), f"has no samples that can be read: {why}"))
        first = logs[0].header.eval
        suite = {
            "name": options.name or clean_text(first.task).text,
            "target": {"kind": "replay", "responses": ANSWERS},
            "graders": self._graders(logs),
            **({"repeats": self._repeats} if self._repeats > 1 else {}),
        }
        self._output.write_suite(suite)
        self._report_other_answers(logs)

    def _graders(self, logs: Sequence[InspectLog]) -> dict[str, Any]:
        report = self._output.report
        found: dict[str, Any] = {}
        scorers: dict[str, tuple[str, LoggedScorer]] = {}
        for log in logs:
            for scorer in log.header.eval.scorers or ():
                scorers.setdefault(scorer.name, (f"{log.path.name}:eval.scorers", scorer))
        for name, (place, scorer) in scorers.items():
            what = item_name("scorer", name)
            made = suite_grader(scorer)
            if made is None:
                why = "has a model or code; its scores are in the run, and a model_judge or a @grader can grade again"
                report.not_mapped(place, what, why)
            else:
                found[clean_text(name).text] = made.config
                report.approximated(place, what, f"grader {made.config['kind']}", made.differs)
        if not found:
            found["match"] = {"kind": "string-match"}
            differs = "no scorer has a counterpart, and a suite needs a grader; write your own"
            report.approximated("suite.yaml", "scorers", "grader string-match", differs)
        return found

    def _report_other_answers(self, logs: Sequence[InspectLog]) -> None:
        first = {id(log.file) for log in self._answered.values()}
        for log in logs:
            if id(log) not in first:
                differs = f"{ANSWERS} has those of another log; replay these with target {{kind: replay, run: ID}}"
                self._output.report.approximated(log.path.name, "responses", "a run", differs)


def _case(sample: Sample) -> dict[str, object]:
    """The case as a line of a dataset, without empty fields."""
    data = msgspec.to_builtins(sample)
    return {key: value for key, value in data.items() if key != "schema" and value not in (None, {}, [])}


def _time(text: str | None) -> str | None:
    """A time as Inspect writes it; None if it is not one."""
    try:
        return datetime.fromisoformat(text or "").isoformat()
    except ValueError:
        return None
