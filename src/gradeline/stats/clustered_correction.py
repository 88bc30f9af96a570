"""Corrected rates and differences of items that are not independent: repeats of one case, cases of one cluster."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import fsum, sqrt
from typing import NamedTuple

from gradeline.stats.distributions import student_quantile
from gradeline.stats.intervals import Interval, effective_interval
from gradeline.stats.prediction_powered import Corrected, disagreement_unit, with_rare_disagreements


def clustered_mean(
    labels: Sequence[float],
    judged: Sequence[float],
    rest: Sequence[float],
    clusters: Sequence[Hashable],
    weights: Sequence[float] | None = None,
    confidence: float = 0.95,
) -> Corrected:
    """`corrected_mean` of items in clusters: those of the labelled items, then those of the rest."""
    found = _estimate(labels, judged, rest, clusters, weights, disagreement_unit(labels))
    estimate = min(1.0, max(0.0, found.estimate))
    interval = effective_interval(estimate, found.variance, found.groups, len(labels), confidence)
    return found.corrected(estimate, interval, len(labels), len(rest))


def clustered_difference(
    labels: Sequence[float],
    judged: Sequence[float],
    rest: Sequence[float],
    clusters: Sequence[Hashable],
    weights: Sequence[float] | None = None,
    confidence: float = 0.95,
) -> Corrected:
    """`corrected_difference` of items in clusters, with Student's interval over the clusters of labelled items."""
    found = _estimate(labels, judged, rest, clusters, weights, 0.0)
    estimate, se = min(1.0, max(-1.0, found.estimate)), sqrt(found.variance)
    reach = student_quantile(0.5 + confidence / 2.0, found.groups - 1.0) * se
    interval = Interval(
        max(-1.0, estimate - reach), min(1.0, estimate + reach), estimate=estimate, se=se, n=len(labels)
    )
    return found.corrected(estimate, interval, len(labels), len(rest))


class _Found(NamedTuple):
    estimate: float
    variance: float
    weight: float
    groups: float

    def corrected(self, estimate: float, interval: Interval, labels: int, rest: int) -> Corrected:
        return Corrected(estimate, interval, self.weight, sqrt(self.variance), labels, labels + rest, self.groups)


def _estimate(
    labels: Sequence[float],
    judged: Sequence[float],
    rest: Sequence[float],
    clusters: Sequence[Hashable],
    weights: Sequence[float] | None,
    unit: float,
) -> _Found:
    m, items = len(labels), len(labels) + len(rest)
    if len(clusters) != items:
        raise ValueError(f"{items} items but {len(clusters)} clusters; pass one for each item")
    if len(judged) != m:
        raise ValueError(f"{m} labels but {len(judged)} judge's scores of the same items: pairs are needed")
    shares = _shares(weights, m)
    scores = [*judged, *rest]
    mean_score = fsum(scores) / items
    slope = _slope(labels, judged, shares, scores, mean_score) if rest else 0.0
    residuals = [label - slope * score for label, score in zip(labels, judged, strict=True)]
    mean_residual = _mean(residuals, shares)
    # each item's part of the error of the estimate
    parts = [slope * (score - mean_score) / items for score in scores]
    for place, (residual, share) in enumerate(zip(residuals, shares, strict=True)):
        parts[place] += share * (residual - mean_residual)
    groups = len(set(clusters[:m]))
    if groups < 2:
        raise ValueError(f"the labelled items are of {groups} cluster: at least 2 are needed")
    variance = groups / (groups - 1) * fsum(total * total for total in _sums(parts, clusters))
    squares = fsum((residual - mean_residual) ** 2 for residual in residuals)
    variance += (with_rare_disagreements(squares, unit, slope) - squares) / (m * m)
    effective = 1.0 / fsum(share * share for share in shares)
    return _Found(
        slope * mean_score + mean_residual,
        variance,
        slope * len(rest) / items,
        max(2.0, min(float(groups), effective)),
    )


def _shares(weights: Sequence[float] | None, count: int) -> list[float]:
    """The weights as shares of their sum."""
    if weights is None:
        return [1.0 / count] * count
    if len(weights) != count:
        raise ValueError(f"{count} labels but {len(weights)} weights; pass one for each label")
    total = fsum(weights)
    return [weight / total for weight in weights]


def _slope(
    labels: Sequence[float],
    judged: Sequence[float],
    shares: Sequence[float],
    scores: Sequence[float],
    mean_score: float,
) -> float:
    spread = fsum((score - mean_score) ** 2 for score in scores) / (len(scores) - 1)
    if spread <= 0.0:
        return 0.0
    mean_label, mean_judged = _mean(labels, shares), _mean(judged, shares)
    products = fsum(
        share * (label - mean_label) * (score - mean_judged)
        for share, label, score in zip(shares, labels, judged, strict=True)
    )
    return min(1.0, max(0.0, products / spread))


def _mean(values: Sequence[float], shares: Sequence[float]) -> float:
    return fsum(value * share for value, share in zip(values, shares, strict=True))


def _sums(parts: Sequence[float], clusters: Sequence[Hashable]) -> list[float]:
    members: dict[Hashable, list[float]] = {}
    for part, cluster in zip(parts, clusters, strict=True):
        members.setdefault(cluster, []).append(part)
    return [fsum(group) for group in members.values()]
