"""One log record per phase of a run: initialise, execute, grade, aggregate.

Execution and grading of different cases overlap, so their durations may add up to more than the run took. Each record
has the phase's figures as a mapping too, as its attribute ``gradeline_phase``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from time import perf_counter
from typing import Literal, NamedTuple

from gradeline.engine.plan import Work
from gradeline.errors import Outcome
from gradeline.model import Counts, Run

Phase = Literal["initialise", "execute", "grade", "aggregate"]

_log = logging.getLogger("gradeline.run")


class Worked(NamedTuple):
    """What was done of a run, and how many seconds passed from the first to the last of it.

    None: the cases were worked on elsewhere, and only the whole is known.
    """

    done: Counter[Work]
    execute_s: float | None = None
    grade_s: float | None = None


class PhaseClock:
    """When cases were executed and graded: set by the pipeline, read at its end."""

    __slots__ = ("began", "executed", "graded", "grading")

    def __init__(self) -> None:
        self.began = self.executed = self.graded = perf_counter()
        self.grading: float | None = None
        """When the first response could be graded."""

    @property
    def execute_s(self) -> float:
        return self.executed - self.began

    @property
    def grade_s(self) -> float:
        return 0.0 if self.grading is None else self.graded - self.grading


def log_initialised(run: Run, seconds: float) -> None:
    """The suite, its code, graders and target are ready, and the run is claimed."""
    _log_phase(run, "initialise", {"graders": len(run.graders)}, seconds)


def log_worked(run: Run, worked: Worked, counts: Counts, seconds: float) -> None:
    """All cases are executed and graded, or the run was stopped. ``seconds`` is what both took together."""
    failed = sum(number for status, number in counts.responses.items() if status != "success")
    executed = {
        "called": worked.done[Work.RERUN],
        "reused": worked.done[Work.REUSE] + worked.done[Work.REGRADE],
        "failed": failed,
    }
    _log_phase(run, "execute", executed, seconds if worked.execute_s is None else worked.execute_s)
    outcomes: Counter[str] = Counter({outcome.value: 0 for outcome in Outcome})
    for column in counts.graders.values():
        outcomes.update(column.outcomes)
    _log_phase(run, "grade", outcomes, seconds if worked.grade_s is None else worked.grade_s)


def log_aggregated(run: Run, counts: Counts, seconds: float) -> None:
    """The run is ended and summed up."""
    figures = {"responses": sum(counts.responses.values()), "graders": len(run.graders)}
    _log_phase(run, "aggregate", figures, seconds, run.status)


def _log_phase(run: Run, phase: Phase, figures: Mapping[str, int], seconds: float, status: str | None = None) -> None:
    if not _log.isEnabledFor(logging.INFO):
        return
    data = {"run": run.id, "phase": phase, **figures, "seconds": round(seconds, 6)}
    parts = [] if status is None else [status]
    parts += [f"{number} {name}" for name, number in figures.items()]
    if status is not None:
        data["status"] = status
    _log.info("run %s: %s: %s in %.3f s", run.id, phase, ", ".join(parts), seconds, extra={"gradeline_phase": data})
