"""The results of a run: its report, its records as rows and tables, and the store that holds them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self
from weakref import finalize

from gradeline.engine.aggregate import Summary, worst_of
from gradeline.engine.orchestrate import RunOutcome
from gradeline.errors import ConfigError, Problem
from gradeline.model import Record, Run, Storage, quote
from gradeline.report.table import TableRow, result_rows
from gradeline.store import InMemoryStorage, default_store, open_storage
from gradeline.verdict import Verdict


class OpenStore:
    """A store that stays open as long as this object lives; a store that the caller opened is left open."""

    def __init__(self, wanted: str | Path | Storage | None = None) -> None:
        self._close: finalize[[], OpenStore] | None = None
        if wanted is None or isinstance(wanted, str | Path):
            self.storage = open_storage(default_store() if wanted is None else wanted)
            self._close = finalize(self, self.storage.close)
        elif isinstance(wanted, Storage):
            self.storage = wanted
        else:
            problem = f"expected a path, a URL such as sqlite:///runs.db or memory://, or a store, got {quote(wanted)}"
            raise ConfigError(Problem("store", problem))

    @property
    def is_durable(self) -> bool:
        """True if its content outlives the process."""
        return not isinstance(self.storage, InMemoryStorage)

    def close(self) -> None:
        """Close the store now."""
        if self._close is not None:
            self._close()


class RunResult:
    """An executed run; the names are those of ``gradeline run --json``.

    Its store stays open until `close`, the end of a ``with``, or until the result is garbage.
    """

    def __init__(self, outcome: RunOutcome, store: OpenStore) -> None:
        self._outcome = outcome
        self._store = store

    @property
    def run(self) -> Run:
        return self._outcome.report.run

    @property
    def summary(self) -> Summary:
        return self._outcome.report.summary

    @property
    def verdict(self) -> Verdict:
        return self._outcome.report.verdict

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 undecided, 4 nothing graded, 130 interrupted."""
        return self._outcome.exit_code

    @property
    def passed(self) -> bool:
        """True if the gate passed; without a gate, if enough was graded. Undecided is not passed."""
        return self.exit_code == 0

    @property
    def stopped(self) -> str | None:
        """Why the run ended early: its budget, or its first failure."""
        return self._outcome.stopped

    @property
    def runs(self) -> Sequence[RunResult]:
        """The runs of several variants; else this one."""
        return [self]

    @property
    def store(self) -> Storage:
        """The store of the run, for further runs too: ``run_suite(suite, store=result.store)``."""
        return self._store.storage

    def records(self) -> Iterator[Record]:
        """Every (case, repeat) with its response and its grades, read from the store one by one."""
        yield from self._outcome.report.records()

    def rows(self) -> Iterator[dict[str, Any]]:
        """One mapping for each (case, repeat, grader)."""
        yield from plain_rows(self.run, result_rows(self.records(), self.run.graders))

    def to_frame(self) -> Any:
        """`rows` as a DataFrame of pandas, or of polars if only that is installed."""
        return as_frame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """The result as ``--json`` prints it."""
        return self._outcome.to_data()

    def close(self) -> None:
        """Close the store, which only `records` and what reads them need."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        scores = [
            f"{key} {grader.passed} of {grader.scored} passed" + (f", {missing} without a score" if missing else "")
            for key, grader in self.summary.graders.items()
            for missing in (grader.total - grader.scored,)
        ]
        return f"<RunResult {self.run.name!r} {self.run.id}: {'; '.join((self.verdict.result, *scores))}>"


class RunGroup(RunResult):
    """The runs of several variants. Each has a summary and a verdict of its own, in ``runs``."""

    def __init__(self, runs: Sequence[RunResult], store: OpenStore) -> None:
        self._runs = runs
        self._store = store

    @property
    def runs(self) -> Sequence[RunResult]:
        return self._runs

    @property
    def run(self) -> Run:
        raise self._several("run")

    @property
    def summary(self) -> Summary:
        raise self._several("summary")

    @property
    def verdict(self) -> Verdict:
        raise self._several("verdict")

    @property
    def exit_code(self) -> int:
        return worst_of([one.exit_code for one in self._runs])

    @property
    def stopped(self) -> str | None:
        return next((one.stopped for one in self._runs if one.stopped is not None), None)

    def records(self) -> Iterator[Record]:
        for one in self._runs:
            yield from one.records()

    def rows(self) -> Iterator[dict[str, Any]]:
        for one in self._runs:
            yield from one.rows()

    def to_dict(self) -> dict[str, Any]:
        return {"runs": [one.to_dict() for one in self._runs], "exit_code": self.exit_code}

    def __repr__(self) -> str:
        return f"<RunGroup {', '.join(map(repr, self._runs))}>"

    def _several(self, name: str) -> AttributeError:
        return AttributeError(f"these are {len(self._runs)} runs, each with its own {name}; look into .runs")


Type = Literal["text", "number", "count", "flag"]

COLUMNS: dict[str, Type] = {
    "run": "text",
    "model": "text",
    "variant": "text",
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


def plain_rows(run: Run, rows: Iterable[TableRow]) -> Iterator[dict[str, Any]]:
    """Rows as plain data. None is a value that does not exist: an error has no score, and is not a fail."""
    for row in rows:
        record, grade, error = row.record, row.grade, row.error
        yield {
            "run": run.id,
            "model": run.target.get("model"),
            "variant": run.variant,
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
            "input": _joined_turns(record.sample.input),
            "expected": _joined_turns(record.sample.ground_truth),
            "submission": record.submissions.get(row.grader),
            "text": record.response.text,
        }


def as_frame(rows: Iterable[dict[str, Any]]) -> Any:
    """A pandas DataFrame, else a polars one; `ImportError` if neither is installed."""
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
    """The module, or None if it is not installed; a broken one raises its own error."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None


def _joined_turns(value: str | list[str] | None) -> str | None:
    """The turns of a conversation as JSON, so that a column holds one type."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
