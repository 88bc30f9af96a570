"""From results to a table of shares: corrected evidence per arm and family, gates, and the promise.

Quality of an arm in a family, as passes and fails:

- with at least `MIN_LABELS` labels in the family, `MIN_OF_CLASS` of either class: PPI++ over the family's results
- else Rogan-Gladen over the family's verdicts with the sensitivity and specificity of the judge *on this arm*
- without a judge (an exact grader): the verdicts themselves

Evidence loses half its weight every half-life. The promise is made on cases that had no part in choosing what to
route: half of the cases (by a digest of their keys) choose the order of families, least harmful first; on the other
half, the first 25, 50, 75 and 100 % of them are tested in turn, until the bound exceeds alpha. The bound is Clopper-
Pearson's upper 90 % limit with half of the pairs' number, so that it holds for the next requests, as many as there are
pairs, and not only for their expectation. Where not all pairs have labels, PPI++ estimates the share, and the pairs are
as many as its standard error is worth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import NamedTuple

from gradeline.model.route import EVERY_FAMILY, RouteCell, RouteGate, RoutePromise
from gradeline.model.text import quote
from gradeline.stats.agreement import Confusion, confusion
from gradeline.stats.distributions import beta_quantile
from gradeline.stats.prediction_powered import corrected_mean, rogan_gladen
from gradeline.trust.policy import (
    NO_EVIDENCE,
    ArmEvidence,
    FamilyShares,
    PolicyArm,
    PolicyRules,
    evidence_of,
    split_family,
)
from gradeline.trust.router import JudgeRates
from gradeline.verdict.corrected import MIN_LABELS, MIN_OF_CLASS

CONFIDENCE = 0.9
MAX_DIFFERENCE = 0.1
"""Largest difference of sensitivity or specificity between arms under which they may share a correction."""
_STEPS = (0.25, 0.5, 0.75, 1.0)
_BATCH = 0.5
"""Share of the pairs that counts, for a bound that also holds for the next requests."""


class ArmResult(NamedTuple):
    """One graded response of an arm."""

    family: str
    case: str
    repeat: int
    verdict: bool | None
    """The grader's; None: no verdict."""
    label: bool | None = None
    """None: no label, or one that was not drawn with a known probability."""
    probability: float | None = None


class ArmResults(NamedTuple):
    """The results of an arm, and the weight that their age leaves them."""

    results: Sequence[ArmResult]
    cost: float | None
    judged: bool = True
    """Whether a model grades; False: the verdicts are as good as labels."""
    weight: float = 1.0
    record: JudgeRates | None = None
    """The judge's rates in its calibration, which may be about another arm."""


class ArmQuality(NamedTuple):
    """What is known of an arm: evidence by family, the judge's rates on it, and its gate."""

    families: Mapping[str, ArmEvidence]
    rates: JudgeRates | None
    gate: RouteGate


class PlannedSplit(NamedTuple):
    """The outcome of planning."""

    families: dict[str, dict[str, RouteCell]]
    gates: list[RouteGate]
    promise: RoutePromise


def arm_quality(arm: str, found: ArmResults) -> ArmQuality:
    """The corrected quality of an arm in each family."""
    by_family: dict[str, list[ArmResult]] = defaultdict(list)
    for result in found.results:
        by_family[result.family].append(result)
    rates, gate = (None, _no_judge(arm, found)) if not found.judged else _rates(arm, found)
    families = {
        family: _family_evidence(results, rates, judged=found.judged).times(found.weight * _independent(results))
        for family, results in by_family.items()
        if gate.passed
    }
    return ArmQuality(families, rates, gate)


def _independent(results: Sequence[ArmResult]) -> float:
    """The share of results that are independent: repeats of a case count as one."""
    return len({one.case for one in results}) / len(results)


