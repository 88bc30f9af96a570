"""Two answers compared in both orders, made into one verdict.

A judge that is shown the same pair twice, each answer once in front, tells its preference apart from its liking
for a place. What is put together are the differences of the scores: to decide first and vote afterwards throws
most of what was said away.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Winner = Literal["candidate", "baseline", "tie"]

_TINY = 1e-9
"""Differences of decimal scores miss 0 by less."""


class BothOrders(NamedTuple):
    """By how much the candidate was preferred, from -1 to 1: shown first, and shown second.

    None is an order without a verdict: it prefers nobody, and agrees with no verdict.
    """

    candidate_first: float | None
    candidate_second: float | None

    @property
    def difference(self) -> float:
        """The mean over both orders."""
        return ((self.candidate_first or 0.0) + (self.candidate_second or 0.0)) / 2

    @property
    def score(self) -> float:
        """From 0, where the baseline is all that is better, over 0.5 for a tie, to 1."""
        return (1 + self.difference) / 2

    @property
    def winner(self) -> Winner:
        return winner_of(self.difference)

    @property
    def flipped(self) -> bool:
        """Whether the order decided: the two verdicts are not the same."""
        first, second = (
            None if difference is None else winner_of(difference)
            for difference in (self.candidate_first, self.candidate_second)
        )
        return first != second


def winner_of(difference: float) -> Winner:
    """Whom a difference of scores speaks for."""
    if abs(difference) < _TINY:
        return "tie"
    return "candidate" if difference > 0 else "baseline"
