"""Exports of LangSmith: examples of a dataset, runs with their children, and feedback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
from gradeline.importers.trace_scores import value_of_word
from gradeline.importers.trace_spool import DatasetItem, Span, SpanKind, TraceScore, TraceSpool
from gradeline.model import Usage, canonical_json, digest_of

KIND = "langsmith"
_PAGES = ("runs", "examples", "feedback", "data")
_KINDS: Mapping[str, SpanKind] = {"llm": "llm", "tool": "tool", "retriever": "retriever"}
_PERSON = "app"
"""The source of feedback that a person gives in LangSmith; an evaluator's is ``api``, ``model`` or ``evaluator``."""
_MAX_CHILDREN = 100
"""Depth of runs within runs."""
_KEYS = (
    frozenset({"run_type", "inputs"}),
    frozenset({"run_id", "key", "score"}),
    frozenset({"dataset_id", "inputs", "outputs"}),
)
_EXAMPLE = frozenset({"id", "inputs", "outputs", "metadata", "split", "attachments", "dataset_id", "name"})


def matches(source: Source) -> bool:
    """A file with runs, examples or feedback of LangSmith."""
    return any(_is_known(keys) for keys in first_keys(source, _PAGES))


def _is_known(keys: frozenset[str]) -> bool:
    return any(known <= keys for known in _KEYS) or ({"inputs", "outputs"} <= keys and keys <= _EXAMPLE)


def read(source: Source, options: ImportOptions, output: ImportOutput) -> None:
    """Store a run for each project or experiment, and write a case for each example and each other trace."""
    with TraceSpool(output.report) as spool:
        reader = _LangSmithReader(spool, output.report)
        for file in export_files(source.path):
            for row in read_objects(file, output.report, _PAGES):
                reader.add(row)
        reader.finish()
        write_traces(spool, KIND, source.path.stem.split(".")[0] or KIND, options, output)


