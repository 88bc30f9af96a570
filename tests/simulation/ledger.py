"""How often the ledger's interval contains the truth if the same cases are observed night after night."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from random import Random
from typing import NamedTuple

from gradeline.ledger import Observation, QualityLedger
from gradeline.store import InMemoryStorage

CASES, NIGHTS = 50, 30
COVERAGE = 0.93

Case = Callable[[Random], Callable[[], float]]
"""Draws a case, and gives what scores it each night."""


class Figure(NamedTuple):
    """A share of draws, and its limit."""

    name: str
    figure: float
    limit: float
    holds: bool


def figures(full: bool = False) -> list[Figure]:
    draws = 2_000 if full else 40
    slack = 0.0 if full else 3.0 * sqrt(COVERAGE * (1 - COVERAGE) / draws)
    found = []
    for name, truth, case in (("steady", 0.7, steady), ("noisy", 2 / 3, noisy)):
        share = coverage(draws, 20261118, truth, case)
        found.append(
            Figure(f"ledger: {CASES} {name} cases, {NIGHTS} nights", share, COVERAGE, share >= COVERAGE - slack)
        )
    return found


def coverage(draws: int, seed: int, truth: float, case: Case, nights: int = NIGHTS) -> float:
    """The share of ledgers whose interval contains the population mean over cases."""
    chance = Random(seed)
    covered = 0
    for _ in range(draws):
        ledger = QualityLedger(store := InMemoryStorage())
        scorers = [case(chance) for _ in range(CASES)]
        store.put_observations(
            [observed(key, night, score()) for night in range(nights) for key, score in enumerate(scorers)]
        )
        (row,) = ledger.query()
        assert row.n == CASES
        assert row.interval is not None
        covered += row.interval.low <= truth <= row.interval.high
    return covered / draws


def steady(chance: Random) -> Callable[[], float]:
    """Passes every night, or none; 7 of 10 pass."""
    score = float(chance.random() < 0.7)
    return lambda: score


def noisy(chance: Random) -> Callable[[], float]:
    """Passes some nights, each case as often as it is easy; 2 of 3 do."""
    share = chance.betavariate(2.0, 1.0)
    return lambda: float(chance.random() < share)


def observed(case: int, night: int, score: float) -> Observation:
    return Observation(
        task_family="f",
        baseline_adapter="large",
        candidate_adapter="small",
        grader_id="judge",
        grader_fingerprint="f1",
        score=score,
        baseline_digest="",
        candidate_digest="",
        observed_at="2026-01-15T10:00:00.000000Z",
        idempotency_key=f"{night}/{case}",
        case_key=str(case),
    )
