"""Rates and differences that a judge scored, corrected by labels of some items.

A judge's mean is biased by an unknown amount. Labels of items drawn at random measure it, so the corrected estimate is
unbiased whatever the judge's errors; a good judge makes it more precise than the labels by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import fsum, sqrt
from typing import NamedTuple

from gradeline.stats.agreement import check_weights
from gradeline.stats.distributions import normal_quantile, student_quantile
from gradeline.stats.intervals import Interval, effective_interval, finite_values

_MINIMUM_INFORMATION = 0.1
"""Least sensitivity + specificity - 1 with which Rogan-Gladen identifies a rate."""

_ENOUGH_DISAGREEMENTS = 5.0
"""With fewer disagreements of judge and labels, their variance is uncertain: up to one more is assumed."""


class Corrected(NamedTuple):
    """A corrected estimate."""

    estimate: float
    interval: Interval
    weight: float
    """λ of PPI++: 0 ignores the judge, 1 relies on it fully."""
    se: float
    labels: int
    """Labelled items."""
    judged: int
    """Items with a judge's score, labelled ones included."""
    groups: float = 0.0
    """Independent labelled items: Student's interval has one degree of freedom less. 0 for `rogan_gladen`."""


def corrected_mean(
    labels: Sequence[float],
    judged: Sequence[float],
    rest: Sequence[float],
    weights: Sequence[float] | None = None,
    confidence: float = 0.95,
) -> Corrected:
    """The mean label of all judged items, estimated by PPI++, with the interval of `score_interval`.

    ``labels[i]`` and ``judged[i]`` are the label, in 0..1, and the judge's score of one labelled item; ``rest`` are the
    judge's scores of the items without a label. The labelled items must be drawn at random from the judged ones;
    ``weights`` are 1/sampling probability of each labelled item, where the probabilities differ.
    """
    _check_range(labels, 0.0)
    found = _estimate(labels, judged, rest, weights, rare_errors=True)
    estimate = min(1.0, max(0.0, found.estimate))
    interval = effective_interval(estimate, found.variance, found.groups, len(labels), confidence)
    se, judged_items = sqrt(found.variance), len(labels) + len(rest)
    return Corrected(estimate, interval, found.weight, se, len(labels), judged_items, found.groups)


def corrected_difference(
    labels: Sequence[float],
    judged: Sequence[float],
    rest: Sequence[float],
    weights: Sequence[float] | None = None,
    confidence: float = 0.95,
) -> Corrected:
    """The same for paired differences in -1..1, with Student's interval over the labelled items.

    Where all labels are equal, the standard error is that of one further label which differs from them by 1.
    """
    _check_range(labels, -1.0)
    found = _estimate(labels, judged, rest, weights, rare_errors=False)
    estimate = min(1.0, max(-1.0, found.estimate))
    variance = found.variance if max(labels) > min(labels) else max(found.variance, found.groups**-2)
    # as in Student's interval, which this is where the judge has no weight
    se = sqrt(variance * found.groups / (found.groups - 1.0))
    reach = student_quantile(0.5 + _level(confidence) / 2.0, found.groups - 1.0) * se
    low, high = max(-1.0, estimate - reach), min(1.0, estimate + reach)
    interval = Interval(low, high, estimate=estimate, se=se, n=len(labels))
    return Corrected(estimate, interval, found.weight, se, len(labels), len(labels) + len(rest), found.groups)


