"""Early stopping: a run ends before all its cases are called when they already decide its regression gates.

At each of 20 interim looks every watched grader has an interval that is valid together with those of all other looks
(`gradeline.stats.sequential`). The run ends when the primary graders of every gate are better or not worse, or when one
watched grader is worse.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gradeline.stats.paired import ALPHA, score_change
from gradeline.stats.sequential import DifferenceSums, RepeatedInterval, look_sizes
from gradeline.verdict.evidence import NO_NOISE, Clustering, RepeatScores, case_score
from gradeline.verdict.gate import GateSettings
from gradeline.verdict.gates import Gate, LogicalGate, RegressionGate
from gradeline.verdict.paired_decision import ComparisonRule, Decision, decide_difference, hides_loss, primary_decision
from gradeline.verdict.score_gates import ConsistencyGate

MIN_CASES = 100
"""Minimum number of cases in common with the baseline."""
MAX_MISSING = 0.05
"""Maximum share of cases without a score at a look that decides."""


NEEDS_LABELS = "a gate on corrected values needs labels, which a run has only when it is complete"


class WatchedGate(NamedTuple):
    """A regression gate with the graders that it compares, those that decide it, and the rule."""

    keys: tuple[str, ...]
    primary: tuple[str, ...]
    rule: ComparisonRule
    baseline: str


class LookResult(NamedTuple):
    """The decision and the intervals at one look."""

    look: int
    n: int
    of: int
    decision: Decision
    primary: str
    """The grader to show first."""
    graders: Mapping[str, RepeatedInterval]
    obstacle: str | None = None
    """Why the look decides nothing regardless of the intervals."""

    @property
    def stops(self) -> bool:
        return self.decision != "undecided" and self.n < self.of


def enables_early_stopping(gate: Gate | None) -> bool:
    """Whether a gate enables early stopping."""
    if isinstance(gate, LogicalGate):
        return any(map(enables_early_stopping, gate.conditions))
    return isinstance(gate, RegressionGate) and gate.stop_early


def watched_gates(gate: Gate, settings: GateSettings, graders: Sequence[str]) -> Iterator[WatchedGate]:
    """The regression gates within a gate, with their effective settings."""
    settings = gate.effective_settings(settings)
    if isinstance(gate, LogicalGate):
        for condition in gate.conditions:
            yield from watched_gates(condition, settings, graders)
    elif isinstance(gate, RegressionGate):
        keys = gate.grader_keys(graders)
        rule = ComparisonRule(gate.margin, settings.coverage_floor, settings.agent_errors)
        yield WatchedGate(keys, gate.deciding_graders(keys, settings.primary), rule, gate.baseline)


def obstacles(gate: Gate) -> Iterator[str]:
    """Reasons why a gate can only be decided with all cases."""
    if gate.corrected is True:
        yield NEEDS_LABELS
    if isinstance(gate, LogicalGate):
        if gate.operator == "or" and gate.baselines():
            yield "the gate needs only one of several conditions"
        for condition in gate.conditions:
            yield from obstacles(condition)
    elif isinstance(gate, ConsistencyGate):
        yield "a consistency gate needs all cases"


class StoppingRule:
    """Takes the scores case by case, in the order of the run, and returns a result at each look."""

    def __init__(self, gates: Sequence[WatchedGate], cases: int, noise: Mapping[str, float] = NO_NOISE) -> None:
        """``cases`` is the number of common cases of the two runs; changes below a grader's ``noise`` count as same."""
        self.keys = tuple(dict.fromkeys(key for gate in gates for key in gate.keys))
        """The watched graders, in the order of their scores."""
        self._gates = [_GateLooks(gate, self.keys, noise) for gate in gates]
        self.alpha = ALPHA / max(1, len(self.keys))
        self._cases = cases
        self._sizes = look_sizes(cases)
        self._look = 0
        self._done = 0

    def add(
        self,
        baseline: Sequence[RepeatScores | None],
        candidate: Sequence[RepeatScores | None],
        cluster: Hashable | None = None,
    ) -> LookResult | None:
        """Add a case: for each of ``keys`` its repeats in the baseline and in the run, None for a grader that does not
        apply to it. None between two looks."""
        self._done += 1
        for gate in self._gates:
            gate.add(baseline, candidate, cluster)
        if self._done != self._sizes[self._look]:
            return None
        self._look += 1
        found = [gate.at(self._look, self._done, self.alpha) for gate in self._gates]
        graders = {key: interval for one in reversed(found) for key, interval in one.graders.items()}
        primary = self._gates[0].gate.primary[0]
        obstacle = next((one.obstacle for one in found if one.obstacle is not None), None)
        order: tuple[Decision, ...] = ("worse", "undecided", "not_worse", "better")
        decisions = {one.decision for one in found}
        decision: Decision = next((one for one in order if one in decisions), "undecided")
        decision = "undecided" if obstacle else decision
        return LookResult(self._look, self._done, self._cases, decision, primary, graders, obstacle)


