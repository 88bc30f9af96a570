"""A judge measured against labels: agreement, kappa, sensitivity, specificity, and the state that follows."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import ceil, fsum
from typing import NamedTuple

import msgspec

from gradeline.model.calibration import (
    MAX_MISSING,
    MIN_CLASS,
    MIN_KAPPA,
    MIN_LABELS,
    AgreementTable,
    Bounds,
    Calibration,
    CurveSummary,
    KappaEstimate,
    ScoreBin,
    TagAgreement,
)
from gradeline.stats import (
    Interval,
    brier,
    calibration_curve,
    expected_calibration_error,
    isotonic,
)
from gradeline.trust.judge_value import judge_value
from gradeline.trust.label_and_verdict import (
    LabelAndVerdict,
    agreement_table,
    kappa_bounds,
    share_interval,
    weights_of,
)
from gradeline.trust.length_rule import length_rule

CURVE_BINS = 10
_SAMPLE_STEP = 50
MIN_TAG = 10
"""Below this number of labels a tag has no numbers."""


class JudgedResults(NamedTuple):
    """The judge's verdicts on the whole run."""

    unlabelled: Sequence[float] = ()
    """1 for each result without a label that passes, 0 for each that fails; none for those without a verdict."""
    total: int = 0
    """Results that the judge was to grade."""
    missing: int = 0
    """Of these, the ones without a verdict."""


class CalibratedJudge(NamedTuple):
    """The judge that is measured, and the names under which its calibration is filed."""

    suite: str
    grader: str
    question: str
    run: str
    judge: tuple[str, ...]
    judge_fingerprint: str
    prompt_hash: str = ""
    rubric_version: str = ""


class LabelSource(NamedTuple):
    """Where the labels come from, and what was left out of them."""

    against: str | None = None
    """The method that replaces labels of people; None: labels of people."""
    unresolved: int = 0
    stale: int = 0
    notes: tuple[str, ...] = ()
    served: tuple[str, ...] = ()
    """The models that gave the judge's verdicts, as the provider named them."""


_PEOPLE = LabelSource()


def calibrate(
    judge: CalibratedJudge,
    labelled: Sequence[LabelAndVerdict],
    results: JudgedResults,
    at: str,
    source: LabelSource = _PEOPLE,
) -> Calibration:
    """The calibration of a judge by labels on one run."""
    all_labelled = not results.unlabelled and results.total <= len(labelled)
    used, notes = (labelled, ()) if all_labelled or source.against else representative(labelled)
    weights = [1.0] * len(used) if all_labelled else weights_of(used)
    table = agreement_table(used, weights)
    kappa = kappa_bounds(used, weights)
    cost, per_agreement = _costs(used)
    judged = [one for one in used if one.verdict is not None]
    judged_weights = [weight for one, weight in zip(used, weights, strict=True) if one.verdict is not None]
    agreement, sensitivity, specificity = (share_interval(used, weights, of=of) for of in (None, True, False))
    positives = sum(one.passed for one in used)
    found = Calibration(
        **judge._asdict(),
        served=source.served,
        at=at,
        state="calibrated",
        against=source.against,
        labels=len(used),
        positives=positives,
        negatives=len(used) - positives,
        unresolved=source.unresolved,
        stale=source.stale,
        weighted=len(set(weights)) > 1,
        unknown_probability=0 if all_labelled or source.against else sum(one.probability is None for one in used),
        table=AgreementTable(tp=table.tp, fp=table.fp, fn=table.fn, tn=table.tn, missing=table.missing),
        agreement=_estimate(agreement),
        agreement_ci=_bounds(agreement),
        kappa=None if kappa is None else KappaEstimate(estimate=kappa.estimate, low=kappa.low, high=kappa.high),
        kappa_lower=None if kappa is None else kappa.lower,
        sensitivity=_estimate(sensitivity),
        sensitivity_ci=_bounds(sensitivity),
        specificity=_estimate(specificity),
        specificity_ci=_bounds(specificity),
        missing_rate=results.missing / results.total if results.total else 0.0,
        missing=results.missing,
        results=results.total,
        curve=_curve(judged, judged_weights),
        length_rule=length_rule(used, weights),
        tags=tuple(_tags(used, weights)),
        cost=cost,
        cost_per_agreement=per_agreement,
        value=None if source.against else judge_value(judged, judged_weights, results.unlabelled),
        notes=(*source.notes, *notes),
    )
    return with_state(found)


