"""What a policy would have earned, from requests that another policy decided with known probabilities.

With logged propensity p_i of the chosen arm, reward r_i, and π(a|x) the share that the evaluated policy gives an arm in
the family of the request, w_i = π(a_i|x_i) / p_i, and over n requests with a reward:

- inverse propensity (IPS): mean of w_i·r_i, with its standard error
- self-normalised (SNIPS): V = Σ w_i·r_i / Σ w_i, SE² = Σ w_i²·(r_i − V)² / (Σ w_i)²
- doubly robust (DR): mean of Σ_a π(a|x_i)·q(x_i, a) + w_i·(r_i − q(x_i, a_i)), with its standard error; q is the mean
  reward of the arm in the family, shrunk to its mean over all families, and learned on the other half of the requests

All three are refused where the policy could choose an arm that had no chance in the log, and where the effective number
of requests, (Σ w_i)² / Σ w_i², is too small.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum, sqrt
from typing import NamedTuple

from gradeline.model.text import quote
from gradeline.stats.distributions import student_quantile
from gradeline.stats.intervals import Interval

MIN_EFFECTIVE = 30
"""Minimum effective number of requests."""
_SHRINKAGE = 5.0
"""Weight of an arm's mean over all families in its mean in one."""
_NAMED = 3

Policy = Callable[[str], Mapping[str, float]]
"""The share of each arm in a family."""


class LoggedReward(NamedTuple):
    """A request with the probability of every arm when it was decided, and what the chosen one earned."""

    family: str
    arm: str
    propensities: Mapping[str, float]
    reward: float


class PolicyValue(NamedTuple):
    """The value of a policy by three estimators, each with its 95 % interval."""

    ips: Interval
    snips: Interval
    doubly_robust: Interval
    requests: int
    """Requests with a reward."""
    effective: float
    """Number of requests of the evaluated policy itself that would tell as much."""


class NoSupportError(ValueError):
    """The log cannot say what the policy would earn; the message says why, and what to do."""


def evaluate_policy(logged: Iterable[LoggedReward], policy: Policy) -> PolicyValue:
    """The value of a policy per request; raises `NoSupportError`."""
    rows = list(logged)
    if not rows:
        raise NoSupportError("no logged request has an outcome; record some with: gradeline route outcomes")
    shares = {family: dict(policy(family)) for family in {row.family for row in rows}}
    _check_support(rows, shares)
    weights = [shares[row.family].get(row.arm, 0.0) / row.propensities[row.arm] for row in rows]
    total, squares = fsum(weights), fsum(weight * weight for weight in weights)
    effective = total * total / squares if squares else 0.0
    if effective < MIN_EFFECTIVE:
        raise NoSupportError(
            f"the {len(rows):,} requests with an outcome tell as much as {effective:.1f} of the policy's own, at least"
            f" {MIN_EFFECTIVE} are needed: record more outcomes, or explore more"
        )
    return PolicyValue(
        _mean([weight * row.reward for weight, row in zip(weights, rows, strict=True)]),
        _self_normalised(rows, weights, total),
        _mean(_doubly_robust(rows, weights, shares)),
        len(rows),
        effective,
    )


def _check_support(rows: Sequence[LoggedReward], shares: Mapping[str, Mapping[str, float]]) -> None:
    unsupported: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        for arm, share in shares[row.family].items():
            if share > 0.0 and row.propensities.get(arm, 0.0) <= 0.0:
                unsupported[row.family, arm] += 1
    if unsupported:
        worst = sorted(unsupported.items(), key=lambda one: (-one[1], one[0]))[:_NAMED]
        named = ", ".join(f"{quote(arm)} in family {quote(family)} ({n:,} requests)" for (family, arm), n in worst)
        more = f" and {len(unsupported) - _NAMED} more" if len(unsupported) > _NAMED else ""
        raise NoSupportError(
            f"the policy chooses arms that had no chance when requests were decided: {named}{more}; only a log with"
            " exploration can say what they earn"
        )


def _self_normalised(rows: Sequence[LoggedReward], weights: Sequence[float], total: float) -> Interval:
    value = fsum(weight * row.reward for weight, row in zip(weights, rows, strict=True)) / total
    squares = fsum((weight * (row.reward - value)) ** 2 for weight, row in zip(weights, rows, strict=True))
    return _interval(value, sqrt(squares) / total, len(rows))


def _doubly_robust(
    rows: Sequence[LoggedReward], weights: Sequence[float], shares: Mapping[str, Mapping[str, float]]
) -> list[float]:
    models = [_RewardModel(rows[other::2]) for other in (1, 0)]
    values = []
    for place, (row, weight) in enumerate(zip(rows, weights, strict=True)):
        model = models[place % 2]
        direct = fsum(share * model.reward(row.family, arm) for arm, share in shares[row.family].items())
        values.append(direct + weight * (row.reward - model.reward(row.family, row.arm)))
    return values


class _RewardModel:
    """The mean reward of each arm in each family, shrunk to the arm's mean over all families."""

    def __init__(self, rows: Sequence[LoggedReward]) -> None:
        self._sums: defaultdict[tuple[str | None, str | None], tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        for row in rows:
            for key in ((row.family, row.arm), (None, row.arm), (None, None)):
                n, total = self._sums[key]
                self._sums[key] = n + 1, total + row.reward

    def reward(self, family: str, arm: str) -> float:
        n, total = self._sums[None, None]
        expected = total / n if n else 0.0
        for key in ((None, arm), (family, arm)):
            n, total = self._sums.get(key, (0, 0.0))
            expected = (total + _SHRINKAGE * expected) / (n + _SHRINKAGE)
        return expected


def _mean(values: Sequence[float]) -> Interval:
    n = len(values)
    mean = fsum(values) / n
    variance = fsum((value - mean) ** 2 for value in values) / (n - 1) if n > 1 else 0.0
    return _interval(mean, sqrt(variance / n), n)


def _interval(estimate: float, se: float, n: int) -> Interval:
    reach = student_quantile(0.975, max(1, n - 1)) * se
    return Interval(estimate - reach, estimate + reach, estimate=estimate, se=se, n=n)