def plan_split(
    arms: Mapping[str, ArmResults],
    baseline: str,
    rules: PolicyRules,
    alpha: float,
    further: Mapping[tuple[str, str], ArmEvidence] | None = None,
    refused: frozenset[str] = frozenset(),
    seed: int = 0,
) -> PlannedSplit:
    """The split of each family's traffic. ``further`` is evidence from elsewhere, by family and arm."""
    qualities = {arm: arm_quality(arm, found) for arm, found in arms.items()}
    gates = [quality.gate for quality in qualities.values()]
    refused |= {arm for arm, quality in qualities.items() if not quality.gate.passed}
    if baseline in refused:
        refused = frozenset(arms)
    evidence = {
        (family, arm): found for arm, quality in qualities.items() for family, found in quality.families.items()
    }
    for key, found in (further or {}).items():
        evidence[key] = evidence.get(key, NO_EVIDENCE).plus(found)
    policy_arms = [PolicyArm(arm, found.cost) for arm, found in arms.items()]
    samples = _samples(arms, further or {})
    promised, promise, obstacle = _promise(arms, baseline, rules, alpha, refused, seed, samples)
    gates.append(_promise_gate(promise, obstacle))
    families = {}
    for family in [*sorted({family for family, _ in evidence}), EVERY_FAMILY]:
        limits = rules if family in promised else _exploring(rules)
        # the promise is about one arm; the others stay unproven
        counted = {
            arm: samples.get((family, arm), 0.0) if arm in (baseline, promised.get(family)) else 0.0 for arm in arms
        }
        made = _split(policy_arms, baseline, evidence, family, limits, refused, seed, counted)
        families[family] = _cells(made, evidence, family)
    return PlannedSplit(families, gates, promise)


def upper_bound(worse: float, pairs: float, confidence: float = CONFIDENCE) -> float | None:
    """The largest share of worse requests that ``worse`` of ``pairs`` leave possible; None without pairs.

    Clopper and Pearson's one-sided limit with `_BATCH` of the pairs.
    """
    k, n = worse * _BATCH, pairs * _BATCH
    if n <= 0:
        return None
    return 1.0 if k >= n else beta_quantile(confidence, k + 1.0, n - k)


def in_first_half(case: str, seed: int = 0) -> bool:
    """Whether a case is in the half that chooses what to route; the other half measures it."""
    return blake2b(f"{seed} {case}".encode(), digest_size=1).digest()[0] % 2 == 0


class _Pair(NamedTuple):
    """One case with both answers: whether the candidate's is worse, by labels and by verdicts."""

    case: str
    label: bool | None
    verdict: bool | None
    probability: float


class _Worse(NamedTuple):
    """The estimated share of worse answers, in pairs that are worth as much as labels of both answers."""

    worse: float
    pairs: float
    labelled: int
    all_pairs: int


def _promise(
    arms: Mapping[str, ArmResults],
    baseline: str,
    rules: PolicyRules,
    alpha: float,
    refused: frozenset[str],
    seed: int,
    samples: Mapping[tuple[str, str], float],
) -> tuple[Mapping[str, str], RoutePromise, str]:
    """The families that may be routed, each with its arm; the bound on what is lost there; why there is none.

    Families without enough results are left out by their number, which says nothing about what is lost in the others.
    """
    empty = RoutePromise(alpha=alpha, confidence=CONFIDENCE)
    halves = {
        arm: found._replace(results=[one for one in found.results if in_first_half(one.case, seed)])
        for arm, found in arms.items()
    }
    others = {
        arm: found._replace(results=[one for one in found.results if not in_first_half(one.case, seed)])
        for arm, found in arms.items()
    }
    order, shares = _routed_order(halves, baseline, rules, refused, seed)
    if not order:
        return {}, empty, "in no family is a candidate worth more than the baseline"
    main = {family: _main_arm(shares[family], baseline) for family in order}
    order = [
        family
        for family in order
        if min(samples.get((family, arm), 0.0) for arm in (baseline, main[family])) >= rules.minimum_samples
    ]
    if not order:
        reason = f"no family that would be routed has {rules.minimum_samples:g} results of both arms: add cases"
        return {}, empty, reason
    kept: Mapping[str, str] = {}
    promise = empty
    for step in _STEPS:
        chosen = {family: main[family] for family in order[: max(1, round(step * len(order)))]}
        found = _worse(_pairs(others, baseline, chosen), _judged(arms))
        if found is None:
            break
        bound = upper_bound(found.worse, found.pairs)
        tried = RoutePromise(
            alpha=alpha,
            confidence=CONFIDENCE,
            bound=bound,
            pairs=found.all_pairs,
            worse=found.worse / found.pairs * found.all_pairs if found.pairs else 0.0,
            labelled=found.labelled,
        )
        if not tried.kept:
            return kept, promise if kept else tried, ""
        kept, promise = chosen, tried
    return kept, promise, f"fewer than {MIN_LABELS} cases to be routed have a label of both answers: label more"


