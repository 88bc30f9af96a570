"""`Router`: decide which arm gets a request, and learn from what came of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple
from uuid import uuid4

from gradeline.errors import ConfigError, Problem, UnknownNameError
from gradeline.model.observation import CalibrationState
from gradeline.model.route import RouteChoice, RouteGate
from gradeline.model.text import quote
from gradeline.stats.prediction_powered import rogan_gladen
from gradeline.trust.policy import (
    NO_EVIDENCE,
    ArmEvidence,
    FamilyShares,
    PolicyArm,
    PolicyRules,
    evidence_of,
    split_family,
)

_REFRESH = 20
"""The split of a family is computed again once its evidence has grown by one part in this many."""


class JudgeRates(NamedTuple):
    """How often a judge is right about the answers of one arm, by labels of that arm."""

    sensitivity: float
    positives: int
    """Labels "pass", from which the sensitivity is known."""
    specificity: float
    negatives: int


@dataclass(frozen=True, slots=True)
class RouteJudge:
    """The judge whose verdicts a router may use, and what is known of it."""

    state: CalibrationState = "uncalibrated"
    rates: Mapping[str, JudgeRates] | None = None
    """By arm: an arm that is missing cannot be corrected, so verdicts on its answers do not count."""
    reason: str = ""
    """Why the state is what it is."""


@dataclass(slots=True)
class _ArmCounts:
    """What was observed of an arm in a family."""

    labels: ArmEvidence = NO_EVIDENCE
    given: ArmEvidence = NO_EVIDENCE
    """Evidence from elsewhere."""
    judged_pass: int = 0
    judged_fail: int = 0
    missing: int = 0
    total: ArmEvidence = NO_EVIDENCE
    """All that counts."""


class Router:
    """Sends requests to the arm with the best quality minus cost, per task family, and to the baseline when in doubt.

    ``arms`` are names, or names with the mean cost of a request in US dollars. Labels (`observe`) count at once. A
    judge's verdicts (`observe_judged`) count only if ``judge`` is calibrated and its error rates on the arm are known;
    they are corrected by these. `gates` says what keeps verdicts from counting.

    Not thread-safe. The same seed and the same calls give the same decisions, except for their ids.
    """

    def __init__(
        self,
        arms: Mapping[str, float | None] | Sequence[str],
        baseline: str,
        *,
        rules: PolicyRules | None = None,
        judge: RouteJudge | None = None,
        evidence: Mapping[tuple[str, str], ArmEvidence] | None = None,
        seed: int | None = None,
    ) -> None:
        """``evidence`` is what is known already, by family and arm."""
        named = arms if isinstance(arms, Mapping) else dict.fromkeys(arms)
        if baseline not in named:
            raise ConfigError(Problem("baseline", f"{quote(baseline)} is not one of the arms {', '.join(named)}"))
        if len(named) < 2:
            raise ConfigError(
                Problem("arms", f"expected the baseline and at least one candidate, got {len(named)} arm")
            )
        self.rules = rules or PolicyRules()
        self.rules.check()
        self.baseline = baseline
        self.judge = judge or RouteJudge()
        self._untrusted = judge is not None and judge.state != "calibrated"
        self._arms = [PolicyArm(name, cost) for name, cost in named.items()]
        self._random = Random(seed)  # noqa: S311 - decisions must be repeatable
        self._counts: defaultdict[str, dict[str, _ArmCounts]] = defaultdict(
            lambda: {arm.name: _ArmCounts() for arm in self._arms}
        )
        self._pooled: dict[str, ArmEvidence] = {}
        self._judged = set[str]()
        self._splits: dict[str, tuple[float, frozenset[str], FamilyShares]] = {}
        for (family, arm), known in (evidence or {}).items():
            cell = self._cell(family, arm)
            cell.given = known
            self._count(cell, arm)

    def decide(self, family: str = "") -> RouteChoice:
        """Choose the arm of a request of this family. Its propensity is the exact probability of that arm."""
        return draw_choice(self.split(family).shares, self.baseline, family, self._random)

    def split(self, family: str = "") -> FamilyShares:
        """The current split of a family's traffic."""
        cells = self._counts[family]
        seen, refused = sum(cell.total.n for cell in cells.values()), self._refused()
        before = self._splits.get(family)
        if before is not None and seen < before[0] * (1.0 + 1.0 / _REFRESH) + 1.0 and refused == before[1]:
            return before[2]
        own = {name: cell.total for name, cell in cells.items()}
        made = split_family(self._arms, self.baseline, own, self._pooled, self.rules, self._random, refused)
        self._splits[family] = (seen, refused, made)
        return made

    def observe(self, family: str, arm: str, passed: bool) -> None:
        """Record a person's verdict, or another certain one, on the arm's answer to a request."""
        cell = self._cell(family, arm)
        cell.labels = cell.labels.plus(ArmEvidence(float(passed), float(not passed)))
        self._count(cell, arm)

    def observe_judged(self, family: str, arm: str, passed: bool | None) -> None:
        """Record the judge's verdict on the arm's answer; None is no verdict, which is counted, but never as a fail."""
        cell = self._cell(family, arm)
        if passed is None:
            cell.missing += 1
        elif passed:
            cell.judged_pass += 1
        else:
            cell.judged_fail += 1
        self._count(cell, arm)

    def gates(self) -> list[RouteGate]:
        """What verdicts of the judge must satisfy, and whether they do."""
        found = [_calibration_gate(self.judge)]
        found += [_arm_gate(self.judge, arm.name) for arm in self._arms]
        if self.rules.cost_weight > 0:
            found += [_cost_gate(arm) for arm in self._arms]
        return found

    def _cell(self, family: str, arm: str) -> _ArmCounts:
        cells = self._counts[family]
        if arm not in cells:
            raise UnknownNameError("arm", arm, cells)
        return cells[arm]

    def _evidence(self, cell: _ArmCounts, arm: str) -> ArmEvidence:
        known = cell.labels.plus(cell.given)
        n = cell.judged_pass + cell.judged_fail
        rates = (self.judge.rates or {}).get(arm)
        if not n or self.judge.state != "calibrated" or rates is None:
            return known
        try:
            corrected = rogan_gladen(cell.judged_pass, n, *rates)
        except ValueError:
            return known
        return known.plus(evidence_of(corrected.estimate, corrected.se, n, n))

    def _count(self, cell: _ArmCounts, arm: str) -> None:
        """Update what counts of a cell, and of its arm in all families."""
        before, cell.total = cell.total, self._evidence(cell, arm)
        self._pooled[arm] = self._pooled.get(arm, NO_EVIDENCE).without(before).plus(cell.total)
        if cell.judged_pass + cell.judged_fail + cell.missing:
            self._judged.add(arm)

    def _refused(self) -> frozenset[str]:
        """Arms of which nothing is known but verdicts that do not count get no traffic, not even to explore."""
        return frozenset(
            arm.name
            for arm in self._arms
            if arm.name != self.baseline
            and (self._untrusted or arm.name in self._judged)
            and not self._pooled.get(arm.name, NO_EVIDENCE).n
        )


