"""Decide by the scores of the same cases whether a candidate is better, not worse, worse, or undecided.

Used by `gradeline compare`, regression gates and ``run --baseline``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest
from math import ceil, fsum
from operator import mul
from typing import Any, Literal, NamedTuple

import msgspec

from gradeline.stats import cases_to_decide, holm, noise_threshold
from gradeline.stats.paired import (
    ALPHA,
    ClusteredTest,
    PairedTest,
    Range,
    changes_test,
    clusters_test,
    is_skewed,
    score_change,
    score_changes,
)
from gradeline.stats.sequential import RepeatedInterval, sum_differences
from gradeline.verdict.corrected_difference import CorrectedDifference, LabelledPairs, corrected_pairs
from gradeline.verdict.evidence import AgentErrors, Clustering, PairedScores, case_score
from gradeline.verdict.gate import SLACK

Decision = Literal["better", "not_worse", "worse", "undecided"]

MARGIN = 0.02
"""The mean loss that still counts as not worse, by default."""
COVERAGE_FLOOR = 0.95

_MOST_DROPS = 5


class ComparisonRule(NamedTuple):
    """How two runs are compared.

    ``margin`` is the mean loss that still counts as not worse. Below ``coverage_floor``, the share of the baseline's
    cases that have a score in both runs, a candidate is neither better nor not worse. ``agent_errors``
    excludes failed calls of the agent, or counts them as 0. ``corrected`` says whether labels of both runs decide:
    where they can (None), always, so that it is undecided without them, or never.
    """

    margin: float = MARGIN
    coverage_floor: float = COVERAGE_FLOOR
    agent_errors: AgentErrors = "exclude"
    corrected: bool | None = None


class Drop(msgspec.Struct, frozen=True):
    """A case with a lower score."""

    case: str
    baseline: float
    candidate: float


class GraderComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One grader's scores of the candidate against those of the baseline.

    The means are over the cases that have a score in both runs: improved + worse + same. They are None without such
    a case. ``difference`` is the mean of the changes that count, so with ``noise`` it may differ from that of the two
    means. ``cases_to_decide`` is the total number of cases that decides with a power of 80 % if both are equally good.
    """

    baseline: float | None
    candidate: float | None
    difference: float | None
    difference_ci: Range | None
    difference_bounds: Range | None = None
    """The difference over all cases of the baseline with each missing score at its worst, and at its best."""
    coverage: float | None = None
    """The share of the baseline's cases, without edited ones, that have a score in both runs."""
    test: str | None
    p_value: float | None
    p_adjusted: float | None = None
    """Adjusted by Holm over the graders of the comparison."""
    noise_threshold: float | None = None
    """A smaller mean difference can be due to chance."""
    noise: float = 0.0
    """The suite's threshold for this grader: a smaller change of a case counts as same."""
    within_noise: int = 0
    """The number of cases that count as same only because of ``noise``."""
    skewed: bool = False
    """Whether some changes are so much larger than the others that Student's t is unreliable."""
    largest_drops: tuple[Drop, ...] = ()
    """The cases that fell most, at most 5."""
    improved: int
    worse: int
    same: int
    missing: int
    not_applicable: int = 0
    """The number of cases to which the grader does not apply; they are not missing."""
    decision: Decision
    reasons: tuple[str, ...] = ()
    """Why it is undecided, and what is nevertheless certain."""
    cases_to_decide: int | None
    changed: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()
    improved_cases: tuple[str, ...] = ()
    worse_cases: tuple[str, ...] = ()
    missing_cases: tuple[str, ...] = ()
    clusters: int | None = None
    """The number of clusters of the compared cases; None if no case has one."""
    corrected: CorrectedDifference | None = None
    """The difference corrected by labels; None if no case has any. Where it has an estimate, that decides."""

    @property
    def by_labels(self) -> CorrectedDifference | None:
        """The difference that decides instead of the judge's; None where the judge's scores decide."""
        return None if self.corrected is None or self.corrected.estimate is None else self.corrected

    @property
    def deciding_p(self) -> float | None:
        """The p-value of the difference that decides."""
        return self.p_value if self.by_labels is None else self.by_labels.p_value

    @property
    def pairs(self) -> int:
        """The number of compared cases."""
        return self.improved + self.worse + self.same

    @property
    def compared(self) -> str:
        """The number of compared cases and of their clusters, as text."""
        if self.clusters is not None:
            return str(Clustering(self.pairs, self.clusters))
        return f"{self.pairs} case{'s' * (self.pairs != 1)}"

    @property
    def noise_rule(self) -> str | None:
        """Which changes count as same, with the effect on the difference; None if every change counts."""
        if not self.noise or self.difference is None or self.baseline is None or self.candidate is None:
            return None
        rule = f"{noise_in_words(self.noise)} ({self.within_noise:,} of {self.pairs:,} cases)"
        of_means = self.candidate - self.baseline
        if abs(of_means - self.difference) <= SLACK:
            return rule
        return f"{rule}; with them the difference is {of_means:+.3g}"

    @property
    def depends_on_symmetry(self) -> bool:
        """Whether many small gains may hide a few large drops from the test: `largest_drops` shows them."""
        return self.skewed or self.test == "sign_flip_exact"

    @property
    def summary(self) -> str:
        """What changed, and which loss is ruled out."""
        if self.difference_ci is None:
            return "no case has a score in both runs"
        if self.by_labels is not None and self.by_labels.interval is not None:
            return f"{self.by_labels.sentence}; {_ruled_out(self.by_labels.interval)}"
        cases = self.pairs if self.clusters is None else self.compared
        changed = f"{self.improved} up, {self.worse} down of {cases}"
        changes = changed if self.improved + self.worse else f"none of {cases} changed"
        return f"{changes}; {_ruled_out(self.difference_ci)}"

    def to_data(self) -> dict[str, Any]:
        """The data for ``--json``; of the lists of cases only `changed` and `edited`."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return {key: value for key, value in shown.items() if not key.endswith("_cases")}


def noise_in_words(noise: float) -> str:
    """``changes below 0.010 count as same``."""
    shown = f"{noise:.3f}"
    return f"changes below {shown if float(shown) == noise else f'{noise:g}'} count as same"


def compare_cases(paired: PairedScores, rule: ComparisonRule = ComparisonRule()) -> GraderComparison:  # noqa: B008 - immutable
    """The decision on one grader's scores."""
    before = [case_score(repeats, rule.agent_errors) for repeats in paired.baseline]
    after = [case_score(repeats, rule.agent_errors) for repeats in paired.candidate]
    missing = [
        case for case, first, second in zip(paired.cases, before, after, strict=True) if first is None or second is None
    ]
    missing += paired.added
    cases, first_scores, second_scores, clusters = _complete_pairs(paired, before, after)
    coverage = len(cases) / len(paired.cases) if paired.cases else None
    changes = score_changes(first_scores, second_scores, paired.noise) if cases else []
    bounds = _bounds(changes, before, after, paired.noise)
    if not cases:
        return GraderComparison(
            baseline=None,
            candidate=None,
            difference=None,
            difference_ci=None,
            difference_bounds=bounds,
            coverage=coverage,
            test=None,
            p_value=None,
            noise=paired.noise,
            improved=0,
            worse=0,
            same=0,
            missing=len(missing),
            not_applicable=paired.not_applicable,
            decision="undecided",
            reasons=("no case has a score in both runs",),
            cases_to_decide=None,
            edited=tuple(paired.edited),
            missing_cases=tuple(missing),
        )
    changed = [(case, change) for case, change in zip(cases, changes, strict=True) if change]
    improved = tuple(case for case, change in changed if change > 0.0)
    worse = tuple(case for case, change in changed if change < 0.0)
    clustering = Clustering(len(cases), len(set(clusters))) if paired.clusters else None
    clustered = clustering is not None and clustering.clusters < clustering.cases
    by_cluster = clusters_test(changes, clusters) if clustered else None
    units = changes if by_cluster is None else by_cluster.differences
    found: PairedTest | ClusteredTest | RepeatedInterval
    if paired.look is not None:
        found = sum_differences(changes, clusters if clustered else None).at(paired.look.number, paired.look.alpha)
    elif by_cluster is not None:
        found = by_cluster
    else:
        found = changes_test(changes, pass_or_fail=_pass_or_fail(first_scores) and _pass_or_fail(second_scores))
    difference = fsum(changes) / len(changes)
    interval, p = found.interval, found.p
    alpha = ALPHA if paired.look is None else paired.look.alpha
    decision = decide_difference(difference, interval, p, rule.margin, alpha)
    reasons: list[str] = []
    if decision in ("better", "not_worse") and len(cases) / len(paired.cases) < rule.coverage_floor - 1e-12:
        decision = "undecided"
        reasons.append(_thin(len(cases), len(paired.cases), rule.coverage_floor, bounds))
    of_means = (fsum(second_scores) - fsum(first_scores)) / len(changes)
    if hides_loss(decision, of_means, paired.noise, rule.margin):
        decision = "undecided"
        reasons.append(
            f"changes below the noise of {paired.noise:g} add up to a loss beyond the margin of {rule.margin:g}:"
            f" with them the difference is {of_means:+.3g}; set a noise below the margin"
        )
    shortage = None if clustering is None else clustering.shortage
    if shortage is not None:
        decision = "undecided"
        reasons.append(shortage)
    enough = None
    if decision == "undecided":
        # with no margin, no number of cases shows that the candidate is not worse
        enough = _enough(units, len(changes), rule.margin) if rule.margin > SLACK else None
        if not reasons:
            needed = None if enough is None else _needed(enough, len(changes), len(units))
            reasons += _open_question(difference, interval, p, rule.margin, needed)
    found_by_judge = GraderComparison(
        baseline=fsum(first_scores) / len(changes),
        candidate=fsum(second_scores) / len(changes),
        difference=difference,
        difference_ci=interval,
        difference_bounds=bounds,
        coverage=coverage,
        test=found.test,
        p_value=p,
        noise_threshold=noise_threshold(units),
        noise=paired.noise,
        within_noise=_within_noise(first_scores, second_scores, changes) if paired.noise else 0,
        skewed=found.test == "paired_t" and is_skewed(units),
        largest_drops=_largest_drops(cases, first_scores, second_scores, changes),
        improved=len(improved),
        worse=len(worse),
        same=len(changes) - len(changed),
        missing=len(missing),
        not_applicable=paired.not_applicable,
        decision=decision,
        reasons=tuple(reasons),
        cases_to_decide=enough,
        changed=tuple(case for case, _ in changed),
        edited=tuple(paired.edited),
        improved_cases=improved,
        worse_cases=worse,
        missing_cases=tuple(missing),
        clusters=None if clustering is None else clustering.clusters,
    )
    return decide_by_labels(found_by_judge, paired, rule)