def _routed_order(
    halves: Mapping[str, ArmResults], baseline: str, rules: PolicyRules, refused: frozenset[str], seed: int
) -> tuple[list[str], dict[str, dict[str, float]]]:
    """The families that the first half would route, least harmful first, and their shares."""
    free = PolicyRules(
        cost_weight=rules.cost_weight,
        exploration=1.0,
        minimum_samples=0,
        margin=rules.margin,
        baseline_share=rules.baseline_share,
    )
    evidence = {
        (family, arm): found
        for arm, results in halves.items()
        if arm not in refused
        for family, found in _plain_evidence(arm, results).items()
    }
    policy_arms = [PolicyArm(arm, found.cost) for arm, found in halves.items()]
    shares, harm = {}, {}
    for family in sorted({family for family, _ in evidence}):
        made = _split(policy_arms, baseline, evidence, family, free, refused, seed).shares
        if 1.0 - made[baseline] <= rules.exploration:
            continue
        shares[family] = made
        pairs = _pairs(halves, baseline, {family: _main_arm(made, baseline)})
        known = [one.label if one.label is not None else one.verdict for one in pairs]
        seen = [one for one in known if one is not None]
        harm[family] = (sum(seen) + 0.5) / (len(seen) + 1.0)
    return sorted(shares, key=lambda family: (harm[family], family)), shares


def _plain_evidence(arm: str, results: ArmResults) -> Mapping[str, ArmEvidence]:
    """Evidence for the order only: verdicts where there are no labels, which half of the cases may be too few for."""
    corrected = arm_quality(arm, results)
    if corrected.gate.passed:
        return corrected.families
    counted: dict[str, ArmEvidence] = {}
    for one in results.results:
        known = one.label if one.label is not None else one.verdict
        if known is not None:
            found = ArmEvidence(float(known), float(not known))
            counted[one.family] = counted.get(one.family, NO_EVIDENCE).plus(found)
    return counted


def _pairs(arms: Mapping[str, ArmResults], baseline: str, chosen: Mapping[str, str]) -> list[_Pair]:
    """The cases of these families with an answer of the baseline and of the family's arm."""
    reference = {(one.case, one.repeat): one for one in arms[baseline].results}
    pairs = []
    for arm, found in arms.items():
        if arm == baseline:
            continue
        for one in found.results:
            other = reference.get((one.case, one.repeat))
            if other is None or chosen.get(one.family) != arm:
                continue
            judged = found.judged or arms[baseline].judged
            label = _is_worse(other.label, one.label) if judged else _is_worse(other.verdict, one.verdict)
            # samples of the same seed have the same order of cases, so the rarer label decides
            probability = min(one.probability or 1.0, other.probability or 1.0)
            pairs.append(_Pair(one.case, label, _is_worse(other.verdict, one.verdict), probability))
    return pairs


def _main_arm(shares: Mapping[str, float], baseline: str) -> str:
    """The candidate with the greatest share."""
    return max((share, arm) for arm, share in shares.items() if arm != baseline)[1]


def _is_worse(baseline: bool | None, candidate: bool | None) -> bool | None:
    return None if baseline is None or candidate is None else baseline and not candidate


def _worse(pairs: Sequence[_Pair], judged: bool) -> _Worse | None:
    """None where too few pairs have labels for an estimate."""
    labelled = [one for one in pairs if one.label is not None]
    both = [one for one in labelled if one.verdict is not None]
    rest = [float(one.verdict) for one in pairs if one.label is None and one.verdict is not None]
    if judged and len(labelled) < MIN_LABELS:
        return None
    if not judged or len(both) < MIN_LABELS or not rest:
        share = _cases_per_pair(labelled)
        worse = sum(bool(one.label) for one in labelled)
        return _Worse(worse * share, len(labelled) * share, len(labelled), len(labelled))
    found = corrected_mean(
        [float(bool(one.label)) for one in both],
        [float(bool(one.verdict)) for one in both],
        rest,
        [1.0 / one.probability for one in both],
    )
    evidence = evidence_of(found.estimate, found.se, len(both) + len(rest), len(both)).times(_cases_per_pair(both))
    return _Worse(evidence.passes, evidence.n, len(both), len(both) + len(rest))


