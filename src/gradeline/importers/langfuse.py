"""Exports of Langfuse: dataset items, experiments (dataset runs), traces with their observations, and scores.

The files are responses of the public API (pages, or one object), downloads of the web interface, or the scheduled
export to blob storage, whose names are in snake case. A folder may have several of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradeline.importers.exported_objects import (
    count,
    export_files,
    field,
    first_keys,
    mapping,
    number,
    read_objects,
    seconds,
    text_field,
    texts,
    timestamp,
)
from gradeline.importers.kinds import ImportOptions, Source
from gradeline.importers.output import ImportOutput
from gradeline.importers.report import ImportReport, item_name
from gradeline.importers.rows import ImportedRow
from gradeline.importers.trace_output import write_traces
from gradeline.importers.trace_scores import value_of_word
from gradeline.importers.trace_spool import DatasetItem, Span, SpanKind, TraceScore, TraceSpool
from gradeline.model import Usage

KIND = "langfuse"
_PAGES = ("data",)
_KINDS: Mapping[str, SpanKind] = {
    "GENERATION": "llm",
    "AGENT": "agent",
    "TOOL": "tool",
    "RETRIEVER": "retriever",
}
"""The kinds of observations; all others are steps whose content is not read."""
_SCORES = frozenset({"NUMERIC", "BOOLEAN", "CATEGORICAL"})
_LISTS = ("datasetRunItems", "items", "traces")
"""Objects that contain a list of others: a dataset run, a dataset, a session."""
_KEYS = (
    frozenset({"datasetName", "expectedOutput"}),
    frozenset({"traceId", "dataType", "name"}),
    frozenset({"trace_id", "data_type", "name"}),
    frozenset({"traceId", "startTime", "type"}),
    frozenset({"trace_id", "start_time", "type"}),
    frozenset({"observations", "scores", "timestamp"}),
    frozenset({"timestamp", "bookmarked", "public"}),
    frozenset({"datasetRunId", "datasetItemId"}),
    frozenset({"experimentItemId", "traceId"}),
    frozenset({"subject", "dataType", "name"}),
)


def matches(source: Source) -> bool:
    """An export of Langfuse, or a folder as its export to blob storage writes it."""
    return any(known <= keys for keys in first_keys(source, _PAGES) for known in _KEYS)


def read(source: Source, options: ImportOptions, output: ImportOutput) -> None:
    """Store a run for each dataset run, one for all other traces, and write their cases."""
    name = source.path.stem.split(".")[0] or KIND
    with TraceSpool(output.report) as spool:
        reader = _LangfuseReader(spool, output.report)
        for file in export_files(source.path):
            for row in read_objects(file, output.report, _PAGES):
                reader.add(row)
        write_traces(spool, KIND, reader.dataset or name, options, output)


class _LangfuseReader:
    """Sorts the objects of an export into items, spans, scores and links."""

    def __init__(self, spool: TraceSpool, report: ImportReport) -> None:
        self.dataset: str | None = None
        """The name of the first dataset."""
        self._spool = spool
        self._report = report

    def add(self, row: ImportedRow) -> None:
        data = row.data
        if field(data, "datasetItemId") and field(data, "traceId"):
            self._add_link(row)
        elif field(data, "experimentItemId") and field(data, "traceId") and "type" not in data:
            self._add_experiment_item(row)
        elif "dataType" in data or "data_type" in data or ("value" in data and "source" in data):
            self._add_score(row)
        elif field(data, "traceId") and field(data, "startTime"):
            self._add_observation(row)
        elif "input" in data and (field(data, "datasetId") or field(data, "datasetName")):
            self._add_item(row)
        elif "timestamp" in data and text_field(data, "id"):
            self._add_trace(row)
        else:
            self._add_parts(row)

    def _add_parts(self, row: ImportedRow) -> None:
        key = next((key for key in _LISTS if isinstance(row.data.get(key), list)), None)
        if key is None:
            self._report.not_mapped(row.place, "row", "is not a dataset item, trace, observation or score")
            return
        for part in _parts(row, key):
            self.add(part)

    def _add_item(self, row: ImportedRow) -> None:
        data = row.data
        ident = text_field(data, "id")
        if ident is None:
            self._report.not_mapped(row.place, "dataset item", "has no id; export it again")
            return
        if data.get("status") == "ARCHIVED":
            self._report.not_mapped(row.place, "dataset item", "is archived; activate it to import it")
            return
        self.dataset = self.dataset or text_field(data, "datasetName")
        item = DatasetItem(
            ident, row.place, data.get("input"), field(data, "expectedOutput"), mapping(data.get("metadata"))
        )
        if self._spool.add_item(item, "dataset item") and data.get("mediaReferences"):
            self._report.not_mapped(row.place, "media", "is not part of an export; put its text into the input")

    def _add_link(self, row: ImportedRow) -> None:
        data = row.data
        run = text_field(data, "datasetRunName") or text_field(data, "datasetRunId") or "dataset run"
        self._spool.add_link(str(field(data, "traceId")), run, str(field(data, "datasetItemId")))
        self._report.mapped(row.place, "dataset run item", "result of a run")

    def _add_experiment_item(self, row: ImportedRow) -> None:
        """The result of an experiment for one item, as version 4 has it: the first observation and its scores."""
        data = row.data
        trace = str(field(data, "traceId"))
        span = Span(
            trace,
            text_field(data, "id") or trace,
            row.place,
            "trace",
            input=data.get("input"),
            output=data.get("output"),
            expected=field(data, "expectedOutput"),
            error=_error(data),
            start=seconds(field(data, "startTime")),
            end=seconds(field(data, "endTime")),
            run=_experiment(data),
            item=text_field(data, "experimentItemId"),
            metadata=mapping(field(data, "experimentItemMetadata")),
        )
        self._spool.add_span(span, "experiment item")
        for part in _parts(row, "scores"):
            self.add(ImportedRow(part.place, {"traceId": trace, **part.data}))

    def _add_trace(self, row: ImportedRow) -> None:
        data = row.data
        trace = str(data["id"])
        start, latency = seconds(data.get("timestamp")), number(data.get("latency"))
        cost = number(field(data, "totalCost"))
        span = Span(
            trace,
            trace,
            row.place,
            "trace",
            name=text_field(data, "name") or "",
            input=data.get("input"),
            output=data.get("output"),
            start=start,
            end=None if start is None or latency is None else start + latency,
            usage=None if cost is None else Usage(cost=cost),
            session=text_field(data, "sessionId"),
            metadata=mapping(data.get("metadata")),
            tags=texts(data.get("tags")),
        )
        self._spool.add_span(span, "trace")
        for key in ("observations", "scores"):
            for part in _parts(row, key):
                self.add(part)

    def _add_observation(self, row: ImportedRow) -> None:
        data = row.data
        trace, ident = str(field(data, "traceId")), text_field(data, "id")
        if ident is None:
            self._report.not_mapped(row.place, "observation", "has no id; export it again")
            return
        span = Span(
            trace,
            ident,
            row.place,
            _KINDS.get(str(data.get("type")).upper(), "other"),
            name=text_field(data, "name") or "",
            parent=text_field(data, "parentObservationId"),
            input=data.get("input"),
            output=data.get("output"),
            error=_error(data),
            start=seconds(field(data, "startTime")),
            end=seconds(field(data, "endTime")),
            usage=_usage(data),
            run=_experiment(data),
            item=text_field(data, "experimentItemId"),
            session=text_field(data, "sessionId"),
            metadata=mapping(data.get("metadata")),
            tags=texts(data.get("tags")),
        )
        self._spool.add_span(span, "observation")

    def _add_score(self, row: ImportedRow) -> None:
        data = row.data
        name, kind = text_field(data, "name"), str(field(data, "dataType") or "NUMERIC").upper()
        what = item_name("score", name or "")
        if name is None or kind not in _SCORES:
            self._report.not_mapped(
                row.place, what, f"has the type {kind.lower()}, which is not a grade; read it in the source"
            )
            return
        trace, observation = _subject(data)
        if trace is None and observation is None:
            self._report.not_mapped(row.place, what, "belongs to a session or a whole experiment; score the traces")
            return
        self._spool.add_score(_score(row, name, kind, trace, observation), "score")


def _experiment(data: Mapping[str, Any]) -> str | None:
    return text_field(data, "experimentName") or text_field(data, "experimentId")


def _error(data: Mapping[str, Any]) -> str | None:
    if data.get("level") != "ERROR":
        return None
    return text_field(data, "statusMessage") or "the observation has the level ERROR"


def _subject(data: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The ids of the trace and of the observation that a score is of, which version 4 keeps in an object."""
    subject = mapping(data.get("subject"))
    if not subject:
        return text_field(data, "traceId"), text_field(data, "observationId")
    ident = text_field(subject, "id")
    match subject.get("kind"):
        case "trace":
            return ident, None
        case "observation":
            return text_field(subject, "traceId") or text_field(data, "traceId"), ident
        case _:
            return None, None


