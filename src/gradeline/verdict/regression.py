"""The regression gate: not worse than a stored run, on the same cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import UNSET

from gradeline.model import described, quote
from gradeline.verdict.columns import pairs_of
from gradeline.verdict.comparison import MARGIN, GraderComparison, PairedCases, compare_cases
from gradeline.verdict.gate import SHARE, Evidence, Finding, GateResult, LeafGate, Result, Share
from gradeline.verdict.simple import MetricKey, key_or_first

_RESULTS: Mapping[str, Result] = {"better": "pass", "not_worse": "pass", "worse": "fail", "undecided": "undecided"}


class RegressionGate(LeafGate, frozen=True, kw_only=True, tag="regression"):
    """Whether a grader's scores are not worse than those of a baseline run, on the same cases.

    It decides as ``gradeline compare`` does: better and not worse pass, worse fails.
    """

    metric_key: MetricKey = UNSET
    baseline: Annotated[
        str,
        described("The run to compare with: an id, a name, `latest~1`.", expected="the name of a run", min_length=1),
    ]
    margin: Annotated[Share, described("How much worse on average is still good enough.", expected=SHARE)] = MARGIN

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
            return Finding("undecided", f"{key}: {against} has no scores of the same grader to compare with")
        pairs = pairs_of(paired, evidence.settings.agent_errors)
        cases = len(pairs.baseline)
        found = compare_cases(PairedCases(("",) * cases, pairs.baseline, pairs.candidate), self.margin)
        if found.difference is None or found.difference_ci is None:
            return Finding("undecided", f"{key}: no case has a score both here and in {against}")
        low, high = found.difference_ci
        told = f"{key}: {found.difference:+.4g} against {against}, over {cases} case{'s' if cases > 1 else ''}"
        return Finding(
            _RESULTS[found.decision],
            f"{told}, 95 % {low:+.4g} to {high:+.4g}, p {found.p_value:.3g}; "
            f"not worse by more than {self.margin:g} is {_settled(found)}",
            found.difference,
            found.difference_ci,
        )


def _settled(found: GraderComparison) -> str:
    if found.decision != "undecided":
        return str(found.decision != "worse").lower()
    if found.cases_to_decide is None:
        return "open, and no number of cases would settle it: widen the margin"
    return f"open: about {found.cases_to_decide:,} cases would settle it"