def _cases_per_pair(pairs: Sequence[_Pair]) -> float:
    """Repeats of a case count as one."""
    return len({one.case for one in pairs}) / len(pairs) if pairs else 1.0


def _judged(arms: Mapping[str, ArmResults]) -> bool:
    return any(found.judged for found in arms.values())


def _exploring(rules: PolicyRules) -> PolicyRules:
    """The rules where nothing is promised: every arm is unproven."""
    return PolicyRules(
        cost_weight=rules.cost_weight,
        exploration=rules.exploration,
        minimum_samples=1e18,
        margin=rules.margin,
        baseline_share=rules.baseline_share,
        prior_samples=rules.prior_samples,
        draws=rules.draws,
    )


def _split(
    arms: Sequence[PolicyArm],
    baseline: str,
    evidence: Mapping[tuple[str, str], ArmEvidence],
    family: str,
    rules: PolicyRules,
    refused: frozenset[str],
    seed: int,
    samples: Mapping[str, float] | None = None,
) -> FamilyShares:
    own = {arm.name: evidence.get((family, arm.name), NO_EVIDENCE) for arm in arms}
    pooled: dict[str, ArmEvidence] = {}
    for (_, arm), found in evidence.items():
        pooled[arm] = pooled.get(arm, NO_EVIDENCE).plus(found)
    digest = blake2b(f"{seed} {family}".encode(), digest_size=8).digest()
    random = Random(digest)  # noqa: S311 - a plan is repeatable
    return split_family(arms, baseline, own, pooled, rules, random, refused, samples)


def _samples(
    arms: Mapping[str, ArmResults], further: Mapping[tuple[str, str], ArmEvidence]
) -> dict[tuple[str, str], float]:
    """The number of results with a verdict, by family and arm; old ones count less."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for arm, results in arms.items():
        for one in results.results:
            found[one.family, arm] += results.weight if one.verdict is not None else 0.0
    for key, evidence in further.items():
        found[key] += evidence.n
    return dict(found)


def _cells(made: FamilyShares, evidence: Mapping[tuple[str, str], ArmEvidence], family: str) -> dict[str, RouteCell]:
    return {
        arm: RouteCell(
            share=share,
            state=made.states[arm],
            quality=made.beliefs[arm].mean,
            n=evidence.get((family, arm), NO_EVIDENCE).n,
        )
        for arm, share in made.shares.items()
    }


def _family_evidence(results: Sequence[ArmResult], rates: JudgeRates | None, *, judged: bool) -> ArmEvidence:
    verdicts = [one for one in results if one.verdict is not None]
    if not judged:
        passes = sum(bool(one.verdict) for one in verdicts)
        return ArmEvidence(passes, len(verdicts) - passes)
    labelled = [one for one in verdicts if one.label is not None]
    rest = [float(bool(one.verdict)) for one in verdicts if one.label is None]
    if _enough(labelled):
        found = corrected_mean(
            [float(bool(one.label)) for one in labelled],
            [float(bool(one.verdict)) for one in labelled],
            rest,
            [1.0 / (one.probability or 1.0) for one in labelled],
        )
        return evidence_of(found.estimate, found.se, len(verdicts), len(labelled))
    if rates is None or not verdicts:
        return NO_EVIDENCE
    positives = sum(bool(one.verdict) for one in verdicts)
    try:
        corrected = rogan_gladen(positives, len(verdicts), *rates)
    except ValueError:
        return NO_EVIDENCE
    return evidence_of(corrected.estimate, corrected.se, len(verdicts), len(verdicts))


def _enough(labelled: Sequence[ArmResult]) -> bool:
    passes = sum(bool(one.label) for one in labelled)
    return len(labelled) >= MIN_LABELS and min(passes, len(labelled) - passes) >= MIN_OF_CLASS


def _rates(arm: str, found: ArmResults) -> tuple[JudgeRates | None, RouteGate]:
    """The judge's rates on the answers of this arm, and the gate that they pass or fail."""
    labelled = [one for one in found.results if one.label is not None and one.verdict is not None]
    if len(labelled) < MIN_LABELS:
        missing = MIN_LABELS - len(labelled)
        return None, _arm_gate(arm, False, f"{len(labelled)} of its answers have labels: label {missing} more")
    weights = [1.0 / (one.probability or 1.0) for one in labelled]
    table = confusion([bool(one.label) for one in labelled], [one.verdict for one in labelled], weights)
    positives = sum(bool(one.label) for one in labelled)
    negatives = len(labelled) - positives
    if min(positives, negatives) >= MIN_OF_CLASS:
        return _own_rates(arm, table, positives, negatives)
    return _shared_rates(arm, table, positives, negatives, found.record)


