"""Thompson sampling per task family on quality minus weighted cost, within limits.

Quality is the share of requests that pass. Evidence about an arm in a family is a number of passes and fails, whole
for labels, fractional for corrected verdicts of a judge. With p passes and f fails, and m the arm's share of passes in
the other families, the belief is Beta(1 + s·m + p, 1 + s·(1 − m) + f), where s, the weight of the other families, is
at most `PolicyRules.prior_samples`.

An arm's share of a family's traffic is the probability that it has the greatest ``quality − cost_weight · cost``,
computed from a fixed number of draws. A request is then sent to an arm at random by these shares: they are its
propensities, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, sqrt
from random import Random
from typing import NamedTuple

import msgspec

from gradeline.errors import ConfigError, Problem
from gradeline.model.route import ArmState
from gradeline.stats.distributions import normal_quantile


class PolicyArm(NamedTuple):
    """Something that requests can be sent to, and the mean cost of a request in US dollars; None: unknown."""

    name: str
    cost: float | None = None


class PolicyRules(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a policy. The defaults are cautious; each can be relaxed."""

    cost_weight: float = 0.0
    """λ: how much quality one US dollar per request is worth."""
    exploration: float = 0.05
    """Maximum share of a family's requests that unproven arms get together."""
    minimum_samples: float = 30
    """Evidence that an arm needs in a family before it is proven."""
    margin: float = 0.05
    """A proven arm loses less quality than this, 95 % sure (one-sided)."""
    baseline_share: float = 0.05
    """Minimum share of the baseline in each family, which keeps its quality known."""
    prior_samples: float = 4
    """Weight of the other families in the belief about one."""
    draws: int = 512
    """Draws from the beliefs; a share is a multiple of one divided by this."""

    def check(self) -> None:
        """Raise `ConfigError` with all invalid values."""
        problems = [
            Problem(name, f"expected a number from 0 to 1, got {value!r}")
            for name in ("exploration", "margin", "baseline_share")
            if not 0.0 <= (value := getattr(self, name)) <= 1.0
        ]
        problems += [
            Problem(name, f"expected a finite number from 0, got {value!r}")
            for name in ("cost_weight", "minimum_samples", "prior_samples")
            if not 0.0 <= (value := getattr(self, name)) < inf
        ]
        if self.draws < 1:
            problems.append(Problem("draws", f"expected at least 1, got {self.draws!r}"))
        if problems:
            raise ConfigError(problems, "invalid rules")


class ArmEvidence(NamedTuple):
    """Passes and fails of an arm; fractions are corrected verdicts or old evidence of less weight."""

    passes: float = 0.0
    fails: float = 0.0

    @property
    def n(self) -> float:
        return self.passes + self.fails

    def plus(self, other: ArmEvidence) -> ArmEvidence:
        return ArmEvidence(self.passes + other.passes, self.fails + other.fails)

    def without(self, other: ArmEvidence) -> ArmEvidence:
        return ArmEvidence(max(0.0, self.passes - other.passes), max(0.0, self.fails - other.fails))

    def times(self, factor: float) -> ArmEvidence:
        return ArmEvidence(self.passes * factor, self.fails * factor)


NO_EVIDENCE = ArmEvidence()


def evidence_of(estimate: float, se: float, most: float, known: float) -> ArmEvidence:
    """A corrected rate as passes and fails: as many as would give its standard error, at most ``most``.

    ``known`` is their number where the standard error is 0, which it is by chance.
    """
    rate = min(1.0, max(0.0, estimate))
    # a rate of 0 or 1 has no variance of its own: that of one more pass and fail
    spread = (rate * known + 1.0) / (known + 2.0)
    n = known if se <= 0.0 else min(most, spread * (1.0 - spread) / (se * se))
    return ArmEvidence(rate * n, (1.0 - rate) * n)


class Belief(NamedTuple):
    """A Beta distribution of an arm's quality."""

    a: float
    b: float

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> float:
        return self.mean * (1.0 - self.mean) / (self.a + self.b + 1.0)


def belief(own: ArmEvidence, others: ArmEvidence, prior_samples: float) -> Belief:
    """What to believe of an arm in a family, given its evidence there and in all other families."""
    weight = min(prior_samples, others.n)
    mean = others.passes / others.n if others.n else 0.5
    return Belief(1.0 + weight * mean + own.passes, 1.0 + weight * (1.0 - mean) + own.fails)


