"""Exports of Braintrust: rows of datasets, and experiments or logs with their spans, scores and reviews."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from gradeline.importers.exported_objects import (
    count,
    export_files,
    first_keys,
    mapping,
    number,
    read_objects,
    seconds,
    text_field,
    texts,
    timestamp,
)
from gradeline.importers.json_values import decoded
from gradeline.importers.kinds import ImportOptions, Source
from gradeline.importers.output import ImportOutput
from gradeline.importers.report import ImportReport, item_name
from gradeline.importers.rows import ImportedRow
from gradeline.importers.trace_output import write_traces
from gradeline.importers.trace_spool import DatasetItem, Span, SpanKind, TraceScore, TraceSpool
from gradeline.model import Usage, canonical_json, digest_of

KIND = "braintrust"
_PAGES = ("events", "data", "objects", "rows")
_KINDS: Mapping[str, SpanKind] = {"llm": "llm", "tool": "tool"}
_SCORE, _REVIEW = "score", "review"
"""Types of spans: a scorer's work, and the scores of one person."""
_HUMAN_SCORES = frozenset({"slider", "categorical", "free-form"})
"""Types of a project's scores that people give."""
_AUTHORS = ("user_email", "email", "user_id", "created_by", "reviewer")
_MAX_NAMES = 1_000
_KEYS = (
    frozenset({"span_attributes", "root_span_id"}),
    frozenset({"experiment_id", "input"}),
    frozenset({"dataset_id", "input", "_xact_id"}),
    frozenset({"input", "output", "expected", "scores"}),
)


def matches(source: Source) -> bool:
    """A file with rows of Braintrust."""
    return any(known <= keys for keys in first_keys(source, _PAGES) for known in _KEYS)


def read(source: Source, options: ImportOptions, output: ImportOutput) -> None:
    """Store a run for each experiment, and write a case for each dataset row and each other input."""
    files = export_files(source.path)
    with TraceSpool(output.report) as spool:
        reader = _BraintrustReader(spool, output.report)
        for read_row in (reader.find_human_scores, reader.add):
            for file in files:
                # rows that cannot be read are reported once
                report = output.report if read_row == reader.add else ImportReport("", "")
                for row in read_objects(file, report, _PAGES):
                    read_row(row)
        write_traces(spool, KIND, source.path.stem.split(".")[0] or KIND, options, output)


class _BraintrustReader:
    """Sorts the rows of an export into dataset rows, spans and scores."""

    def __init__(self, spool: TraceSpool, report: ImportReport) -> None:
        self._spool = spool
        self._report = report
        self._human: set[str] = set()
        """The names of scores that people give, by the project's configuration."""
        self._reviewed: set[str] = set()
        """The names of scores in review spans, of which other spans have the average."""

    def find_human_scores(self, row: ImportedRow) -> None:
        """Learn which scores are those of people, before any row is added."""
        data = row.data
        if data.get("score_type") in _HUMAN_SCORES and len(self._human) < _MAX_NAMES:
            self._human.add(str(data.get("name")))
        elif _type(data) == _REVIEW and len(self._reviewed) < _MAX_NAMES:
            self._reviewed.update(list(mapping(decoded(data.get("scores"))))[:_MAX_NAMES])

    def add(self, row: ImportedRow) -> None:
        data = row.data
        if "score_type" in data:
            self._report.mapped(row.place, item_name("score of the project", data.get("name")), "who gives a score")
        elif "input" not in data and "output" not in data and not _type(data):
            self._report.not_mapped(row.place, "row", "is not a dataset row or a span of an experiment or log")
        elif _is_dataset_row(data):
            self._add_item(row)
        else:
            self._add_span(row)

    def _add_item(self, row: ImportedRow) -> None:
        data = row.data
        ident = text_field(data, "id") or _input_key(data)
        expected = data.get("expected") if data.get("expected") is not None else data.get("output")
        metadata, tags = mapping(decoded(data.get("metadata"))), texts(data.get("tags"))
        item = DatasetItem(ident, row.place, decoded(data.get("input")), expected, metadata, tags)
        self._spool.add_item(item, "dataset row")

    def _add_span(self, row: ImportedRow) -> None:
        data = row.data
        ident = text_field(data, "span_id") or text_field(data, "id") or row.place
        trace = text_field(data, "root_span_id") or ident
        kind, parent = _type(data), _parent(data)
        if kind == _REVIEW:
            self._add_review(row, trace, parent)
        elif kind == _SCORE:
            return  # it repeats the score of the row
        elif self._spool.add_span(_span(row, trace, ident, parent), "row"):
            self._add_scores(row, trace, ident)

    def _add_review(self, row: ImportedRow, trace: str, parent: str | None) -> None:
        metadata = mapping(decoded(row.data.get("metadata")))
        author = next((text for key in _AUTHORS if (text := text_field({**metadata, **row.data}, key))), None)
        for name, value in mapping(decoded(row.data.get("scores"))).items():
            score = _score(row, trace, parent, name, value, human=True)
            self._spool.add_score(replace(score, comment=text_field(metadata, "comment"), author=author), "review")

    def _add_scores(self, row: ImportedRow, trace: str, span: str) -> None:
        """The scores of a row. Averages of reviews are left out: each review has a label of its own."""
        for name, value in mapping(decoded(row.data.get("scores"))).items():
            if name in self._reviewed:
                self._report.mapped(row.place, item_name("average of reviews", name), "the labels of the reviews")
            else:
                self._spool.add_score(_score(row, trace, span, name, value, human=name in self._human), "score")