def representative(labelled: Sequence[LabelAndVerdict]) -> tuple[Sequence[LabelAndVerdict], tuple[str, ...]]:
    """The labels that stand for the run, and notes on the others.

    Labels of results that were not drawn at random are only used where there are too few others.
    """
    drawn = [one for one in labelled if one.probability]
    others = len(labelled) - len(drawn)
    if not others:
        return labelled, ()
    if len(drawn) >= min(others, MIN_LABELS):
        return drawn, (f"{_labels(others)} left out: not drawn at random from the run",)
    note = "labels were not drawn at random, so the numbers are those of the labelled results, not of the run"
    return labelled, (f"{others:,} of {len(labelled):,} {note}",)


def with_state(found: Calibration) -> Calibration:
    """The calibration with the state that its numbers give, and the reasons if it failed."""
    reasons = tuple(_failures(found))
    return msgspec.structs.replace(found, state="failed" if reasons else "calibrated", reasons=reasons)


def _failures(found: Calibration) -> Iterator[str]:
    """The conditions that do not hold; what is missing, and how to get it."""
    if not found.labels:
        yield f"there are no labels: {_draw(found, MIN_LABELS)}"
        return
    if found.labels < MIN_LABELS:
        missing = MIN_LABELS - found.labels
        remedy = _draw(found, MIN_LABELS + found.unresolved + found.stale)
        yield f"only {_counted(found, found.labels)}, {_more(missing)}: {remedy}"
    for name, number in (("pass", found.positives), ("fail", found.negatives)):
        if number < MIN_CLASS:
            size = max(MIN_LABELS, ceil(MIN_CLASS * found.labels / max(number, 1) / _SAMPLE_STEP) * _SAMPLE_STEP)
            remedy = "run other cases" if found.against else _draw(found, size, "--stratify")
            yield f"only {_counted(found, number)} of results that {name}, {_more(MIN_CLASS - number)}: {remedy}"
    if found.kappa is None or found.kappa_lower is None:
        yield "kappa is undefined: all labels and verdicts are the same, or no labelled result has a verdict"
    elif found.kappa_lower < MIN_KAPPA:
        yield (
            f"kappa is {found.kappa.estimate:.2f}, and its lower bound (one-sided, 95 %) {found.kappa_lower:.3f} is"
            f" below {MIN_KAPPA:g}"
        )
    if found.missing_rate > MAX_MISSING:
        counts = f"{found.missing:,} of {found.results:,} results"
        yield f"no verdict on {counts} ({found.missing_rate:.1%}), above {MAX_MISSING:.0%}"


def _draw(found: Calibration, size: int, *options: str) -> str:
    """How to get labels: the command that draws a sample of this size, where the run has so many results."""
    if found.against:
        return "run more cases"
    if found.labels >= found.results:
        return f"run more cases, as every result of run {found.run} has a label"
    if found.results < MIN_LABELS:
        return f"run more cases, as run {found.run} has only {found.results:,} results"
    option = "--grader" if found.question == found.grader else "--question"
    words = ("gradeline", "label", found.run, option, found.question, "--sample", str(min(size, found.results)))
    return shlex.join([*words, *options])


def _counted(found: Calibration, number: int) -> str:
    if found.against is None:
        return _labels(number)
    return f"{number:,} verdict{'' if number == 1 else 's'} of {found.against}"


def _more(number: int) -> str:
    return f"{number:,} more {'is' if number == 1 else 'are'} needed"


def _labels(number: int) -> str:
    return f"{number:,} label{'' if number == 1 else 's'}"


def _estimate(interval: Interval | None) -> float | None:
    return None if interval is None else interval.estimate