def decide_by_labels(found: GraderComparison, paired: PairedScores, rule: ComparisonRule) -> GraderComparison:
    """The comparison, decided on the difference that the labels of both runs correct, where the rule uses them."""
    labels = paired.labels
    if rule.corrected is False or (not rule.corrected and (labels is None or not labels.any)):
        return found
    corrected = corrected_pairs(LabelledPairs() if labels is None else labels)
    if corrected.estimate is None or corrected.interval is None or corrected.p_value is None:
        if not rule.corrected:
            return msgspec.structs.replace(found, corrected=corrected)
        reasons: tuple[str, ...] = (corrected.sentence,)
        return msgspec.structs.replace(
            found, corrected=corrected, decision="undecided", reasons=reasons, cases_to_decide=None
        )
    estimate, interval, p = corrected.estimate, corrected.interval, corrected.p_value
    decision, reasons = decide_difference(estimate, interval, p, rule.margin), ()
    if decision in ("better", "not_worse") and found.pairs / len(paired.cases) < rule.coverage_floor - 1e-12:
        decision = "undecided"
        reasons = (_thin(found.pairs, len(paired.cases), rule.coverage_floor, found.difference_bounds),)
    elif decision == "undecided":
        more = "label more of the same cases in both runs to narrow it"
        reasons = tuple(_open_question(estimate, interval, p, rule.margin, more))
    return msgspec.structs.replace(found, corrected=corrected, decision=decision, reasons=reasons, cases_to_decide=None)


