"""Logs of ``oaieval``, the program of the repository openai/evals: each becomes a run with responses and grades."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from gradeline.errors import ConfigError, Problem
from gradeline.importers.grades import imported_grade, imported_grader
from gradeline.importers.kinds import ImportOptions, Source
from gradeline.importers.openai_export import failed_response, usage_of
from gradeline.importers.openai_graders import SOURCE
from gradeline.importers.openai_prompts import NotMappedError
from gradeline.importers.openai_registry import (
    RegistryEval,
    ideal_texts,
    numbered_messages,
    registry_case,
    registry_graders,
    write_grader,
)
from gradeline.importers.output import ANSWERS, ImportedResult, ImportedRun, ImportOutput
from gradeline.importers.report import ImportReport, item_name
from gradeline.importers.rows import MAX_DOCUMENT_BYTES, ImportedRow, read_rows
from gradeline.model import Response, RunGrader, Sample, clean_text, quote

_MAX_LOGS = 1_000
_LOOKED_AT = 20
_MAX_METRICS = 100
_SUFFIX = ".jsonl"
_METRIC = "accuracy"
"""The metric of the event ``match``."""


def log_files(path: Path) -> list[Path]:
    """The logs among a file or the files of a folder, by their first lines."""
    return [file for file in _candidates(path)[:_MAX_LOGS] if _is_spec(Source(file).first_row)]


def matches(source: Source) -> bool:
    """Whether the source is a log of ``oaieval``, or a folder with logs."""
    return any(_is_spec(Source(file).first_row) for file in _candidates(source.path)[:_LOOKED_AT])


def read_logs(path: Path, report: ImportReport) -> list[EvalLog]:
    """The logs among a file or the files of a folder; `ConfigError` if they are too large to be in memory."""
    files = log_files(path)
    size = sum(file.stat().st_size for file in files)
    if size > MAX_DOCUMENT_BYTES:
        most = f"at most {MAX_DOCUMENT_BYTES // 1024**2} MiB are read together"
        raise ConfigError(Problem(str(path), f"has {size // 1024**2:,} MiB of logs; {most}; import fewer logs"))
    return [EvalLog(file, report) for file in files]


def read(source: Source, options: ImportOptions, output: ImportOutput) -> None:
    """Store a run for each log, and write a suite that grades the responses of the last one again."""
    logs = read_logs(source.path, output.report)
    name = logs[-1].eval_name
    chosen = [log for log in logs if log.eval_name == name]
    for log in logs:
        if log not in chosen:
            why = f"is of another eval than {quote(name, 60)}; import it from a file or folder of its own"
            output.report.not_mapped(log.path.name, item_name("log of eval", log.eval_name), why)
    graders = _write_graders(chosen[-1], output)
    written: set[str] = set()
    for log in chosen:
        results = log.results(output.report)
        _store(log, options.name or name, _written(results, output, written, answers=log is chosen[-1]), output)
    if graders and written:
        suite = {"name": options.name or name, "target": {"kind": "replay", "responses": ANSWERS}, "graders": graders}
        output.write_suite(suite)


def store_logs(logs: Sequence[EvalLog], cases: Mapping[str, dict[str, Any]], output: ImportOutput) -> None:
    """Store a run for each log of evals whose cases are written; the responses of the last log of an eval are kept."""
    last = {log.eval_name: log for log in logs}
    for log in logs:
        unknown = sum(1 for identifier in log.samples if identifier not in cases)
        if unknown:
            why = f"{unknown:,} are not in the samples of the registry; import the log from a folder of its own"
            output.report.not_mapped(log.path.name, "samples", why)
        if unknown < len(log.samples):
            results = log.results(output.report, cases)
            answers = log is last[log.eval_name]
            _store(log, log.eval_name, _written(results, output, set(cases), answers=answers), output)


def _store(log: EvalLog, suite: str, results: Iterator[ImportedResult], output: ImportOutput) -> None:
    if log.graders:
        output.add_run(log.run(suite), results)
        output.report.mapped(log.path.name, item_name("run", log.model), "run in the store")
        return
    for _ in results:
        pass
    output.report.not_mapped(log.path.name, "metrics", "the log has no grades; grade its responses again")


def _candidates(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.glob(f"*{_SUFFIX}") if file.is_file() and not file.is_symlink())


def _is_spec(row: Mapping[str, Any]) -> bool:
    spec = row.get("spec")
    return isinstance(spec, Mapping) and isinstance(spec.get("eval_name"), str) and "run_id" in spec


class LoggedEvents:
    """The events of a sample; of several of a kind the first, because judges are called after the model."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.events: dict[str, Mapping[str, Any]] = {}
        self.metrics: dict[str, object] = {}

    def add(self, kind: str, data: Mapping[str, Any]) -> None:
        """Add an event."""
        self.events.setdefault(kind, data)
        if kind == "metrics":
            self.metrics.update(islice(data.items(), _MAX_METRICS))
        elif kind == "match":
            self.metrics.setdefault(_METRIC, data.get("correct"))

    @property
    def sample(self) -> dict[str, Any]:
        """The sample as in the registry; if the log does not have it, as far as the events do."""
        found = dict(self.events.get("raw_sample", {}))
        found.setdefault("input", self.events.get("sampling", {}).get("prompt"))
        expected = self.events.get("match", {}).get("expected")
        if expected is not None:
            found.setdefault("ideal", expected)
        return found

    @property
    def response(self) -> Response:
        """The first response of the model, or the error of the sample."""
        sampling = self.events.get("sampling", {})
        text = sampling.get("sampled")
        text = text[0] if isinstance(text, list) and text else text
        if isinstance(text, str):
            return Response(text=clean_text(text).text, usage=usage_of(sampling.get("usage")))
        error = self.events.get("error")
        if error is None:
            return failed_response("bad_response", "the log has no response of the sample")
        return failed_response("status", ": ".join(str(error[key]) for key in ("type", "message") if key in error))