def rogan_gladen(
    positives: int,
    n: int,
    sensitivity: float,
    m_positive: int,
    specificity: float,
    m_negative: int,
    confidence: float = 0.95,
) -> Corrected:
    """The rate behind a judge's ``positives`` of ``n``, from its sensitivity and specificity on other items.

    These were measured on ``m_positive`` labelled passes and ``m_negative`` labelled failures; their uncertainty is in
    the interval. Correct only if the judge errs on these items as it did on those; use `corrected_mean` where any of
    the items have labels. `ValueError` where sensitivity + specificity - 1 is below 0.1: the rate is not identified.
    """
    _check_judge(positives, n, sensitivity, m_positive, specificity, m_negative)
    information = sensitivity + specificity - 1.0
    if information < _MINIMUM_INFORMATION:
        raise ValueError(
            f"sensitivity {sensitivity:.3f} + specificity {specificity:.3f} - 1 = {information:.3f} is below "
            f"{_MINIMUM_INFORMATION:g}: the judge's verdicts hardly depend on the truth, so they do not identify a rate"
        )
    estimate = min(1.0, max(0.0, (positives / n + specificity - 1.0) / information))
    z = normal_quantile(0.5 + _level(confidence) / 2.0)
    trials = n + z * z
    share = (positives + z * z / 2.0) / trials
    true_positive = (sensitivity * m_positive + 1.0) / (m_positive + 2.0)
    true_negative = (specificity * m_negative + 1.0) / (m_negative + 2.0)
    slope = true_positive + true_negative - 1.0
    rate = (share + true_negative - 1.0) / slope
    of_positives = true_positive * (1.0 - true_positive) / (m_positive + 2.0)
    of_negatives = true_negative * (1.0 - true_negative) / (m_negative + 2.0)
    centre = rate + 2.0 * z * z * (rate * of_positives - (1.0 - rate) * of_negatives)
    variance = share * (1.0 - share) / trials + (1.0 - rate) ** 2 * of_negatives + rate**2 * of_positives
    se = sqrt(variance) / slope
    low, high = (min(1.0, max(0.0, bound)) for bound in (centre - z * se, centre + z * se))
    interval = Interval(min(low, estimate), max(high, estimate), estimate=estimate, se=se, n=n)
    return Corrected(estimate, interval, 1.0, se, m_positive + m_negative, n)


class _Estimate(NamedTuple):
    estimate: float
    variance: float
    weight: float
    groups: float
    """Labelled items; with unequal weights, the number of equally weighted ones of the same information."""


def _estimate(
    labels: Sequence[float],
    judged: Sequence[float],
    rest: Sequence[float],
    weights: Sequence[float] | None,
    *,
    rare_errors: bool,
) -> _Estimate:
    if len(labels) != len(judged):
        raise ValueError(f"{len(labels)} labels but {len(judged)} judge's scores of the same items: pairs are needed")
    if len(labels) < 2:
        raise ValueError(f"at least 2 labels are needed, got {len(labels)}: label more items")
    finite_values([*judged, *rest])
    unit = disagreement_unit(labels) if rare_errors else 0.0
    if weights is not None:
        check_weights(weights, len(labels))
        if not _same(min(weights), max(weights)):
            return _weighted(labels, judged, rest, weights, unit)
    return _unweighted(labels, judged, rest, unit)


def _unweighted(labels: Sequence[float], judged: Sequence[float], rest: Sequence[float], unit: float) -> _Estimate:
    m, n = len(labels), len(rest)
    spread = _squared_deviations([*judged, *rest]) / (m + n - 1)
    weight = 0.0
    if n and spread > 0.0:
        weight = min(1.0, max(0.0, _products(labels, judged) / m / ((1.0 + m / n) * spread)))
    residuals = [label - weight * score for label, score in zip(labels, judged, strict=True)]
    estimate = fsum(residuals) / m
    variance = with_rare_disagreements(_squared_deviations(residuals), unit, weight) / (m * m)
    if weight:
        estimate += weight * fsum(rest) / n
        variance += weight * weight * _squared_deviations(rest) / (n * n)
    return _Estimate(estimate, variance, weight, m)


