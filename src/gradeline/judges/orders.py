"""Two answers compared in both orders, made into one verdict.

A judge that is shown the same pair twice, each answer once in front, tells its preference apart from its liking
for a place. Where both orders name the same winner, the mean difference of the scores counts; where they do not, the
order decided and not the answers: there is no score.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Winner = Literal["candidate", "baseline", "tie"]
Position = Literal["first", "second"]

TIE = 0.5
"""The score of a tie, and the least score that passes: not worse."""
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
    def score(self) -> float | None:
        """From 0, where the baseline is all that is better, over 0.5 for a tie, to 1.

        None where the order decided, or where an order has no verdict.
        """
        return None if self.flipped or self.candidate_first is None else (1 + self.difference) / 2

    @property
    def passed(self) -> bool | None:
        """Whether the candidate is not worse; None without a score."""
        return None if self.score is None else self.score >= TIE - _TINY

    @property
    def winner(self) -> Winner:
        return winner_of(self.difference)

    @property
    def flipped(self) -> bool:
        """Whether the two verdicts are not the same."""
        first, second = (
            None if difference is None else winner_of(difference)
            for difference in (self.candidate_first, self.candidate_second)
        )
        return first != second

    @property
    def favoured(self) -> Position | None:
        """The position that decided: of the answer that was shown first, or second. None where neither did."""
        if self.candidate_first is None or self.candidate_second is None or not self.flipped:
            return None
        return "first" if self.candidate_first > self.candidate_second else "second"


def winner_of(difference: float) -> Winner:
    """Whom a difference of scores speaks for."""
    if abs(difference) < _TINY:
        return "tie"
    return "candidate" if difference > 0 else "baseline"