class _GateLook(NamedTuple):
    decision: Decision
    graders: dict[str, RepeatedInterval]
    obstacle: str | None


class _GateLooks:
    """The differences of one gate so far."""

    def __init__(self, gate: WatchedGate, keys: Sequence[str], noise: Mapping[str, float]) -> None:
        self.gate = gate
        self._differences = {key: DifferenceSums() for key in gate.keys}
        self._noise = {key: noise.get(key, 0.0) for key in gate.keys}
        self._of_means = dict.fromkeys(gate.keys, 0.0)
        """The sums of all changes of graders with a noise threshold, including those that count as same."""
        self._left_out = dict.fromkeys(gate.keys, 0)
        """The number of cases to which a grader does not apply."""
        self._columns = [(key, keys.index(key), self._noise[key], one) for key, one in self._differences.items()]

    def add(
        self,
        baseline: Sequence[RepeatScores | None],
        candidate: Sequence[RepeatScores | None],
        cluster: Hashable | None,
    ) -> None:
        errors = self.gate.rule.agent_errors
        for key, column, noise, differences in self._columns:
            first, second = baseline[column], candidate[column]
            if first is None or second is None:
                self._left_out[key] += 1
                continue
            before, after = case_score(first, errors), case_score(second, errors)
            if before is not None and after is not None:
                if noise:
                    self._of_means[key] += after - before
                differences.add(0.0 if before == after else score_change(before, after, noise), cluster)

    def at(self, look: int, cases: int, alpha: float) -> _GateLook:
        floor = max(1.0 - MAX_MISSING, self.gate.rule.coverage_floor)
        applicable = {key: cases - left_out for key, left_out in self._left_out.items()}
        thin = [key for key, one in self._differences.items() if one.cases < (floor - 1e-12) * applicable[key]]
        graders = {key: one.at(look, alpha) for key, one in self._differences.items() if one.cases}
        for key, one in self._differences.items():
            if shortage := Clustering(one.cases, one.units).shortage:
                return _GateLook("undecided", graders, f"{key}: {shortage}")
        if thin:
            key = thin[0]
            scored = self._differences[key].cases
            return _GateLook(
                "undecided", graders, f"{key}: only {scored:,} of {applicable[key]:,} cases have a score in both runs"
            )
        decisions = {key: self._decision(key, one) for key, one in graders.items()}
        worse = "worse" in decisions.values()
        return _GateLook("worse" if worse else primary_decision(decisions, self.gate.primary), graders, None)

    def _decision(self, key: str, found: RepeatedInterval) -> Decision:
        low, high = found.interval
        margin = self.gate.rule.margin
        p = 0.0 if low > 0.0 or high < 0.0 else 1.0  # computing p itself is slow
        decision = decide_difference(found.mean, found.interval, p, margin)
        hidden = hides_loss(decision, self._of_means[key] / found.cases, self._noise[key], margin)
        return "undecided" if hidden else decision
