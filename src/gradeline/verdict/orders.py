"""Whether a judge prefers a position: the cases in which the order of two answers decided, by a sign test.

A judge without a preference for a position favours the answer shown first as often as the one shown second.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gradeline.stats import mcnemar

LEAST_FLIPS = 8
"""Fewer cannot tell a preference from chance: of 7, all to one side have a p of 0.016."""
ALPHA = 0.01

OrderVerdict = Literal["position_biased", "not_flagged", "not_enough_flips"]


class OrderFinding(msgspec.Struct, frozen=True):
    """What both orders of a pairwise judge say about the judge."""

    decided: int
    """Cases whose two orders name different winners, and which have no score for it."""
    of: int
    """Cases with a verdict in both orders."""
    first: int
    """Of those decided, the ones in favour of the answer shown first."""
    second: int
    p: float | None
    """Of the two-sided exact sign test; None where nothing was decided by the order."""
    verdict: OrderVerdict
    sentence: str


def order_finding(first: int, second: int, scored: int) -> OrderFinding:
    """The finding on a judge whose orders agreed in ``scored`` cases."""
    decided = first + second
    p = mcnemar(first, second).exact if decided else None
    verdict: OrderVerdict = "not_enough_flips"
    if p is not None and decided >= LEAST_FLIPS:
        verdict = "position_biased" if p < ALPHA else "not_flagged"
    told = f"order decided {decided} of {decided + scored}"
    if p is not None:
        told += f" (shown first {first}, second {second}; p {_short(p)})"
    return OrderFinding(decided, decided + scored, first, second, p, verdict, told + _ENDINGS[verdict])


_ENDINGS: dict[OrderVerdict, str] = {
    "position_biased": ": the judge is position biased",
    "not_flagged": "",
    "not_enough_flips": ": not enough flips to tell",
}


def _short(p: float) -> str:
    """``0.29``, ``0.0042``, ``2e-6``."""
    if p >= 0.0001:
        return f"{p:.2g}"
    mantissa, _, exponent = f"{p:.0e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
