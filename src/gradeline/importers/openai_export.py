"""Exports of OpenAI's hosted evals: evals, runs and output items in every form, recognised by their content.

The samples of output items become responses, with their messages, tool calls, usage and errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from gradeline.errors import AgentError, ConfigError, Fault, Problem
from gradeline.importers.openai_prompts import NotMappedError, content_text
from gradeline.importers.report import ImportReport
from gradeline.importers.rows import ImportedRow, read_json_document, read_rows
from gradeline.model import ErrorInfo, Response, Trajectory, Usage, clean_text, quote
from gradeline.targets.answer_values import read_messages

MAX_FILES = 10_000
"""Maximum number of files in a folder that are read."""
MAX_GRADERS = 200
"""Maximum graders of an eval and of a run."""
_HEAD_BYTES = 256 * 1024
_MAX_WRAPPERS = 3
_SUFFIXES = (".json", ".jsonl", ".ndjson", ".jsonl.gz")
_GRADED = frozenset({"grades", "passes", "run_id", "data_source_idx", "datasource_item_id", "grader_samples"})
_LARGEST = 1 << 53
_ERROR_TYPES = {"rate_limit": "rate_limited", "quota": "quota", "timeout": "timeout", "timed_out": "timeout"}
_ID_SUFFIX = re.compile(r"-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{12,27}")


class RecordedGrade(NamedTuple):
    """The result of a grader as the export has it; None is what the export does not have."""

    score: float | None
    passed: bool | None
    rationale: str | None = None


class ExportedItem(NamedTuple):
    """A row of a run: the item, the model's sample if there is one, and the recorded grades by their names."""

    place: str
    run: str
    number: int | None
    item: Mapping[str, Any]
    sample: Mapping[str, Any] | None
    grades: Mapping[str, RecordedGrade]


class ExportedRun:
    """A run of the export, and what its rows have."""

    def __init__(self, identifier: str) -> None:
        self.id = identifier
        """Empty for rows that name no run."""
        self.data: Mapping[str, Any] = {}
        """The run as the API describes it; empty if only its output items were exported."""
        self.place = ""
        self.rows = 0
        self.grader_names: dict[str, None] = {}
        """The names of the recorded grades, of which at most `MAX_GRADERS` are imported."""
        self.has_more_graders = False
        self.has_samples = False
        self.files: dict[Path, None] = {}
        """The files with its rows; none if its data source contains them."""

    def count(self, item: ExportedItem) -> None:
        """Count a row."""
        self.rows += 1
        for name in item.grades:
            if len(self.grader_names) < MAX_GRADERS:
                self.grader_names[name] = None
            elif name not in self.grader_names:
                self.has_more_graders = True
        self.has_samples = self.has_samples or item.sample is not None

    @property
    def name(self) -> str | None:
        """The name of the run, or its id."""
        name = self.data.get("name")
        return name if isinstance(name, str) and name else self.id or None