def _span(row: ImportedRow, trace: str, ident: str, parent: str | None) -> Span:
    data = row.data
    metrics, attributes = mapping(decoded(data.get("metrics"))), _attributes(data)
    error = decoded(data.get("error"))
    is_root = parent is None
    return Span(
        trace,
        ident,
        row.place,
        _KINDS.get(_type(data), "other"),
        name=text_field(attributes, "name") or "",
        parent=parent,
        input=decoded(data.get("input")),
        output=decoded(data.get("output")),
        expected=decoded(data.get("expected")) if is_root else None,
        error=None if error is None else str(error),
        start=seconds(metrics.get("start")),
        end=seconds(metrics.get("end")),
        usage=_usage(metrics),
        run=_experiment(data) if is_root else None,
        item=_item(data) if is_root else None,
        metadata=mapping(decoded(data.get("metadata"))) if is_root else {},
        tags=texts(data.get("tags")) if is_root else (),
    )


def _experiment(data: Mapping[str, Any]) -> str | None:
    """The experiment of a row; None for a log."""
    names = ("experiment_name", "experiment", "experiment_id")
    return next((text for key in names if (text := text_field(data, key))), None)


def _item(data: Mapping[str, Any]) -> str | None:
    """The dataset row that an experiment's row answers; without one, rows with the same input answer the same.

    A row of a log answers none.
    """
    origin = mapping(decoded(data.get("origin")))
    linked = text_field(data, "dataset_record_id")
    if linked is None and origin.get("object_type") == "dataset":
        linked = text_field(origin, "id")
    if linked is None and not text_field(data, "log_id"):
        linked = _input_key(data)
    return linked


def _score(
    row: ImportedRow, trace: str, span: str | None, name: str, value: object, *, human: bool = False
) -> TraceScore:
    return TraceScore(
        name,
        row.place,
        None,
        trace,
        span,
        number(float(value)) if isinstance(value, bool) else number(value),
        is_verdict=isinstance(value, bool),
        declined=value is None,
        human=human,
        at=timestamp(row.data.get("created")),
    )


def _is_dataset_row(data: Mapping[str, Any]) -> bool:
    """A row of a dataset has no output of an agent; older ones have the expected value as their output."""
    if text_field(data, "dataset_id") and not text_field(data, "experiment_id"):
        return True
    return not any(key in data for key in ("output", "scores", "span_id", "root_span_id", "experiment_id", "log_id"))


def _attributes(data: Mapping[str, Any]) -> dict[str, Any]:
    return mapping(decoded(data.get("span_attributes")))


def _type(data: Mapping[str, Any]) -> str:
    return text_field(_attributes(data), "type") or ""


def _parent(data: Mapping[str, Any]) -> str | None:
    parents = decoded(data.get("span_parents"))
    found = parents[0] if isinstance(parents, list) and parents else None
    return found if isinstance(found, str) else None


def _usage(metrics: Mapping[str, Any]) -> Usage | None:
    read, written = count(metrics.get("prompt_tokens")), count(metrics.get("completion_tokens"))
    cached, cost = count(metrics.get("prompt_cached_tokens")), number(metrics.get("estimated_cost"))
    return None if read is None and written is None and cost is None else Usage(read, written, cached, cost)


def _input_key(data: Mapping[str, Any]) -> str:
    return f"input-{digest_of(canonical_json(decoded(data.get('input'))).decode())[:12]}"