def draw_choice(
    shares: Mapping[str, float], baseline: str, family: str, random: Random, table: int = 0, reason: str = ""
) -> RouteChoice:
    """Choose an arm at random by these shares."""
    point, reached = random.random(), 0.0
    arm = baseline
    for name, share in shares.items():
        reached += share
        if point < reached:
            arm = name
            break
    return RouteChoice(uuid4().hex, family, arm, dict(shares), table, reason)


def _calibration_gate(judge: RouteJudge) -> RouteGate:
    passed = judge.state == "calibrated"
    detail = f"the judge is {judge.state}" + (f": {judge.reason}" if judge.reason else "")
    return RouteGate(name="calibrated", passed=passed, detail=detail)


def _arm_gate(judge: RouteJudge, arm: str) -> RouteGate:
    rates = (judge.rates or {}).get(arm)
    if rates is None:
        detail = f"the judge's errors on answers of {quote(arm)} are unknown: label some of them"
        return RouteGate(name="per-arm errors", passed=False, detail=detail, arm=arm)
    detail = (
        f"sensitivity {rates.sensitivity:.2f} ({rates.positives} labels), specificity {rates.specificity:.2f}"
        f" ({rates.negatives} labels)"
    )
    worth = rates.sensitivity + rates.specificity - 1.0
    if worth < 0.1:
        detail += ": too close to chance to be corrected"
    return RouteGate(name="per-arm errors", passed=worth >= 0.1, detail=detail, arm=arm)


def _cost_gate(arm: PolicyArm) -> RouteGate:
    known = arm.cost is not None
    detail = f"{arm.cost:.6g} US dollars per request" if arm.cost is not None else "the cost of a request is unknown"
    return RouteGate(name="cost", passed=known, detail=detail, arm=arm.name)