class Export:
    """A whole export. Output items are read again for each use, so memory does not grow with their number."""

    def __init__(self, files: Sequence[Path], report: ImportReport) -> None:
        self.evals: dict[str, ImportedRow] = {}
        self.runs: list[ExportedRun] = []
        """In the order of their creation."""
        self._found: dict[str, ExportedRun] = {}
        pages: dict[str, bool] = {}
        for path in files:
            for row in _objects(path, report, pages):
                self._scan(path, row)
        self.runs = sorted(self._found.values(), key=lambda run: _created(run.data))
        for run in self.runs:
            if not run.rows:
                for item in _embedded_items(run):
                    run.count(item)
        self._report_missing(pages, report)

    def _report_missing(self, pages: Mapping[str, bool], report: ImportReport) -> None:
        """Report graders that are left out, and pages that were not exported: of each run with a known size, or if no
        page is the last one.
        """
        for run in self.runs:
            if run.has_more_graders:
                why = f"it has more than {MAX_GRADERS}; the grades of the others are left out"
                report.not_mapped(run.place, "graders", why)
            total = _mapping(run.data.get("result_counts")).get("total")
            if isinstance(total, int) and run.rows < total:
                why = f"the run has {total:,} and the export {run.rows:,}; export all pages of its output items"
                report.not_mapped(run.place, "output items", why)
        if pages and all(pages.values()):
            report.not_mapped(
                next(iter(pages)), "further pages", "has_more is true; export the pages after last_id too"
            )

    def _scan(self, path: Path, row: ImportedRow) -> None:
        match kind_of(row.data):
            case "eval":
                self.evals.setdefault(str(row.data.get("id") or row.place), row)
            case "run":
                run = self._run(str(row.data.get("id") or row.place))
                run.data, run.place = row.data, row.place
            case "item":
                item = _exported_item(row)
                run = self._run(item.run)
                run.place = run.place or row.place
                run.files[path] = None
                run.count(item)

    def _run(self, identifier: str) -> ExportedRun:
        return self._found.setdefault(identifier, ExportedRun(identifier))

    def items_of(self, run: ExportedRun) -> Iterator[ExportedItem]:
        """The rows of a run, each once. A run without any has the rows that its data source contains."""
        seen: set[int] = set()
        for item in self._items(run) if run.files else _embedded_items(run):
            if item.run != run.id or item.number in seen:
                continue
            if item.number is not None:
                seen.add(item.number)
            yield item

    def _items(self, run: ExportedRun) -> Iterator[ExportedItem]:
        for path in run.files:
            for row in _objects(path, ImportReport("", ""), {}):
                if kind_of(row.data) == "item":
                    yield _exported_item(row)


def _objects(path: Path, report: ImportReport, pages: dict[str, bool]) -> Iterator[ImportedRow]:
    """The evals, runs and items of a file; ``pages`` collects which pages have a next one."""
    for row in _rows(path, report):
        if isinstance(row.data.get("has_more"), bool):
            pages[row.place] = row.data["has_more"]
        yield from _unwrapped(row, report)


def files_of(path: Path) -> list[Path]:
    """The file, or the files of a folder and its subfolders that may be part of an export."""
    if not path.is_dir():
        return [path]
    found = [file for file in sorted(path.rglob("*")) if file.name.lower().endswith(_SUFFIXES)]
    files = [file for file in found[:MAX_FILES] if file.is_file() and not file.is_symlink()]
    if len(found) > MAX_FILES:
        raise ConfigError(Problem("SOURCE", f"{path} has {len(found):,} files; import at most {MAX_FILES:,}"))
    return files


def kind_of(data: Mapping[str, Any]) -> str | None:
    """``eval``, ``run`` or ``item``, by the keys of an object; None for anything else."""
    if isinstance(data.get("testing_criteria"), list):
        return "eval"
    if data.get("object") == "eval.run" or {"data_source", "eval_id"} <= set(data):
        return "run"
    if isinstance(data.get("datasource_item"), Mapping) or isinstance(data.get("item"), Mapping):
        return "item"
    return None