def _own_rates(arm: str, table: Confusion, positives: int, negatives: int) -> tuple[JudgeRates | None, RouteGate]:
    if table.sensitivity is None or table.specificity is None:
        return None, _arm_gate(arm, False, "its labels are only of answers without a verdict")
    rates = JudgeRates(table.sensitivity, positives, table.specificity, negatives)
    detail = f"corrected by its own {positives + negatives:,} labels: {_shown(rates)}"
    return rates, _arm_gate(arm, True, detail)


def _shared_rates(
    arm: str, table: Confusion, positives: int, negatives: int, record: JudgeRates | None
) -> tuple[JudgeRates | None, RouteGate]:
    """Nearly all labels are of one class: the judge's calibration is used if it agrees on that class."""
    passing = positives >= negatives
    rare = f"only {min(positives, negatives)} of its {positives + negatives:,} labels {'fail' if passing else 'pass'}"
    if record is None:
        return None, _arm_gate(arm, False, f"{rare}, at least {MIN_OF_CLASS} are needed: label more of its answers")
    own = table.sensitivity if passing else table.specificity
    known = record.sensitivity if passing else record.specificity
    word = "sensitivity" if passing else "specificity"
    if own is None or abs(own - known) >= MAX_DIFFERENCE:
        shown = "unknown" if own is None else f"{own:.2f}"
        detail = f"{rare}, and the judge's {word} is {shown} here but {known:.2f} in its calibration: label more"
        return None, _arm_gate(arm, False, detail)
    return record, _arm_gate(arm, True, f"{rare}; corrected by the judge's calibration: {_shown(record)}")


def _shown(rates: JudgeRates) -> str:
    return f"sensitivity {rates.sensitivity:.2f}, specificity {rates.specificity:.2f}"


def _no_judge(arm: str, found: ArmResults) -> RouteGate:
    return _arm_gate(
        arm, True, f"{len(found.results):,} results of a grader without a model, which needs no correction"
    )


def _arm_gate(arm: str, passed: bool, detail: str) -> RouteGate:
    return RouteGate(name="per-arm errors", passed=passed, detail=detail, arm=arm)


def _promise_gate(promise: RoutePromise, obstacle: str) -> RouteGate:
    detail = obstacle if promise.bound is None else promise_sentence(promise)
    return RouteGate(name="promise", passed=promise.kept, detail=detail)


def promise_sentence(promise: RoutePromise) -> str:
    """The promise in words."""
    if promise.bound is None:
        return "nothing is promised: too few cases have both answers"
    if not promise.kept:
        return (
            f"up to {promise.bound:.1%} of routed requests may be worse than the baseline, more than the"
            f" {promise.alpha:.1%} allowed ({promise.pairs:,} pairs, {promise.labelled:,} with labels)"
        )
    return (
        f"at most {promise.bound:.1%} of routed requests are worse than the baseline, {promise.confidence:.0%} sure"
        f" (allowed: {promise.alpha:.1%}; {promise.pairs:,} pairs, {promise.labelled:,} with labels)"
    )


def named_arms(gates: Iterable[RouteGate]) -> str:
    """The arms that failed gates are about, quoted."""
    return ", ".join(quote(gate.arm) for gate in gates if not gate.passed and gate.arm is not None)
