"""What comes back from a run: its report, and its records for as long as they are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

from gradeline.api.frames import as_frame, plain_rows
from gradeline.api.stores import OpenStore
from gradeline.engine.aggregate import Summary
from gradeline.engine.conclude import worst_of
from gradeline.engine.orchestrate import RunOutcome
from gradeline.model import Record, Run, Storage
from gradeline.report.table import result_rows
from gradeline.verdict import Verdict


class RunResult:
    """A run that was worked on; the names are those of ``gradeline run --json``.

    Its store stays open until `close`, the end of a ``with``, or until nothing holds the result any more.
    """

    def __init__(self, ran: RunOutcome, store: OpenStore) -> None:
        self._ran = ran
        self._store = store

    @property
    def run(self) -> Run:
        return self._ran.report.run

    @property
    def summary(self) -> Summary:
        return self._ran.report.summary

    @property
    def verdict(self) -> Verdict:
        return self._ran.report.verdict

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 undecided, 4 nothing graded, 130 interrupted."""
        return self._ran.exit_code

    @property
    def passed(self) -> bool:
        """Whether the gate passed; without a gate, whether enough was graded. Undecided is not passed."""
        return self.exit_code == 0

    @property
    def stopped(self) -> str | None:
        """Why the run ended early: its budget, or its first failure."""
        return self._ran.stopped

    @property
    def runs(self) -> Sequence[RunResult]:
        """The runs of several models; else this one."""
        return [self]

    @property
    def store(self) -> Storage:
        """Where the run is kept. Another run may be given it: ``run_suite(suite, store=result.store)``."""
        return self._store.storage

    def records(self) -> Iterator[Record]:
        """Every (case, repeat) with its response and its grades, read from the store as they are asked for."""
        yield from self._ran.report.records()

    def rows(self) -> Iterator[dict[str, Any]]:
        """One mapping for each (case, repeat, grader)."""
        yield from plain_rows(self.run, result_rows(self.records(), self.run.graders))

    def to_frame(self) -> Any:
        """`result_rows` as a DataFrame of pandas, or of polars where that alone is installed."""
        return as_frame(self.rows())

    def to_dict(self) -> dict[str, Any]:
        """The result as ``--json`` prints it."""
        return self._ran.to_data()

    def close(self) -> None:
        """Let go of the store; only `records` and what reads them need it."""
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
    """The runs of several models. Each has a summary and a verdict of its own, in ``runs``."""

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