def is_hosted(data: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether an object is from an export, or a page or bundle of such objects. Cases only are not enough."""
    kind = kind_of(data)
    if kind is not None:
        return kind != "item" or bool(_GRADED & set(data))
    parts = list(islice((part for part in _parts(data) if isinstance(part, Mapping)), 20))
    return depth < _MAX_WRAPPERS and any(is_hosted(part, depth + 1) for part in parts)


def plain_name(recorded: str) -> str:
    """The name of a grader without the id that the API adds to it in results."""
    return _ID_SUFFIX.sub("", recorded) or recorded


def _created(run: Mapping[str, Any]) -> float:
    created = run.get("created_at")
    return float(created) if isinstance(created, int | float) else 0.0


def _rows(path: Path, report: ImportReport) -> Iterator[ImportedRow]:
    if _is_document(path):
        data = read_json_document(path)
        if isinstance(data, Mapping):
            yield ImportedRow(path.name, data)
        else:
            report.not_mapped(path.name, "file", f"is {quote(data, 40)}, which is not part of an export")
    else:
        yield from read_rows(path, report)


def _is_document(path: Path) -> bool:
    """Whether a file is one JSON object and not one object a line. Lists are read like lines, one item at a time.

    The first line of a ``.jsonl`` may be longer than what is looked at.
    """
    if path.suffix == ".gz":
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode("utf-8-sig", errors="replace").lstrip()
    except OSError as error:
        raise ConfigError(Problem("SOURCE", f"cannot read {path}: {error.strerror}")) from None
    if not head.startswith("{"):
        return False
    with suppress(ValueError, RecursionError):
        _, end = json.JSONDecoder().raw_decode(head)
        return not head[end:].strip()
    first, newline, _ = head.partition("\n")
    return len(first.strip()) < 3 or (not newline and path.suffix == ".json")


def _parts(data: Mapping[str, Any]) -> Iterator[Any]:
    for value in data.values():
        if isinstance(value, list):
            yield from value
        elif isinstance(value, Mapping):
            yield value


def _unwrapped(row: ImportedRow, report: ImportReport, depth: int = 0) -> Iterator[ImportedRow]:
    """The evals, runs and items of an object: itself, or those in the lists of a page or a bundle."""
    if kind_of(row.data) is not None:
        yield row
        return
    found = False
    for name, value in row.data.items() if depth < _MAX_WRAPPERS else ():
        values = enumerate(value) if isinstance(value, list) else [(None, value)]
        for number, part in values:
            if isinstance(part, Mapping):
                place = f"{row.place}: {name}" + ("" if number is None else f"[{number}]")
                found = True
                yield from _unwrapped(ImportedRow(place, part), report, depth + 1)
    if not found and not _is_empty_page(row.data):
        report.not_mapped(row.place, "object", f"is not an eval, run or output item: {quote(list(row.data)[:6], 80)}")


def _is_empty_page(data: Mapping[str, Any]) -> bool:
    return data.get("data") == []


def _exported_item(row: ImportedRow) -> ExportedItem:
    data = row.data
    item = data["datasource_item"] if isinstance(data.get("datasource_item"), Mapping) else data["item"]
    number = data.get("datasource_item_id", data.get("data_source_idx"))
    sample = data.get("sample")
    return ExportedItem(
        row.place,
        str(data.get("run_id") or ""),
        number if isinstance(number, int) else None,
        item,
        sample if isinstance(sample, Mapping) else None,
        dict(_listed_grades(data.get("results"))) or dict(_dashboard_grades(data)),
    )


def _listed_grades(results: object) -> Iterator[tuple[str, RecordedGrade]]:
    """The grades of an output item of the API."""
    for result in results if isinstance(results, list) else ():
        if isinstance(result, Mapping) and isinstance(result.get("name"), str):
            yield result["name"], _grade(result.get("score"), result.get("passed"), result.get("sample"))


def _dashboard_grades(data: Mapping[str, Any]) -> Iterator[tuple[str, RecordedGrade]]:
    """The grades of a row that the dashboard exported."""
    scores, passes, samples = (_mapping(data.get(name)) for name in ("grades", "passes", "grader_samples"))
    for name in dict.fromkeys([*scores, *passes]):
        yield name, _grade(scores.get(name), passes.get(name), samples.get(name))


def _grade(score: object, passed: object, sample: object) -> RecordedGrade:
    return RecordedGrade(
        score if isinstance(score, bool | int | float) else None,
        passed if isinstance(passed, bool) else None,
        _reply(sample),
    )


def _reply(sample: object) -> str | None:
    """The judge's reply in the sample of a grader."""
    found = _mapping(sample)
    outputs = found.get("output", found.get("outputs"))
    texts = [one.get("content") for one in outputs if isinstance(one, Mapping)] if isinstance(outputs, list) else []
    return next((text for text in reversed(texts) if isinstance(text, str) and text), None)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _embedded_items(run: ExportedRun) -> Iterator[ExportedItem]:
    """The rows that the data source of a run contains."""
    content = _mapping(_mapping(run.data.get("data_source")).get("source")).get("content")
    for number, row in enumerate(content if isinstance(content, list) else ()):
        if isinstance(row, Mapping) and isinstance(row.get("item"), Mapping):
            sample = row.get("sample")
            place = f"{run.place}: data_source.source.content[{number}]"
            yield ExportedItem(place, run.id, number, row["item"], sample if isinstance(sample, Mapping) else None, {})


def response_of(sample: Mapping[str, Any]) -> Response:
    """The response of a sample; one with an ``error`` is a failed call, and so is one without any output."""
    error = call_error(sample)
    if error is not None:
        return _failed(error)
    outputs = _outputs(sample)
    if not outputs:
        return failed_response("bad_response", "the export has no output for the sample")
    try:
        messages = read_messages(outputs)
    except AgentError as fault:
        return failed_response("bad_response", f"the output of the sample cannot be read: {fault}")
    turn = tuple(message for message in messages or () if message.role != "user")
    answers = [message.content for message in turn if message.role == "assistant" and message.content]
    reason = sample.get("finish_reason")
    return Response(
        text=answers[-1] if answers else "",
        trajectory=Trajectory((turn,)),
        usage=usage_of(sample.get("usage", sample.get("token_usage"))),
        stop_reason=clean_text(reason).text if isinstance(reason, str) else None,
    )


def _outputs(sample: Mapping[str, Any]) -> list[Any]:
    """The messages of a sample; those that were uploaded with a data source may be in the form of a chat completion."""
    outputs = sample.get("output", sample.get("outputs"))
    if outputs is None and isinstance(sample.get("choices"), list):
        outputs = [choice.get("message") for choice in sample["choices"][:1] if isinstance(choice, Mapping)]
    outputs = sample.get("output_text") if outputs is None else outputs
    if isinstance(outputs, str):
        return [{"role": "assistant", "content": outputs}]
    return outputs if isinstance(outputs, list) else []


def call_error(sample: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The error of a failed call; None if the call succeeded."""
    error = sample.get("error")
    return error if isinstance(error, Mapping) and any(error.values()) else None


def failed_response(error_type: str, message: str) -> Response:
    """A response of a call that failed."""
    error = ErrorInfo(error_type, clean_text(message).text, Fault.AGENT)
    return Response(status="timeout" if error_type == "timeout" else "error", error=error)


def input_text(sample: Mapping[str, Any]) -> str | None:
    """The last message of the user in the input of a sample."""
    messages = sample.get("input", sample.get("trajectory"))
    return messages if isinstance(messages, str) else last_user_text(messages)


def last_user_text(messages: object) -> str | None:
    """The text of the last message of the user; None if there is none."""
    for message in reversed(messages) if isinstance(messages, list) else ():
        if isinstance(message, Mapping) and message.get("role") == "user":
            try:
                return content_text(message.get("content")) or None
            except NotMappedError:
                return None
    return None


def _failed(error: Mapping[str, Any]) -> Response:
    code, message = str(error.get("code") or ""), str(error.get("message") or "")
    kind = next((kind for word, kind in _ERROR_TYPES.items() if word in code.lower()), "status")
    return failed_response(kind, ": ".join(filter(None, (code, message))) or quote(dict(error)))


def usage_of(value: object) -> Usage | None:
    """The tokens of a call; None if they are unknown."""
    given = value if isinstance(value, Mapping) else {}
    usage = Usage(
        _count(given.get("prompt_tokens", given.get("input_tokens"))),
        _count(given.get("completion_tokens", given.get("output_tokens"))),
        _count(given.get("cached_tokens")),
    )
    return None if usage == Usage() else usage


def _count(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST
    return value if is_count and isinstance(value, int) else None
