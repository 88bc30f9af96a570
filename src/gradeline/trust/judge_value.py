"""What a judge is worth: the number of labels that it saves."""

from __future__ import annotations

from collections.abc import Sequence
from math import atanh, sqrt, tanh

from gradeline.model.calibration import JudgeValue
from gradeline.stats import Confusion, clopper_pearson, corrected_mean
from gradeline.stats.distributions import normal_quantile
from gradeline.stats.intervals import effective_interval
from gradeline.trust.label_and_verdict import LabelAndVerdict, agreement_table

MIN_LABELS_FOR_VALUE = 10
NOTHING = 0.1
"""A judge that is not sure to save this share of its labels saves nothing."""
_ENOUGH_ERRORS = 5
"""With fewer errors on the labels, their share is too uncertain: up to one more is assumed."""
_ALMOST_ONE = 1.0 - 1e-9


def judge_value(
    labelled: Sequence[LabelAndVerdict], weights: Sequence[float], unlabelled: Sequence[float]
) -> JudgeValue | None:
    """The labels that would be needed for the same interval of the pass rate without the judge.

    ``labelled`` have a verdict of the judge; ``unlabelled`` are its verdicts on the other results, 1 for a pass. Where
    these are fewer than the labels, the value is that in a run with many more. None where nothing can be said: too few
    labels, or they are all the same.
    """
    labels = [float(one.passed) for one in labelled]
    verdicts = [float(bool(one.verdict)) for one in labelled]
    count = len(labels)
    if count < MIN_LABELS_FOR_VALUE or len(set(labels)) < 2:
        return None
    table = agreement_table(labelled, weights)
    wrong = (table.fp + table.fn) / table.n
    correlation = _correlation(_with_errors(table, wrong + max(0.0, 1.0 / count - wrong / _ENOUGH_ERRORS)))
    least = _least(correlation, count)
    if wrong * count < _ENOUGH_ERRORS:
        most = clopper_pearson(round(wrong * count), count, 0.9).high
        least = min(least, max(0.0, _correlation(_with_errors(table, most))))
    projected = len(unlabelled) < count
    if projected:
        ratio = sqrt(1.0 - max(correlation, 0.0) ** 2)
        share = 1.0
    else:
        with_judge = corrected_mean(labels, verdicts, unlabelled, weights).interval
        rate = table.positives / table.n
        without = effective_interval(rate, rate * (1.0 - rate) / count, count, count)  # drawn at random
        ratio = min(1.0, (with_judge.high - with_judge.low) / (without.high - without.low))
        share = len(unlabelled) / (count + len(unlabelled))
    saved = count * (1.0 / ratio**2 - 1.0)
    low = count * (1.0 / (1.0 - least * least * share) - 1.0)
    return JudgeValue(
        labels_saved=saved,
        labels_saved_low=min(saved, low),
        width_ratio=ratio,
        correlation=correlation,
        projected=projected,
        sentence=_sentence(count, saved, low, correlation, projected=projected),
    )


def _with_errors(table: Confusion, share: float) -> Confusion:
    """The table with this share of errors of the judge: with few labels, it may err more often than on them."""
    right, wrong = (table.tp + table.tn) / table.n, (table.fp + table.fn) / table.n
    if right <= 0.0 or share <= wrong:
        return table
    kept = (1.0 - share) / right
    fp, fn = (table.fp, table.fn) if wrong > 0.0 else (table.tn, table.tp)
    more = share * table.n / (fp + fn)
    return Confusion(table.tp * kept, fp * more, fn * more, table.tn * kept)


def _correlation(table: Confusion) -> float:
    """The correlation of labels and verdicts; 0 for a judge that always gives the same verdict."""
    judged = (table.tp + table.fp) * (table.fn + table.tn)
    spread = judged * table.positives * table.negatives
    return (table.tp * table.tn - table.fp * table.fn) / sqrt(spread) if spread > 0.0 else 0.0


def _least(correlation: float, count: int) -> float:
    """The one-sided 95 % lower bound of a correlation (Fisher's z), at least 0."""
    return max(0.0, tanh(atanh(max(-_ALMOST_ONE, correlation)) - normal_quantile(0.95) / sqrt(max(1, count - 3))))


def _sentence(count: int, saved: float, low: float, correlation: float, *, projected: bool) -> str:
    where = " in a run with many more results" if projected else ""
    worth = f"{count:,} labels with it are worth about {count + saved:,.0f} without it{where}"
    sure = f"at least {count + min(saved, low):,.0f}, 95 % sure"
    if low < NOTHING * count:
        why = f"its verdicts hardly follow them (correlation {correlation:.2f})"
        return f"This judge saves no labels: {why}; {worth} ({sure})."
    if saved < NOTHING * count:
        return f"This judge saves hardly any labels of this run, although it follows them: {worth}."
    return f"This judge saves about {saved:,.0f} labels: {worth} ({sure})."