class EvalLog:
    """One log. Events of different samples are mixed, so all of it is in memory."""

    def __init__(self, path: Path, report: ImportReport) -> None:
        self.path = path
        self.spec: Mapping[str, Any] = {}
        self.is_complete = False
        self.samples: dict[str, LoggedEvents] = {}
        for row in read_rows(path, report):
            self._add(row, report)
        names = {
            name: None
            for events in self.samples.values()
            for name, value in events.metrics.items()
            if isinstance(value, bool | int | float)
        }
        if len(names) > _MAX_METRICS:
            report.not_mapped(path.name, "metrics", f"it has {len(names):,}; the first {_MAX_METRICS} are imported")
        self.graders = {name: imported_grader(SOURCE, name, self.eval_name) for name in islice(names, _MAX_METRICS)}

    def _add(self, row: ImportedRow, report: ImportReport) -> None:
        data = row.data
        if _is_spec(data):
            self.spec = data["spec"]
        elif "final_report" in data:
            self.is_complete = True
        elif isinstance(data.get("sample_id"), str) and isinstance(data.get("data"), Mapping):
            events = self.samples.setdefault(data["sample_id"], LoggedEvents(row.place))
            events.add(str(data.get("type")), data["data"])
        else:
            report.not_mapped(row.place, "row", "is not an event of a sample; was the file written by oaieval?")

    @property
    def eval_name(self) -> str:
        """The name of the eval, such as ``coqa-fact.dev.v0``."""
        return str(self.spec.get("eval_name"))

    @property
    def model(self) -> str:
        """The names of the completion functions."""
        names = self.spec.get("completion_fns")
        return ", ".join(map(str, names)) if isinstance(names, list) and names else "unknown"

    @property
    def eval(self) -> RegistryEval:
        """The entry of the registry, as far as the log has it."""
        config = self.spec.get("run_config")
        entry = config.get("eval_spec") if isinstance(config, Mapping) else None
        entry = entry if isinstance(entry, Mapping) else {}
        args = entry.get("args")
        kind = str(entry.get("cls") or "").rpartition(":")[2]
        return RegistryEval(self.eval_name, self.path.name, kind, args if isinstance(args, Mapping) else {}, None)

    def run(self, suite: str) -> ImportedRun:
        """The run that the log is stored as."""
        return ImportedRun(
            name=clean_text(suite).text,
            suite=clean_text(suite).text,
            target={"kind": SOURCE, "model": clean_text(self.model).text},
            variant=clean_text(self.model).text,
            graders=self.graders,
            started_at=_timestamp(self.spec.get("created_at")),
            error_message=None if self.is_complete else "the log has no final report: the run did not end",
        )

    def results(
        self, report: ImportReport, cases: Mapping[str, dict[str, Any]] | None = None
    ) -> Iterator[tuple[dict[str, Any], ImportedResult]]:
        """The case of each sample, and its result; with ``cases`` only of samples that are among them."""
        for identifier, events in self.samples.items():
            try:
                case = self._case(identifier, events) if cases is None else cases.get(identifier)
            except NotMappedError as error:
                report.not_mapped(events.place, "sample", str(error))
                continue
            if case is None:
                continue
            sample = Sample(
                case["id"],
                case["input"],
                case.get("ground_truth"),
                case["metadata"],
                rubric_vars=case.get("rubric_vars", {}),
                tags=tuple(case["tags"]),
            )
            report.mapped(events.place, "sample", "case, response and grades")
            for name in self.graders:
                value = events.metrics.get(name)
                if isinstance(value, int | float) and not 0 <= value <= 1:
                    why = f"is {quote(value, 40)}, and a grade is a number from 0 to 1; it is an error here"
                    report.not_mapped(events.place, item_name("metric", name), why)
            yield case, ImportedResult(sample, events.response, _grades(self.graders, events))

    def _case(self, identifier: str, events: LoggedEvents) -> dict[str, Any]:
        case = registry_case(clean_text(identifier).text, self.eval, events.sample)
        case["metadata"] = numbered_messages(case["metadata"])
        return case


