"""The regression gate: not worse than a stored run, on the same cases."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Annotated

from msgspec import UNSET

from gradeline.model import described, quote
from gradeline.stats import Interval, cases_to_decide, mcnemar, paired_difference, sign_flip_test
from gradeline.verdict.columns import pairs_of
from gradeline.verdict.comparing import SLACK
from gradeline.verdict.gate import SHARE, Evidence, Finding, GateResult, LeafGate, Result, Share
from gradeline.verdict.simple import MetricKey, key_or_first

_ALPHA = 0.05
_FEWEST_CHANGES = 6
"""So many cases that all got worse are no chance any more: 2 / 2**6 is below 0.05, 2 / 2**5 is not."""
_MANY_CHANGES = 200
"""From here on the interval is as good as the test, and the test takes its time."""


class RegressionGate(LeafGate, frozen=True, kw_only=True, tag="regression"):
    """Whether a grader's scores are not worse than those of a baseline run, on the same cases.

    It passes when the whole 95 % interval of the paired difference lies at -margin or above. It fails when it
    lies wholly below and an exact test agrees that cases got worse. In between it is undecided.
    """

    metric_key: MetricKey = UNSET
    baseline: Annotated[
        str,
        described("The run to compare with: an id, a name, `latest~1`.", expected="the name of a run", min_length=1),
    ]
    margin: Annotated[Share, described("How much worse on average is still good enough.", expected=SHARE)] = 0.0

    def looks_at(self, graders: Sequence[str]) -> tuple[str, ...]:
        return key_or_first(self.metric_key, graders)

    def baselines(self) -> tuple[str, ...]:
        return (self.baseline,)

    def outline(self, keys: Sequence[str]) -> GateResult:
        return GateResult(
            kind=self.kind,
            metric_key=next(iter(keys), None),
            aggregation="difference",
            op="gte",
            value=-self.margin if self.margin else 0.0,
        )

    def measure(self, evidence: Evidence) -> Finding:
        (key,) = evidence.columns
        paired = evidence.paired.get((self.baseline, key))
        against = f"run {quote(self.baseline)}"
        if paired is None:
            return Finding("undecided", f"{key}: there is no {against} with its scores to compare with")
        pairs = pairs_of(paired, evidence.settings.agent_errors)
        cases = len(pairs.baseline)
        if not cases:
            return Finding("undecided", f"{key}: no case has a score both here and in {against}")
        interval = paired_difference(pairs.candidate, pairs.baseline)
        differences = [after - before for before, after in zip(*pairs, strict=True)]
        changes = [each for each in differences if abs(each) > SLACK]
        seen = f"{key}: {interval.estimate:+.4g} against {against}, over {cases} case{'s' if cases > 1 else ''}"
        if interval.se is None:
            return Finding("undecided", f"{seen}: one case says nothing of the others", interval.estimate)
        result = self._result(interval, changes)
        told = str(result == "pass").lower() if result != "undecided" else self._open(interval, cases, changes)
        return Finding(
            result,
            f"{seen}, 95 % {interval.low:+.4g} to {interval.high:+.4g}; "
            f"not worse by more than {self.margin:g} is {told}",
            interval.estimate,
            (interval.low, interval.high),
        )

    def _result(self, interval: Interval, changes: Sequence[float]) -> Result:
        if interval.low >= -self.margin - SLACK:
            return "pass"
        return "fail" if interval.high < -self.margin - SLACK and _significant(changes) else "undecided"

    def _open(self, interval: Interval, cases: int, changes: Sequence[float]) -> str:
        distance = interval.estimate + self.margin
        variance = (interval.se or 0.0) ** 2 * cases
        wanted = cases_to_decide(distance if abs(distance) > SLACK else 0.0, variance)
        if wanted is None:
            return "open, and no number of cases settles a difference on the very margin: widen it"
        if interval.high < -self.margin:
            wanted = max(wanted, ceil(cases * _FEWEST_CHANGES / max(1, len(changes))))
        return f"open: about {max(wanted, cases + 1):,} cases would settle it"


def _significant(changes: Sequence[float]) -> bool:
    """Whether cases got worse more often than by chance: the interval alone is too sure of a few changes."""
    if len({round(abs(each), 9) for each in changes}) == 1:
        worse = sum(each < 0.0 for each in changes)
        return mcnemar(worse, len(changes) - worse).exact <= _ALPHA
    return len(changes) > _MANY_CHANGES or sign_flip_test(changes) <= _ALPHA
