"""Several tries at one case: best of k, all of k, and how steady it is."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that one of k tries passes, from c passes in n tries."""
    _check(n, c, k)
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The chance that all of k tries pass, from c passes in n tries."""
    _check(n, c, k)
    return comb(c, k) / comb(n, k)


def flakiness(passes: Sequence[bool]) -> float:
    """How far a case is from always doing the same: 0.0 steady, 1.0 a coin."""
    if not passes:
        raise ValueError("no tries: there is nothing to tell")
    share = sum(passes) / len(passes)
    return 4.0 * share * (1.0 - share)


def _check(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n:
        raise ValueError(f"c passes of n tries need 0 <= c <= n, got c={c!r}, n={n!r}")
    if not 1 <= k <= n:
        raise ValueError(f"k of n tries need 1 <= k <= n, got k={k!r}, n={n!r}: with fewer than k tries it is unknown")