def _bounds(interval: Interval | None) -> Bounds | None:
    return None if interval is None else (interval.low, interval.high)


def _curve(judged: Sequence[LabelAndVerdict], weights: Sequence[float]) -> CurveSummary | None:
    """The calibration curve of the scores; None without scores."""
    scored = [
        (one.score, float(one.passed), weight)
        for one, weight in zip(judged, weights, strict=True)
        if one.score is not None
    ]
    if not scored:
        return None
    scores, labels, own = ([triple[place] for triple in scored] for place in range(3))
    fitted = isotonic(scores, labels, own)
    bins = tuple(
        ScoreBin(
            low=one.low, high=one.high, labels=one.n, score=one.score, passed=one.label, isotonic=fitted(one.score)
        )
        for one in calibration_curve(scores, labels, CURVE_BINS, own)
    )
    return CurveSummary(
        bins=bins,
        brier=brier(scores, labels, own),
        ece=expected_calibration_error(scores, labels, CURVE_BINS, own),
    )


def _tags(labelled: Sequence[LabelAndVerdict], weights: Sequence[float]) -> Iterator[TagAgreement]:
    """The numbers of each tag, by name."""
    members: dict[str, list[tuple[LabelAndVerdict, float]]] = defaultdict(list)
    for one, weight in zip(labelled, weights, strict=True):
        for tag in dict.fromkeys(one.tags):
            members[tag].append((one, weight))
    for tag, pairs in sorted(members.items()):
        own, counted = [one for one, _ in pairs], [weight for _, weight in pairs]
        positives = sum(one.passed for one in own)
        row = TagAgreement(
            tag=tag,
            labels=len(own),
            positives=positives,
            negatives=len(own) - positives,
            missing=sum(one.verdict is None for one in own),
        )
        if len(own) - row.missing < MIN_TAG:
            yield row
            continue
        table = agreement_table(own, counted)
        kappa = kappa_bounds(own, counted)
        yield msgspec.structs.replace(
            row,
            agreement=table.agreement,
            kappa=None if kappa is None else kappa.estimate,
            sensitivity=table.sensitivity,
            specificity=table.specificity,
        )


def _costs(labelled: Sequence[LabelAndVerdict]) -> tuple[float | None, float | None]:
    """The judge's cost for these results, and by agreement; None where the cost of any is unknown."""
    known = [one.cost for one in labelled if one.cost is not None]
    agreed = sum(one.agrees for one in labelled)
    if len(known) < len(labelled) or not known:
        return None, None
    total = fsum(known)
    return total, total / agreed if agreed else None


class JudgeCandidate(NamedTuple):
    """A judge, or a panel of judges, that could answer a question."""

    name: str
    agreement: float | None
    """With the labels; for a panel that learned from them, cross-validated. None: unknown."""
    cost: float | None = None
    """Of the same results; None: unknown, which comes after any known cost."""
    panel: bool = False


def candidate_of(found: Calibration) -> JudgeCandidate:
    """The judge of a calibration; a panel with weights by its cross-validated agreement."""
    agreement = found.agreement if found.panel is None else found.panel.agreement
    return JudgeCandidate(found.grader, agreement, found.cost, len(found.judge) > 1)


def best_judge(candidates: Sequence[JudgeCandidate]) -> JudgeCandidate | None:
    """The judge to use: the one of the greatest agreement, of equal ones the cheapest, of these the first.

    A panel only if its agreement is higher than that of every single judge.
    """
    known = [one for one in candidates if one.agreement is not None]
    singles = [one for one in known if not one.panel]
    best = max(singles, key=_rank, default=None)
    panel = max((one for one in known if one.panel), key=_rank, default=None)
    if best is None or panel is None:
        return best or panel
    return panel if (panel.agreement or 0.0) > (best.agreement or 0.0) + _SLACK else best


_SLACK = 1e-12


def _rank(candidate: JudgeCandidate) -> tuple[float, float]:
    cost = float("inf") if candidate.cost is None else candidate.cost
    return round(candidate.agreement or 0.0, 12), -cost
