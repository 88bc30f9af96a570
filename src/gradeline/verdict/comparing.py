"""Comparing a number with a bound, and saying so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import eq, ge, gt, le, lt
from typing import Literal

Operator = Literal["gt", "gte", "lt", "lte", "eq"]

SLACK = 1e-9
"""A computed number may miss a bound by this much: (0.7 + 0.8 + 0.9) / 3 falls short of 0.8 in its last bit."""

_COMPARE: Mapping[Operator, Callable[[float, float], bool]] = {"gt": gt, "gte": ge, "lt": lt, "lte": le, "eq": eq}
SIGNS: Mapping[Operator, str] = {"gt": ">", "gte": "≥", "lt": "<", "lte": "≤", "eq": "="}


def holds(op: Operator, found: float, bound: float, slack: float = SLACK) -> bool:
    """Whether ``found op bound``. What a grader itself said is compared without slack."""
    if op == "eq":
        return abs(found - bound) <= slack
    return _COMPARE[op](found, bound - slack if op in ("gte", "lt") else bound + slack)


def fraction(value: float) -> float:
    """A bound on a share: up to 1 a fraction, above it a percentage."""
    return value / 100.0 if value > 1.0 else value


def statement(op: Operator, found: float, bound: float) -> str:
    """``0.625 ≥ 0.8 is false``, with as many digits as tell the two numbers apart."""
    digits = 4
    while abs(found - bound) > SLACK and f"{found:.{digits}g}" == f"{bound:g}" and digits < 16:
        digits += 2
    return f"{found:.{digits}g} {SIGNS[op]} {bound:g} is {'true' if holds(op, found, bound) else 'false'}"