class _LangSmithReader:
    """Sorts the objects of an export into examples, runs and feedback."""

    def __init__(self, spool: TraceSpool, report: ImportReport) -> None:
        self._spool = spool
        self._report = report
        self._has_feedback = False
        self._summarized: str | None = None
        """The place of the first run that has only a summary of its feedback."""

    def add(self, row: ImportedRow, depth: int = 0) -> None:
        data = row.data
        if "run_type" in data:
            self._add_run(row, depth)
        elif "key" in data and ("score" in data or "value" in data):
            self._add_feedback(row)
        elif "inputs" in data:
            self._add_example(row)
        else:
            self._report.not_mapped(row.place, "row", "is not an example, a run or feedback")

    def finish(self) -> None:
        """Report feedback of which the source has only averages."""
        if self._summarized is not None and not self._has_feedback:
            why = "has only averages per run; export the feedback itself with list_feedback"
            self._report.not_mapped(self._summarized, "feedback_stats", why)

    def _add_example(self, row: ImportedRow) -> None:
        data = row.data
        ident = text_field(data, "id") or f"example-{_digest(data.get('inputs'))}"
        metadata = mapping(data.get("metadata"))
        split = data.get("split") or metadata.get("dataset_split")
        tags = tuple(name for name in (split if isinstance(split, list) else [split]) if isinstance(name, str))
        item = DatasetItem(ident, row.place, data.get("inputs"), data.get("outputs"), metadata, tags)
        if self._spool.add_item(item, "example") and data.get("attachments"):
            self._report.not_mapped(row.place, "attachments", "are not part of a case; put their text into the inputs")

    def _add_run(self, row: ImportedRow, depth: int) -> None:
        data = row.data
        ident = text_field(data, "id") or text_field(data, "run_id")
        if ident is None:
            self._report.not_mapped(row.place, "run", "has no id; export it again")
            return
        extra = mapping(decoded(data.get("extra")))
        parent = text_field(data, "parent_run_id")
        project = text_field(data, "session_name") or text_field(data, "session_id")
        metadata = mapping(extra.get("metadata"))
        span = Span(
            text_field(data, "trace_id") or ident,
            ident,
            row.place,
            _KINDS.get(str(data.get("run_type")), "other"),
            name=text_field(data, "name") or "",
            parent=parent,
            input=decoded(data.get("inputs")),
            output=_outputs(data),
            error=text_field(data, "error"),
            start=seconds(data.get("start_time")),
            end=seconds(data.get("end_time")),
            usage=_usage(data),
            run=project,
            item=text_field(data, "reference_example_id"),
            session=next((text for key in _THREADS if (text := text_field(metadata, key))), None),
            metadata=metadata if parent is None else {},
            tags=texts(decoded(data.get("tags"))) if parent is None else (),
        )
        self._spool.add_span(span, "run")
        if mapping(decoded(data.get("feedback_stats"))) and self._summarized is None:
            self._summarized = row.place
        for child in self._children(row, depth):
            self.add(child, depth + 1)

    def _children(self, row: ImportedRow, depth: int) -> Iterator[ImportedRow]:
        children = row.data.get("child_runs")
        if not isinstance(children, list) or not children:
            return
        if depth >= _MAX_CHILDREN:
            self._report.not_mapped(row.place, "child_runs", f"are nested more than {_MAX_CHILDREN} levels deep")
            return
        inherited = {"trace_id": row.data.get("trace_id") or row.data.get("id"), "parent_run_id": row.data.get("id")}
        for index, child in enumerate(children):
            if isinstance(child, Mapping):
                yield ImportedRow(f"{row.place} child_runs[{index}]", {**inherited, **child})

    def _add_feedback(self, row: ImportedRow) -> None:
        data = row.data
        self._has_feedback = True
        name, run = text_field(data, "key"), text_field(data, "run_id")
        if name is None or run is None:
            self._report.not_mapped(
                row.place, item_name("feedback", name or ""), "belongs to no run; only feedback on runs is imported"
            )
            return
        source = mapping(data.get("feedback_source"))
        raw = data.get("score")
        value, text = number(float(raw) if isinstance(raw, bool) else raw), text_field(data, "value")
        score = TraceScore(
            name,
            row.place,
            text_field(data, "id"),
            span=run,
            value=value_of_word(text) if value is None else value,
            text=text,
            is_verdict=isinstance(raw, bool) or value is None,
            human=source.get("type") == _PERSON,
            comment=text_field(data, "comment"),
            author=text_field(source, "user_id") or text_field(source, "user_name"),
            at=timestamp(data.get("modified_at") or data.get("created_at")),
        )
        self._spool.add_score(score, "feedback")
        if data.get("correction"):
            self._report.not_mapped(row.place, "correction", "is not a grade; correct the example's outputs")


_THREADS = ("session_id", "thread_id", "conversation_id")


def _outputs(data: Mapping[str, Any]) -> object:
    """The outputs of a run; an empty mapping is none."""
    return decoded(data.get("outputs")) or None


def _usage(data: Mapping[str, Any]) -> Usage | None:
    read, written = count(data.get("prompt_tokens")), count(data.get("completion_tokens"))
    raw = data.get("total_cost")
    try:
        cost = number(float(raw)) if isinstance(raw, str) else number(raw)  # decimals are exported as strings
    except ValueError:
        cost = None
    cached = count(mapping(data.get("prompt_token_details")).get("cache_read"))
    if read is None and written is None:
        reported = _reported_usage(data)
        read, written = count(reported.get("input_tokens")), count(reported.get("output_tokens"))
        cached = count(mapping(reported.get("input_token_details")).get("cache_read"))
    return None if read is None and written is None and cost is None else Usage(read, written, cached, cost)


def _reported_usage(data: Mapping[str, Any]) -> dict[str, Any]:
    """The usage that the client recorded: in the metadata, in the outputs, or in LangChain's message."""
    outputs = mapping(decoded(data.get("outputs")))
    metadata = mapping(mapping(decoded(data.get("extra"))).get("metadata"))
    message: object = outputs.get("generations")
    while isinstance(message, list) and message:
        message = message[0]
    inner = mapping(mapping(message).get("message"))
    places = (metadata, outputs, mapping(inner.get("kwargs")), inner)
    return next((found for place in places if (found := mapping(place.get("usage_metadata")))), {})


def _digest(value: object) -> str:
    return digest_of(canonical_json(value).decode())[:12]
