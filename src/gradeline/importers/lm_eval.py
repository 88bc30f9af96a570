"""Logs of lm-evaluation-harness: each ``samples_*.jsonl`` has the results of a task, and becomes a run per filter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gradeline.errors import ConfigError, DataError, Fault, Problem
from gradeline.importers.grades import imported_grade, imported_grader
from gradeline.importers.kinds import ImportOptions, Source
from gradeline.importers.output import ANSWERS, ImportedResult, ImportedRun, ImportOutput
from gradeline.importers.report import ImportReport, item_name
from gradeline.importers.rows import ImportedRow, read_json_document, read_rows
from gradeline.model import ErrorInfo, Response, RunGrader, Sample, clean_data, clean_text, quote
from gradeline.report.formatting import one_line
from gradeline.suite.case_ids import CaseKeySet

_KEYS = frozenset({"doc_id", "doc", "target", "filtered_resps"})
_FILE = re.compile(r"samples_(?P<task>.+?)(?:_(?P<date>\d{4}-\d\d-\d\dT[\d.\-]+))?\.jsonl(?:\.gz)?")
_NO_FILTER = "none"
_MAX_NAME = 200
_ROW = "sample"


def matches(source: Source) -> bool:
    """A file with samples of lm-evaluation-harness, or a folder with such files or with folders of them."""
    return bool(_files(source.path)) if source.path.is_dir() else source.keys >= _KEYS


def read(source: Source, options: ImportOptions, output: ImportOutput) -> None:
    """Store a run for each model, task and filter, and write a suite that grades the first responses again."""
    files = _files(source.path) if source.path.is_dir() else [source.path]
    if not files:
        raise ConfigError(Problem("SOURCE", f"{source.path} has no samples_*.jsonl; run lm_eval with --log_samples"))
    logs = [_Log.of(file, options, output.report) for file in files]
    several = len({log.model for log in logs}) > 1
    for log in logs:
        for name in log.filters:
            output.add_run(log.run(name, with_model=several), log.results(name, output.report))
    written = CaseKeySet()
    for log in logs:
        for result in log.results(log.filters[0], ImportReport("", "")):
            if written.add(result.sample.case_key):
                output.add_case(_case(result.sample))
                output.add_answer(result.sample.case_key, result.response)
    grader = {"kind": "exact_match"}
    output.report.approximated(
        "suite.yaml", "metrics", "grader exact_match", "compares the whole answer, which the metric may normalize first"
    )
    output.write_suite(
        {
            "name": options.name or logs[0].suite,
            "target": {"kind": "replay", "responses": ANSWERS},
            "graders": {"exact_match": grader},
        }
    )


def _files(folder: Path) -> list[Path]:
    """The files with samples in a folder, or in its folders, which are those of models."""
    for pattern in ("samples_*", "*/samples_*"):
        found = sorted(path for path in folder.glob(pattern) if _FILE.fullmatch(path.name))
        if found:
            return found
    return []


class _Document(NamedTuple):
    """What a sample asks: its input, its answer options if it has any, and the expected answer."""

    input: str
    options: tuple[str, ...]
    expected: str


class _Log:
    """One ``samples_*.jsonl``; it is read once for each filter, so memory does not grow with it."""

    def __init__(self, path: Path, task: str, model: str, date: str | None, options: ImportOptions) -> None:
        self.path = path
        self.task = task
        self.model = model
        self.date = date
        self.suite = options.name or task
        self.graders: dict[str, RunGrader] = {}
        self._filters: dict[str, None] = {}

    @classmethod
    def of(cls, path: Path, options: ImportOptions, report: ImportReport) -> _Log:
        """The log with the filters and metrics of its rows; what is not mapped is reported once."""
        named = _FILE.fullmatch(path.name)
        task = named["task"] if named else path.name.split(".")[0]
        results = _results_file(path)
        model = str(results.get("model_name") or path.parent.name or "unknown")
        log = cls(path, task, model, _timestamp(named["date"] if named else None), options)
        for row in read_rows(path, report):
            log._scan(row, report)
        if not log._filters:
            raise ConfigError(Problem(str(path), "has no samples of lm-evaluation-harness"))
        return log

    def _scan(self, row: ImportedRow, report: ImportReport) -> None:
        missing = sorted(_KEYS - set(row.data))
        if missing:
            report.not_mapped(row.place, _ROW, f"has no {missing[0]}; is it a file of --log_samples?")
            return
        self._filters[_filter(row.data)] = None
        for metric in _metrics(row.data):
            value = row.data.get(metric)
            if _is_score(value):
                if metric not in self.graders:
                    self.graders[metric] = imported_grader("lm-eval", metric, self.task)
                report.mapped(row.place, item_name("metric", metric), f"grades of {metric}")
            elif value is not None:
                why = f"is {quote(value, 40)}, and a grade is a number from 0 to 1; compute it from the answers"
                report.not_mapped(row.place, item_name("metric", metric), why)

    @property
    def filters(self) -> list[str]:
        return list(self._filters)

    def run(self, filter_name: str, *, with_model: bool) -> ImportedRun:
        """The run of one filter, named by the model if the source has several."""
        parts = [self.model] if with_model else []
        if len(self._filters) > 1:
            parts.append(filter_name)
        variant = ", ".join(parts)
        return ImportedRun(
            name=f"{self.suite} [{variant}]" if variant else self.suite,
            suite=self.suite,
            target={"kind": "lm-eval", "model": self.model},
            variant=variant or None,
            graders=self.graders,
            started_at=self.date,
        )

    def results(self, filter_name: str, report: ImportReport) -> Iterator[ImportedResult]:
        """The results of one filter."""
        seen: set[int] = set()
        for row in read_rows(self.path, report):
            if not _KEYS.issubset(row.data) or _filter(row.data) != filter_name:
                continue
            try:
                result = self._result(row.data)
            except DataError as error:
                report.not_mapped(row.place, _ROW, f"{error.problem.message}; leave it out of the document")
                continue
            key = hash(result.sample.case_key)
            if key in seen:
                report.not_mapped(row.place, _ROW, "is a document that the task has twice; the first is kept")
                continue
            seen.add(key)
            report.mapped(row.place, _ROW, "case and response")
            yield result

    def _result(self, data: Mapping[str, Any]) -> ImportedResult:
        document = _document(data)
        digest = one_line(clean_text(str(data.get("doc_hash") or f"doc-{data['doc_id']}")).text, _MAX_NAME)
        metadata = clean_data({"doc": data["doc"], "task": self.task})
        case = Sample(f"{self.task}/{digest}", document.input, document.expected, metadata, tags=(self.task,))
        grades = {
            name: imported_grade(grader, value if _is_score(value := data.get(name)) else None)
            for name, grader in self.graders.items()
        }
        return ImportedResult(case, _response(data, document), grades)


def _filter(data: Mapping[str, Any]) -> str:
    return one_line(clean_text(str(data.get("filter", _NO_FILTER))).text, _MAX_NAME)


def _metrics(data: Mapping[str, Any]) -> Sequence[str]:
    """The names of the metrics; older logs do not list them."""
    named = data.get("metrics")
    if isinstance(named, list):
        return [name for name in named if isinstance(name, str) and name.isprintable()]
    return [name for name in ("acc", "acc_norm", "exact_match", "f1", "em") if name in data]


def _is_score(value: object) -> bool:
    return isinstance(value, bool | int | float) and 0 <= value <= 1


def _document(data: Mapping[str, Any]) -> _Document:
    calls = _calls(data.get("arguments"))
    prompt = clean_text(str(calls[0][0] if calls and calls[0] else data["doc"])).text
    is_choice = len(calls) > 1 and all(len(call) > 1 and isinstance(call[1], str) for call in calls)
    options = tuple(clean_text(str(call[1])).text.strip() for call in calls) if is_choice else ()
    target = data["target"]
    if options and isinstance(target, int | str) and str(target).isdecimal() and int(target) < len(options):
        target = options[int(target)]
    expected = target if isinstance(target, str) else json.dumps(target, ensure_ascii=False)
    return _Document(prompt, options, clean_text(expected).text)


def _calls(arguments: object) -> list[list[Any]]:
    """The arguments of the model calls: ``{gen_args_0: {arg_0: …}}``, or lists in older logs."""
    if isinstance(arguments, Mapping):
        return [list(call.values()) for call in arguments.values() if isinstance(call, Mapping)]
    if isinstance(arguments, list):
        return [call for call in arguments if isinstance(call, list)]
    return []


def _response(data: Mapping[str, Any], document: _Document) -> Response:
    """The filtered answer; for a choice the option of the highest log-likelihood."""
    answers = data["filtered_resps"]
    first = answers[0] if isinstance(answers, list) and answers else None
    if isinstance(first, str):
        return Response(text=clean_text(first).text)
    if isinstance(first, list) and document.options and len(document.options) == len(answers):
        likelihoods = [float(one[0]) if isinstance(one, list) and one else float("-inf") for one in answers]
        return Response(text=document.options[likelihoods.index(max(likelihoods))])
    if first is not None:
        return Response(text=clean_text(json.dumps(first, ensure_ascii=False)).text)
    return Response(status="error", error=ErrorInfo("bad_response", "the log has no response", Fault.AGENT))


def _results_file(path: Path) -> Mapping[str, Any]:
    """The ``results_*.json`` next to the samples; empty if there is none."""
    found = max(path.parent.glob("results_*.json"), default=None)
    data = {} if found is None else read_json_document(found)
    return data if isinstance(data, Mapping) else {}


def _timestamp(text: str | None) -> str | None:
    """The time in a file's name, such as ``2026-11-16T09-30-00.123456``, in ISO 8601."""
    if text is None:
        return None
    day, _, clock = text.partition("T")
    return f"{day}T{clock.replace('-', ':')}Z"


def _case(sample: Sample) -> dict[str, object]:
    return {
        "id": sample.id,
        "input": sample.input,
        "ground_truth": sample.ground_truth,
        "tags": list(sample.tags),
        "metadata": sample.metadata,
    }
