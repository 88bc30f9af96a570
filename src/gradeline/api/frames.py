"""Records as a table: one row for each (case, repeat, grader)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, Literal

from gradeline.model import Run
from gradeline.report.table import ResultRow

Type = Literal["text", "number", "count", "flag"]

COLUMNS: dict[str, Type] = {
    "run": "text",
    "model": "text",
    "case": "text",
    "repeat": "count",
    "grader": "text",
    "kind": "text",
    "outcome": "text",
    "score": "number",
    "passed": "flag",
    "rationale": "text",
    "error_type": "text",
    "error_message": "text",
    "fault": "text",
    "response_status": "text",
    "latency_ms": "number",
    "input": "text",
    "expected": "text",
    "submission": "text",
    "text": "text",
}
_PANDAS: dict[Type, str] = {"text": "object", "number": "float64", "count": "int64", "flag": "boolean"}
_POLARS: dict[Type, str] = {"text": "String", "number": "Float64", "count": "Int64", "flag": "Boolean"}


def plain_rows(run: Run, rows: Iterable[ResultRow]) -> Iterator[dict[str, Any]]:
    """Rows as plain data. None is what is not known: an error has no score, and is no failure."""
    for row in rows:
        record, grade, error = row.record, row.grade, row.error
        yield {
            "run": run.id,
            "model": run.target.get("model"),
            "case": record.case,
            "repeat": record.repeat,
            "grader": row.grader,
            "kind": row.kind,
            "outcome": None if row.outcome is None else row.outcome.value,
            "score": None if grade is None else grade.score,
            "passed": None if grade is None else grade.passed,
            "rationale": None if grade is None else grade.rationale,
            "error_type": None if error is None else error.type,
            "error_message": None if error is None else error.message,
            "fault": None if error is None else str(error.fault),
            "response_status": record.response.status,
            "latency_ms": record.response.latency_ms,
            "input": _text(record.sample.input),
            "expected": _text(record.sample.ground_truth),
            "submission": record.submissions.get(row.grader),
            "text": record.response.text,
        }


def as_frame(rows: Iterable[dict[str, Any]]) -> Any:
    """A pandas DataFrame, else a polars one; `ImportError` where neither is installed."""
    pandas = _imported("pandas")
    if pandas is not None:
        frame = pandas.DataFrame.from_records(list(rows), columns=list(COLUMNS))
        return frame.astype({name: _PANDAS[kind] for name, kind in COLUMNS.items()})
    polars = _imported("polars")
    if polars is not None:
        schema = {name: getattr(polars, _POLARS[kind]) for name, kind in COLUMNS.items()}
        return polars.DataFrame(list(rows), schema=schema)
    raise ImportError(
        "a frame needs pandas or polars: pip install pandas (or: pip install polars); rows() needs neither"
    )


def _imported(name: str) -> Any:
    """The module, or None where it is not installed; one that is there and broken says so."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None


def _text(value: str | list[str] | None) -> str | None:
    """The turns of a conversation as JSON, so that a column holds one type."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