def _score(row: ImportedRow, name: str, kind: str, trace: str | None, observation: str | None) -> TraceScore:
    data = row.data
    raw, text = data.get("value"), text_field(data, "stringValue")
    if isinstance(raw, str) and text is None:
        text = raw
    value = float(raw) if isinstance(raw, bool) else number(raw)
    if kind == "CATEGORICAL":
        # its number is the place in a list of categories, unless the category itself is a verdict
        value = value_of_word(text)
    elif value is None:
        value = value_of_word(text)
    return TraceScore(
        name,
        row.place,
        text_field(data, "id"),
        trace,
        observation,
        value,
        text if kind == "CATEGORICAL" else None,
        is_verdict=kind != "NUMERIC",
        human=str(data.get("source")).upper() == "ANNOTATION",
        comment=text_field(data, "comment"),
        author=text_field(data, "authorUserId"),
        at=timestamp(field(data, "updatedAt") or data.get("timestamp")),
    )


def _usage(data: Mapping[str, Any]) -> Usage | None:
    """The tokens of all kinds of input, of which cached ones are a kind of their own, and of all kinds of output."""
    details = mapping(field(data, "usageDetails")) or mapping(data.get("usage"))
    tokens = {key: found for key, value in details.items() if (found := count(value)) is not None}
    read = [found for key, found in tokens.items() if "input" in key]
    written = [found for key, found in tokens.items() if "output" in key]
    cached = [found for key, found in tokens.items() if "cache" in key and "creation" not in key]
    cost = number(mapping(field(data, "costDetails")).get("total"))
    if cost is None:
        cost = number(field(data, "calculatedTotalCost"))
    if not tokens and cost is None:
        return None
    return Usage(_sum(read), _sum(written), _sum(cached), cost)


def _sum(tokens: list[int]) -> int | None:
    return sum(tokens) if tokens else None


def _parts(row: ImportedRow, key: str) -> Iterator[ImportedRow]:
    """The objects in a list of an object; ids are skipped, because other files have their objects."""
    found = row.data.get(key)
    inherited = {name: row.data[name] for name in ("datasetName", "datasetRunName") if name in row.data}
    if key == "datasetRunItems" and "name" in row.data:
        inherited["datasetRunName"] = row.data["name"]
    for index, part in enumerate(found if isinstance(found, list) else ()):
        if isinstance(part, Mapping):
            yield ImportedRow(f"{row.place} {key}[{index}]", {**inherited, **part})
