"""Results of a simulation: figures, each with its limit."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple


class Row(NamedTuple):
    """A figure, its limit, and whether it is within the limit."""

    name: str
    figure: float
    limit: float
    holds: bool


def at_most(name: str, figure: float, limit: float, slack: float = 0.0) -> Row:
    return Row(name, figure, limit, figure <= limit + slack)


def at_least(name: str, figure: float, limit: float, slack: float = 0.0) -> Row:
    return Row(name, figure, limit, figure >= limit - slack)


def monte_carlo_error(share: float, draws: int) -> float:
    """Three standard errors of a share found in this number of draws."""
    return 3.0 * sqrt(share * (1.0 - share) / draws)