def decide_difference(difference: float, interval: Range, p: float, margin: float, alpha: float = ALPHA) -> Decision:
    """The one rule: without a significant difference there is neither better nor worse.

    Worse is a loss that certainly exceeds the margin. One that is certain, but perhaps within the margin, is undecided.
    """
    low, high = interval
    significant = p <= alpha
    if significant and difference > 0.0:
        return "better"
    if low >= -margin - SLACK:
        return "not_worse"
    return "worse" if significant and high < -margin else "undecided"


def hides_loss(decision: Decision, of_means: float, noise: float, margin: float) -> bool:
    """Whether changes that count as same add up to a loss beyond the margin.

    ``of_means`` is the difference with all changes.
    """
    return noise > 0.0 and decision in ("better", "not_worse") and of_means < -margin - SLACK


def adjust_p_values(graders: Mapping[str, GraderComparison]) -> dict[str, GraderComparison]:
    """The comparisons with p-values adjusted over all graders."""
    ps = {key: grader.deciding_p for key, grader in graders.items() if grader.deciding_p is not None}
    raised = dict(zip(ps, holm(ps.values()), strict=True))
    return {key: msgspec.structs.replace(grader, p_adjusted=raised.get(key)) for key, grader in graders.items()}


def overall_decision(graders: Mapping[str, GraderComparison], primary: Sequence[str]) -> Decision:
    """The decision over several graders, whose p-values are `adjust_p_values`.

    The primary graders decide. Any other can only veto, by a loss that is significant over all graders together.
    """
    if any(vetoes(grader) for grader in graders.values()):
        return "worse"
    return primary_decision({key: grader.decision for key, grader in graders.items()}, primary)