class FamilyShares(NamedTuple):
    """The split of a family's traffic."""

    shares: dict[str, float]
    states: dict[str, ArmState]
    beliefs: dict[str, Belief]


def split_family(
    arms: Sequence[PolicyArm],
    baseline: str,
    own: Mapping[str, ArmEvidence],
    pooled: Mapping[str, ArmEvidence],
    rules: PolicyRules,
    random: Random,
    refused: frozenset[str] = frozenset(),
    samples: Mapping[str, float] | None = None,
) -> FamilyShares:
    """The split of one family. ``pooled`` is the evidence of all families, this one included.

    ``samples`` are the numbers of results that the evidence is from, where they differ from its weight.
    ``refused`` arms get nothing. So does an arm of unknown cost where costs count, and every arm but the baseline where
    the baseline's own cost is unknown.
    """
    beliefs = {
        arm.name: belief(
            own.get(arm.name, NO_EVIDENCE),
            pooled.get(arm.name, NO_EVIDENCE).without(own.get(arm.name, NO_EVIDENCE)),
            rules.prior_samples,
        )
        for arm in arms
    }
    unpriced = _unpriced(arms, baseline, rules)
    counted = {arm.name: own.get(arm.name, NO_EVIDENCE).n for arm in arms} if samples is None else samples
    states = {
        arm.name: arm_state(arm.name, baseline, counted, beliefs, rules, refused=arm.name in refused | unpriced)
        for arm in arms
    }
    taking_part = [arm for arm in arms if states[arm.name] not in ("worse", "refused") or arm.name == baseline]
    won = _wins(taking_part, beliefs, rules, random)
    return FamilyShares(
        _limited({arm.name: won.get(arm.name, 0.0) for arm in arms}, baseline, states, rules), states, beliefs
    )


def arm_state(
    arm: str,
    baseline: str,
    samples: Mapping[str, float],
    beliefs: Mapping[str, Belief],
    rules: PolicyRules,
    *,
    refused: bool,
) -> ArmState:
    """What is known of an arm in a family, from this number of results of each."""
    if arm == baseline:
        return "baseline"
    if refused:
        return "refused"
    gap = beliefs[arm].mean - beliefs[baseline].mean
    reach = normal_quantile(0.95) * sqrt(beliefs[arm].variance + beliefs[baseline].variance)
    if gap + reach < -rules.margin:
        return "worse"
    enough = min(samples.get(name, 0.0) for name in (arm, baseline)) >= rules.minimum_samples
    return "proven" if enough and gap - reach > -rules.margin else "unproven"


def _unpriced(arms: Sequence[PolicyArm], baseline: str, rules: PolicyRules) -> frozenset[str]:
    """Arms whose value cannot be computed; nothing can be compared with a baseline of unknown cost."""
    if rules.cost_weight <= 0:
        return frozenset()
    if any(arm.cost is None for arm in arms if arm.name == baseline):
        return frozenset(arm.name for arm in arms)
    return frozenset(arm.name for arm in arms if arm.cost is None)


def _wins(
    arms: Sequence[PolicyArm], beliefs: Mapping[str, Belief], rules: PolicyRules, random: Random
) -> dict[str, float]:
    """The share of draws in which each arm has the greatest value."""
    if len(arms) == 1:
        return {arms[0].name: 1.0}
    draw = random.betavariate
    columns = [
        [
            draw(beliefs[arm.name].a, beliefs[arm.name].b) - rules.cost_weight * (arm.cost or 0.0)
            for _ in range(rules.draws)
        ]
        for arm in arms
    ]
    counts = [0] * len(arms)
    for values in zip(*columns, strict=True):
        counts[values.index(max(values))] += 1
    return {arm.name: count / rules.draws for arm, count in zip(arms, counts, strict=True)}


def _limited(
    shares: dict[str, float], baseline: str, states: Mapping[str, ArmState], rules: PolicyRules
) -> dict[str, float]:
    """The shares within the exploration cap, and with the baseline's minimum; what is cut goes to the baseline."""
    unproven = [name for name, state in states.items() if state == "unproven"]
    explored = sum(shares[name] for name in unproven)
    if explored > rules.exploration:
        for name in unproven:
            shares[name] *= rules.exploration / explored
    moved = sum(share for name, share in shares.items() if name != baseline)
    if moved > 1.0 - rules.baseline_share:
        for name in shares:
            shares[name] *= (1.0 - rules.baseline_share) / moved
    rest = sum(share for name, share in shares.items() if name != baseline)
    return {**shares, baseline: 1.0 - rest}
