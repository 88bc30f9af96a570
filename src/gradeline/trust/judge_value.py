"""What a judge is worth: the number of labels that it saves."""

from __future__ import annotations

from collections.abc import Sequence
from math import atanh, fsum, sqrt, tanh

from gradeline.model.calibration import JudgeValue
from gradeline.stats import corrected_mean
from gradeline.stats.distributions import normal_quantile
from gradeline.trust.judged_label import JudgedLabel

MIN_LABELS_FOR_VALUE = 10
NOTHING = 0.1
"""A judge that is not sure to save this share of its labels saves nothing."""
_HIGHEST = 0.999


def judge_value(
    labelled: Sequence[JudgedLabel], weights: Sequence[float], unlabelled: Sequence[float]
) -> JudgeValue | None:
    """The labels that would be needed for the same interval of the pass rate without the judge.

    ``labelled`` have a verdict of the judge; ``unlabelled`` are its verdicts on the other results, 1 for a pass. None
    where nothing can be said: too few labels, or they are all the same.
    """
    labels = [float(one.passed) for one in labelled]
    verdicts = [float(bool(one.verdict)) for one in labelled]
    count = len(labels)
    if count < MIN_LABELS_FOR_VALUE or len(set(labels)) < 2:
        return None
    correlation = _correlation(labels, verdicts, weights)
    least = _least(correlation, count)
    if not unlabelled:
        ratio = sqrt(1.0 - min(max(correlation, 0.0), _HIGHEST) ** 2)
        share = 1.0
    else:
        with_judge = corrected_mean(labels, verdicts, unlabelled, weights).interval
        without = corrected_mean(labels, [0.0] * count, [0.0] * len(unlabelled), weights).interval
        ratio = min(1.0, (with_judge.high - with_judge.low) / (without.high - without.low))
        share = len(unlabelled) / (count + len(unlabelled))
    saved = count * (1.0 / max(ratio, sqrt(1.0 - _HIGHEST**2)) ** 2 - 1.0)
    low = min(saved, count * (1.0 / (1.0 - least * least * share) - 1.0))
    return JudgeValue(
        labels_saved=saved,
        labels_saved_low=low,
        width_ratio=ratio,
        correlation=correlation,
        projected=not unlabelled,
        sentence=_sentence(count, saved, low, correlation, projected=not unlabelled),
    )


def _correlation(labels: Sequence[float], verdicts: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted correlation of labels and verdicts; 0 for a judge that always gives the same verdict."""
    total = fsum(weights)

    def mean(values: Sequence[float]) -> float:
        return fsum(value * weight for value, weight in zip(values, weights, strict=True)) / total

    def product(a: Sequence[float], b: Sequence[float]) -> float:
        return mean([x * y for x, y in zip(a, b, strict=True)]) - mean(a) * mean(b)

    spread = product(labels, labels) * product(verdicts, verdicts)
    return product(labels, verdicts) / sqrt(spread) if spread > 1e-12 else 0.0


def _least(correlation: float, count: int) -> float:
    """The one-sided 95 % lower bound of a correlation (Fisher's z), at least 0."""
    bounded = max(-_HIGHEST, min(_HIGHEST, correlation))
    return max(0.0, tanh(atanh(bounded) - normal_quantile(0.95) / sqrt(max(1, count - 3))))


def _sentence(count: int, saved: float, low: float, correlation: float, *, projected: bool) -> str:
    where = " in a run with many more results" if projected else ""
    worth = f"{count:,} labels with it are worth about {count + saved:,.0f} without it{where}"
    sure = f"at least {count + low:,.0f}, 95 % sure"
    if low < NOTHING * count:
        why = f"its verdicts hardly follow them (correlation {correlation:.2f})"
        return f"This judge saves no labels: {why}; {worth} ({sure})."
    return f"This judge saves about {saved:,.0f} labels: {worth} ({sure})."
