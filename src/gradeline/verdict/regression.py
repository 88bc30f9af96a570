"""The regression gate: not worse than a stored run, on the same cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import UNSET, UnsetType

from gradeline.model import described, quote
from gradeline.verdict.comparison import (
    MARGIN,
    ComparisonRule,
    GraderComparison,
    adjusted,
    compare_cases,
    overall_decision,
    vetoes,
)
from gradeline.verdict.gate import SHARE, Evidence, Finding, GateResult, LeafGate, Result, Share

_RESULTS: Mapping[str, Result] = {"better": "pass", "not_worse": "pass", "worse": "fail", "undecided": "undecided"}


class RegressionGate(LeafGate, frozen=True, kw_only=True, tag="regression"):
    """Whether scores are not worse than those of a baseline run, on the same cases.

    It decides as ``gradeline compare`` does: better and not worse pass, worse fails. Without a ``metric_key`` it
    compares every grader.
    """

    metric_key: Annotated[
        str | UnsetType,
        described(
            "The only grader it compares. By default all: the primary graders decide, any other can fail it by a"
            " significant loss.",
            expected="the name of a grader",
        ),
    ] = UNSET
    baseline: Annotated[
        str,
        described("The run to compare with: an id, a name, `latest~1`.", expected="the name of a run", min_length=1),
    ]
    margin: Annotated[Share, described("How much worse on average is still good enough.", expected=SHARE)] = MARGIN

    stop_early: Annotated[
        bool,
        described(
            "Whether the run ends as soon as its cases so far decide this gate. Cases are then asked in random order."
        ),
    ] = False

    def looks_at(self, graders: Sequence[str]) -> tuple[str, ...]:
        return tuple(graders) if self.metric_key is UNSET else (self.metric_key,)

    def primary(self, graders: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002 - without a key it has none of its own
        return () if self.metric_key is UNSET else (self.metric_key,)

    def deciding(self, keys: Sequence[str], primary: Sequence[str]) -> tuple[str, ...]:
        """The graders that decide it, of those that it compares: the suite's ``primary`` ones, else the first."""
        return tuple(key for key in primary if key in keys) or tuple(keys[:1])

    def baselines(self) -> tuple[str, ...]:
        return (self.baseline,)

    def outline(self, keys: Sequence[str]) -> GateResult:
        return GateResult(
            kind=self.kind,
            metric_key=keys[0] if len(keys) == 1 else None,
            aggregation="difference",
            op="gte",
            value=-self.margin if self.margin else 0.0,
        )

    def measure(self, evidence: Evidence) -> Finding:
        against, settings = f"run {quote(self.baseline)}", evidence.settings
        rule = ComparisonRule(self.margin, settings.coverage_floor, settings.agent_errors)
        keys = tuple(evidence.columns)
        paired = {key: evidence.paired.get((self.baseline, key)) for key in keys}
        found = adjusted({key: compare_cases(pair, rule) for key, pair in paired.items() if pair is not None})
        primary = self.deciding(keys, settings.primary)
        order = [*primary, *(key for key in keys if key not in primary)]
        reasons = [self._reason(key, found.get(key), against, key in primary) for key in order]
        decision = overall_decision(found, primary)
        shown = found.get(primary[0])
        return Finding(
            _RESULTS[decision],
            reasons[0],
            None if shown is None else shown.difference,
            None if shown is None else shown.difference_ci,
            tuple(reasons[1:]),
        )

    def _reason(self, key: str, found: GraderComparison | None, against: str, primary: bool) -> str:
        if found is None:
            return f"{key}: {against} has no scores of the same grader to compare with"
        if found.difference is None or found.difference_ci is None:
            return f"{key}: no case has a score both here and in {against}"
        low, high = found.difference_ci
        compared = (
            f"{key}: {found.difference:+.4g} against {against}, over {found.compared},"
            f" 95 % {low:+.4g} to {high:+.4g}, p {found.p_value:.3g}"
        )
        noise = "" if found.noise_rule is None else f"; {found.noise_rule}"
        if primary or vetoes(found):
            open_question = "; ".join(["open", *found.reasons])
            answer = open_question if found.decision == "undecided" else str(found.decision != "worse").lower()
            return f"{compared}; not worse by more than {self.margin:g} is {answer}{noise}"
        return f"{compared}; {found.summary}{noise}"