def _weighted(
    labels: Sequence[float], judged: Sequence[float], rest: Sequence[float], weights: Sequence[float], unit: float
) -> _Estimate:
    """The labelled items are a stratified sample of all items, so the judge's mean is that of all of them."""
    items, m = len(labels) + len(rest), len(labels)
    scale = items / fsum(weights)
    weights = [weight * scale for weight in weights]
    everything = [*judged, *rest]
    spread = _squared_deviations(everything) / (items - 1)
    slope = 0.0
    if rest and spread > 0.0:
        slope = min(1.0, max(0.0, _products(labels, judged, weights) / items / spread))
    residuals = [label - slope * score for label, score in zip(labels, judged, strict=True)]
    estimate = slope * fsum(everything) / items + _mean(residuals, weights)
    # the items are a sample of what could have been asked, and the labelled ones a sample of the items
    variance = _products(labels, labels, weights) / (items * items)
    variance += _sampling_variance(residuals, weights, unit)
    groups = items * items / fsum(weight * weight for weight in weights)
    return _Estimate(estimate, variance, slope * len(rest) / items, min(float(m), max(2.0, groups)))


def disagreement_unit(labels: Sequence[float]) -> float:
    """The squared size of a full disagreement of a judge and labels: 1 where labels are 0 and 1."""
    return (max(labels) - min(labels)) ** 2


def with_rare_disagreements(squares: float, unit: float, weight: float = 1.0) -> float:
    """Squared residuals, plus up to one full disagreement where there are hardly any.

    A hundred labels without a disagreement do not prove that the judge is always right. The less weight it has, the
    less this matters.
    """
    if unit <= 0.0:
        return squares
    return squares + weight * unit * max(0.0, 1.0 - squares / (unit * _ENOUGH_DISAGREEMENTS))


def _sampling_variance(values: Sequence[float], weights: Sequence[float], unit: float) -> float:
    """Of a weighted mean over strata, each without replacement; items of one weight are a stratum."""
    total = fsum(weights)
    variance = 0.0
    for stratum in _strata(values, weights):
        k = len(stratum)
        members, own = [value for value, _ in stratum], [weight for _, weight in stratum]
        mean = _mean(members, own)
        squares = fsum((weight * (value - mean)) ** 2 for value, weight in stratum)
        scale = fsum(weight * weight for weight in own) / k
        spread = scale * with_rare_disagreements(squares / scale, unit) * k / (k - 1)
        variance += spread * max(0.0, 1.0 - k / fsum(own)) / (total * total)
    return variance


def _strata(values: Sequence[float], weights: Sequence[float]) -> list[list[tuple[float, float]]]:
    """Pairs of value and weight by weight; a stratum of one item is joined to the next."""
    ordered = sorted(zip(values, weights, strict=True), key=lambda pair: pair[1])
    strata: list[list[tuple[float, float]]] = []
    for _, group in groupby(ordered, key=lambda pair: f"{pair[1]:.9g}"):
        stratum = list(group)
        if strata and (len(stratum) == 1 or len(strata[-1]) == 1):
            strata[-1].extend(stratum)
        else:
            strata.append(stratum)
    return strata


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return fsum(value * weight for value, weight in zip(values, weights, strict=True)) / fsum(weights)


def _squared_deviations(values: Sequence[float]) -> float:
    mean = fsum(values) / len(values)
    return fsum((value - mean) * (value - mean) for value in values)


def _products(a: Sequence[float], b: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """The weighted sum of products of both deviations from the mean."""
    weights = weights or [1.0] * len(a)
    mean_a, mean_b = _mean(a, weights), _mean(b, weights)
    return fsum(weight * (x - mean_a) * (y - mean_b) for x, y, weight in zip(a, b, weights, strict=True))


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b))


def _check_range(labels: Sequence[float], least: float) -> None:
    for index, label in enumerate(labels):
        if not least <= label <= 1.0:
            raise ValueError(f"label {index} is {label!r}; labels here are numbers from {least:g} to 1")


def _check_judge(
    positives: int, n: int, sensitivity: float, m_positive: int, specificity: float, m_negative: int
) -> None:
    if n < 1 or not 0 <= positives <= n:
        raise ValueError(f"{positives!r} positives of {n!r} items need 0 <= positives <= n and n >= 1")
    for name, value, items in (
        ("sensitivity", sensitivity, m_positive),
        ("specificity", specificity, m_negative),
    ):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must be between 0 and 1, got {value!r}")
        if items < 1:
            raise ValueError(f"{name} was measured on {items!r} labelled items: at least 1 is needed")


def _level(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}")
    return confidence
