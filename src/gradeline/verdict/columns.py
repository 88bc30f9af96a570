"""What a gate looks at: one grader's scores, and scores beside those of a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Literal, NamedTuple

AgentErrors = Literal["exclude", "fail"]
"""What a failed agent call counts as: nothing, or a score of 0."""


class Column(NamedTuple):
    """One grader's scores, and how many grades there should be.

    ``cases`` says which case each score belongs to; empty, every score has a case of its own.
    ``failed_cases`` says the same of the failed calls, for gates that count those as 0.
    """

    scores: Sequence[float]
    total: int
    failed_calls: int = 0
    cases: Sequence[int] = ()
    failed_cases: Sequence[int] = ()


class Paired(NamedTuple):
    """A baseline's and a candidate's scores on the same cases, in the same order.

    None is a failed agent call; where a grade is missing for any other reason the pair is left out.
    ``cases`` says which case each pair belongs to; empty, every pair has a case of its own.
    """

    baseline: Sequence[float | None]
    candidate: Sequence[float | None]
    cases: Sequence[int] = ()


def counted(column: Column, agent_errors: AgentErrors) -> Column:
    """The column whose scores enter a gate's arithmetic: with ``fail``, a failed call is a 0 among them."""
    failed = column.failed_calls
    if agent_errors == "exclude" or not failed:
        return column
    scores = [*column.scores, *repeat(0.0, failed)]
    if not column.cases and not column.failed_cases:
        return column._replace(scores=scores)
    placed = column.failed_cases[:failed]
    # a call of which the case is unknown stands alone, under a number that no case has
    alone = range(-1, len(placed) - failed - 1, -1)
    return column._replace(scores=scores, cases=[*cases_of(column), *placed, *alone])


def cases_of(column: Column) -> Sequence[int]:
    """The case of each score."""
    return column.cases or range(len(column.scores))


class Pairs(NamedTuple):
    """A score of the baseline and one of the candidate for each case."""

    baseline: list[float]
    candidate: list[float]


def pairs_of(paired: Paired, agent_errors: AgentErrors) -> Pairs:
    """The pairs that enter a gate's arithmetic, one for each case: its mean over what was paired.

    With ``fail``, a failed call is a 0; else its pair is left out.
    """
    from statistics import fmean  # 2 ms, for gates that compare

    cases: dict[int, Pairs] = {}
    places = paired.cases or range(len(paired.baseline))
    for before, after, case in zip(paired.baseline, paired.candidate, places, strict=True):
        if agent_errors == "fail" or (before is not None and after is not None):
            pairs = cases.setdefault(case, Pairs([], []))
            pairs.baseline.append(before or 0.0)
            pairs.candidate.append(after or 0.0)
    return Pairs(
        [fmean(pairs.baseline) for pairs in cases.values()], [fmean(pairs.candidate) for pairs in cases.values()]
    )