def primary_decision(decisions: Mapping[str, Decision], primary: Sequence[str]) -> Decision:
    """The worst of the primary graders' decisions."""
    # one that was not compared leaves it open: other graders cannot replace it
    found = {decisions.get(key, "undecided") for key in primary}
    order: tuple[Decision, ...] = ("worse", "undecided", "better", "not_worse")
    return next((decision for decision in order if decision in found), "undecided")


def vetoes(grader: GraderComparison) -> bool:
    """Whether its loss exceeds the margin, and is significant over all graders together."""
    return grader.decision == "worse" and grader.p_adjusted is not None and grader.p_adjusted <= ALPHA


def _complete_pairs(
    paired: PairedScores, before: Sequence[float | None], after: Sequence[float | None]
) -> tuple[list[str], list[float], list[float], list[tuple[bool, str]]]:
    """The cases with a score in both runs, these scores, and the cluster of each case: a name, or the case itself.

    Without clusters the last list is empty.
    """
    names: list[str] = []
    firsts: list[float] = []
    seconds: list[float] = []
    clusters: list[tuple[bool, str]] = []
    for place, (case, first, second) in enumerate(zip(paired.cases, before, after, strict=True)):
        if first is not None and second is not None:
            names.append(case)
            firsts.append(first)
            seconds.append(second)
            if paired.clusters:
                cluster = paired.clusters[place]
                clusters.append((False, case) if cluster is None else (True, cluster))
    return names, firsts, seconds, clusters


def _enough(units: Sequence[float], cases: int, margin: float) -> int:
    """The total number of cases that decides with a power of 80 % if both are equally good; see `cases_to_decide`.

    For cases in clusters the estimate assumes clusters of the same mean size.
    """
    mean_square = (fsum(map(mul, units, units)) + 1.0) / (len(units) + 2)
    return ceil(cases_to_decide(mean_square, margin) * cases / len(units))


def _largest_drops(
    cases: Sequence[str], before: Sequence[float], after: Sequence[float], changes: Sequence[float]
) -> tuple[Drop, ...]:
    fallen = (place for place, change in enumerate(changes) if change < 0.0)
    largest = nsmallest(_MOST_DROPS, fallen, key=changes.__getitem__)
    return tuple(Drop(cases[place], before[place], after[place]) for place in largest)


def _within_noise(before: Sequence[float], after: Sequence[float], changes: Sequence[float]) -> int:
    return sum(
        not change and score_change(first, second) != 0.0
        for first, second, change in zip(before, after, changes, strict=True)
    )


def _bounds(
    changes: Sequence[float], before: Sequence[float | None], after: Sequence[float | None], noise: float
) -> Range | None:
    """The least and the greatest difference that the missing scores allow, next to the known ``changes``."""
    if not before:
        return None
    missing = [pair for pair in zip(before, after, strict=True) if None in pair]
    known = fsum(changes)

    def bound(worst: float, best: float) -> float:
        """The mean difference if each missing score of the baseline were ``best``, of the candidate ``worst``."""
        pairs = ((best if first is None else first, worst if second is None else second) for first, second in missing)
        return (known + fsum(score_change(first, second, noise) for first, second in pairs)) / len(before)

    return bound(0.0, 1.0), bound(1.0, 0.0)


def _thin(paired: int, cases: int, floor: float, bounds: Range | None) -> str:
    text = f"only {paired:,} of the baseline's {cases:,} cases have a score in both runs, below the floor of {floor:g}"
    if bounds is None:
        return text
    return f"{text}; with the missing scores the difference is {bounds[0]:+.3f} to {bounds[1]:+.3f}"


def _open_question(difference: float, interval: Range, p: float, margin: float, needed: str | None) -> Iterator[str]:
    if p <= ALPHA and difference < 0.0:
        yield f"lower for certain (p {p:.2g}), perhaps by less than the margin of {margin:g}"
    yield _ruled_out(interval)
    yield needed or "no number of cases shows that it is not worse without a margin"


def _needed(enough: int, cases: int, units: int) -> str:
    if enough <= cases:
        return "the difference is close to the margin, so that more cases may not settle it"
    clusters = ""
    if units < cases:
        clusters = f" in {ceil(enough * units / cases):,} clusters"
    return (
        f"{enough:,} cases{clusters} in all ({enough - cases:,} more) settle it with a power of 80 %"
        " if both are equally good"
    )


def _ruled_out(interval: Range) -> str:
    loss = -interval[0]
    return f"a loss above {loss:.3g} is ruled out" if loss > 0.0 else "a loss is ruled out"


def _pass_or_fail(scores: Sequence[float]) -> bool:
    return {0.0, 1.0}.issuperset(scores)
