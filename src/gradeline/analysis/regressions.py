"""The cases that regressed between two runs, the largest loss first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from gradeline.engine.comparison import Comparison, paired
from gradeline.engine.definition import Rules
from gradeline.model import Run, Storage
from gradeline.verdict.evidence import case_score


class ScoreChange(NamedTuple):
    """One grader's scores of a case; ``candidate`` is None for a score that is missing now."""

    grader: str
    baseline: float
    candidate: float | None


class RegressedCase(NamedTuple):
    """A case that regressed for at least one grader, or lost its score."""

    case: str
    changes: tuple[ScoreChange, ...]

    @property
    def loss(self) -> float:
        """The largest loss of a score; 0 if scores are only missing."""
        known = (change.baseline - change.candidate for change in self.changes if change.candidate is not None)
        return max(known, default=0.0)


class Regressions(NamedTuple):
    """The worst cases, and the total number of cases that regressed."""

    cases: tuple[RegressedCase, ...] = ()
    total: int = 0


def find_regressions(storage: Storage, comparison: Comparison, most: int = 10) -> Regressions:
    """The cases that a grader counts as worse, then those that had a score and have none now; at most ``most``.

    A case that the candidate does not have is neither.
    """
    worse: dict[str, list[ScoreChange]] = {}
    lost: dict[str, list[ScoreChange]] = {}
    for change, case in _changes(storage, comparison):
        found = lost if change.candidate is None else worse
        found.setdefault(case, []).append(change)
    cases = sorted((RegressedCase(case, tuple(each)) for case, each in worse.items()), key=lambda one: -one.loss)[:most]
    if len(cases) < most and lost:
        run = _cases(storage, comparison.candidate)
        left = (RegressedCase(case, tuple(each)) for case, each in lost.items() if case in run and case not in worse)
        cases += islice(left, most - len(cases))
    return Regressions(tuple(cases), len(worse))


def _cases(storage: Storage, run: Run) -> set[str]:
    return {case for responses, _ in storage.columns(run.id) for case in responses.cases}


def _changes(storage: Storage, comparison: Comparison) -> Iterator[tuple[ScoreChange, str]]:
    agent_errors = Rules.of(comparison.candidate).agent_errors
    for key, scores in paired(storage, comparison.baseline, comparison.candidate, comparison.graders).items():
        chosen = {*comparison.graders[key].worse_cases, *comparison.graders[key].missing_cases}
        for case, before, after in zip(scores.cases, scores.baseline, scores.candidate, strict=True):
            first = case_score(before, agent_errors) if case in chosen else None
            if first is not None:
                yield ScoreChange(key, first, case_score(after, agent_errors)), case