def _grades(graders: Mapping[str, RunGrader], events: LoggedEvents) -> dict[str, Any]:
    values = events.metrics
    choice = values.get("choice")
    rationale = choice if isinstance(choice, str) else None
    return {
        name: imported_grade(
            grader, value if isinstance(value := values.get(name), bool | int | float) else None, rationale=rationale
        )
        for name, grader in graders.items()
    }


def _written(
    results: Iterator[tuple[dict[str, Any], ImportedResult]], output: ImportOutput, written: set[str], *, answers: bool
) -> Iterator[ImportedResult]:
    """The results, whose cases are written if they are not among ``written``."""
    for case, result in results:
        if result.sample.case_key not in written:
            written.add(result.sample.case_key)
            output.add_case(case)
        if answers:
            output.add_answer(result.sample.case_key, result.response)
        yield result


def _write_graders(log: EvalLog, output: ImportOutput) -> Mapping[str, Any]:
    """The graders of the suite that the class of the eval has."""
    spec = log.eval
    what = item_name(f"eval {spec.kind or 'of unknown class'}", spec.name)
    try:
        graders = list(registry_graders(spec))
    except NotMappedError as error:
        output.report.not_mapped(spec.place, what, str(error))
        return {}
    if any(grader.needs_ideal for grader in graders) and not _have_ideals(list(log.samples.values())):
        why = "the log has no ideal answers; import the eval's file of the registry, whose cases have the same ids"
        output.report.not_mapped(spec.place, what, why)
        return {}
    output.report.mapped(spec.place, what, "graders")
    return {grader.metric: write_grader(grader, output) for grader in graders}


def _have_ideals(samples: Sequence[LoggedEvents]) -> bool:
    return any(ideal_texts(events.sample.get("ideal")) for events in samples)


def _timestamp(created: object) -> str | None:
    """A time such as ``2023-04-17 22:08:21.904498`` in ISO 8601; without an offset it is UTC."""
    if isinstance(created, str):
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(created)
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
            return moment.isoformat().replace("+00:00", "Z")
    return None
