"""Selective judging: a judge decides only where labels show that its verdicts agree with people often enough.

The confidence of a verdict is how far its score is from the score that passes. On labels, a threshold of confidence is
found above which verdicts agree in the wanted share of the cases; below it a second model judges, or no one does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from math import ceil, log
from typing import Any, NamedTuple

from gradeline.errors import UNSURE, GraderError
from gradeline.model import GradeResult
from gradeline.model.learned_judging import LabelledConfidences, SelectiveThreshold
from gradeline.stats.distributions import beta_cdf

SURE = 0.9
"""The probability that a promised agreement holds."""
SELECTIVE = "selective"
"""The key of a grade's metadata about its confidence."""
FIRST, SECOND, NO_ONE = "first", "second", "no one"
"""Who gave the verdict that counts."""
_FIRST_LOOK, _LOOKS = 0.25, 16
"""Tested are the surest 25 %, 30 % … 100 % of the labelled verdicts."""
_EQUAL_CHANCE, _FAIR_CHANCE = 0.02, 0.5
_ROUNDING = 1e-9


class UnsureError(GraderError):
    """The judge's verdict is less certain than the agreement that the suite requires."""

    type = UNSURE

    def __init__(self, message: str, rationale: str | None, metadata: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.rationale = rationale
        self.metadata = metadata


class Confidence(NamedTuple):
    """A judge's own verdict, before any of it counts."""

    score: float
    passed: bool
    confidence: float
    """From 0 to 1."""

    @classmethod
    def of(cls, score: float, pass_score: float) -> Confidence:
        """The distance of the score from the one that passes, as a share of what is possible on its side."""
        passed = score >= pass_score
        room = 1 - pass_score if passed else pass_score
        return cls(score, passed, abs(score - pass_score) / room if room > 0 else 1.0)

    @classmethod
    def of_probability(cls, probability: float, pass_score: float) -> Confidence:
        """The probability that the verdict is right, where the score is the probability of a pass.

        In whole percents: the models of two folds give the same scores slightly different probabilities.
        """
        passed = probability >= pass_score
        return cls(probability, passed, round(probability if passed else 1 - probability, 2))


def stored_confidence(metadata: Mapping[str, Any]) -> Confidence | None:
    """The judge's own verdict from the metadata of a grade, whether it counted or not; None where it is not stored."""
    data = metadata.get(SELECTIVE)
    if not isinstance(data, Mapping):
        return None
    score, passed, confidence = (data.get(name) for name in Confidence._fields)
    if not isinstance(score, int | float) or not isinstance(passed, bool) or not isinstance(confidence, int | float):
        return None
    return Confidence(float(score), passed, float(confidence))


def first_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata of the first judge, where a second one gave the grade."""
    data = metadata.get(SELECTIVE)
    first = data.get("first") if isinstance(data, Mapping) else None
    return first if isinstance(first, Mapping) else metadata


def least_labels(agreement: float) -> int:
    """The number of labels below which not even full agreement shows the wanted one."""
    return ceil(log(1 - SURE) / log(agreement) - _ROUNDING)


def selective_threshold(labelled: LabelledConfidences, agreement: float) -> SelectiveThreshold:
    """The lowest confidence from which verdicts agree with the labels often enough.

    Fixed-sequence testing: some of the surest verdicts are tested first, then ever more of them, each by the one-sided
    Clopper-Pearson bound at the full error rate; the first that fails ends the sequence. How many are tested first
    depends only on the confidences. With weights, the counts are those of the effective number of labels.
    """
    labels = len(labelled.agreed)
    looks = [look for look in _looks(labelled) if look.effective >= least_labels(agreement) - _ROUNDING]
    sequence = looks[_first(looks, agreement, probabilities=labelled.probabilities) :]
    shown = list(takewhile(lambda look: look.shows(agreement), sequence))
    if not shown:
        reason = _reason(agreement, labels, sequence[0] if sequence else None)
        return SelectiveThreshold(agreement=agreement, sure=SURE, labels=labels, reason=reason)
    last = shown[-1]
    return SelectiveThreshold(
        agreement=agreement,
        sure=SURE,
        labels=labels,
        threshold=last.confidence,
        decided=last.labels,
        agreed=last.agreed,
    )


class _Look(NamedTuple):
    """The verdicts that are at least as confident as one of them."""

    confidence: float
    mean_confidence: float
    labels: int
    agreed: int
    effective: float
    """Number of equally weighted labels that would say as much."""
    share: float
    """Weighted share that agrees."""

    def shows(self, agreement: float) -> bool:
        """Whether the true share is at least this one, at the error rate of the test."""
        return _is_unlikely(self.share * self.effective, self.effective, agreement)

    def chance(self, agreement: float, true_share: float) -> float:
        """The probability that this look shows the agreement, if the true share is this one."""
        number = int(self.effective + _ROUNDING)
        least = bisect_left(range(number + 1), True, key=lambda agreed: _is_unlikely(agreed, number, agreement))
        return beta_cdf(true_share, least, number - least + 1) if 0 < least <= number else 0.0


def _is_unlikely(agreed: float, number: float, agreement: float) -> bool:
    """Whether so many verdicts would seldom agree if the true share were the wanted one."""
    return agreed > 0 and beta_cdf(agreement, agreed, number - agreed + 1) <= 1 - SURE + _ROUNDING


def _first(looks: Sequence[_Look], agreement: float, *, probabilities: bool) -> int:
    """The place of the first look: the one that will most likely succeed, by the confidences alone.

    Where confidences are no probabilities, the first that has a fair chance if verdicts disagree half as often as is
    allowed.
    """
    if not looks:
        return 0
    if probabilities:
        chances = [look.chance(agreement, look.mean_confidence) for look in looks]
        wanted = max(chances) - _EQUAL_CHANCE
    else:
        chances = [look.chance(agreement, (1 + agreement) / 2) for look in looks]
        wanted = min(_FAIR_CHANCE, max(chances))
    return next(place for place, chance in enumerate(chances) if chance >= wanted)


def _looks(labelled: LabelledConfidences) -> Iterator[_Look]:
    """The surest 25 %, 30 % … 100 % of the verdicts; equally sure ones come together."""
    weights: Sequence[float] = labelled.weights or (1.0,) * len(labelled.agreed)
    rows = sorted(zip(labelled.confidences, labelled.agreed, weights, strict=True), key=lambda row: -row[0])
    step = (1 - _FIRST_LOOK) / (_LOOKS - 1)
    last = agreed = 0
    total = squares = agreeing = sure = 0.0
    for number in range(_LOOKS):
        wanted = ceil((_FIRST_LOOK + step * number) * len(rows) - _ROUNDING)
        if wanted <= last:
            continue  # equal confidences were all counted before
        while last < len(rows) and (last < wanted or rows[last][0] == rows[last - 1][0]):
            confidence, right, weight = rows[last]
            total, squares, sure = total + weight, squares + weight * weight, sure + weight * confidence
            agreeing, agreed = agreeing + weight * right, agreed + right
            last += 1
        yield _Look(rows[last - 1][0], sure / total, last, agreed, total * total / squares, agreeing / total)


def _reason(agreement: float, labels: int, tested: _Look | None) -> str:
    """Why the labels support no threshold."""
    wanted = f"an agreement of {agreement:g}"
    if tested is None:
        more = least_labels(agreement)
        return f"{labels} labels cannot show {wanted}, which needs at least {more}; label {max(more - labels, 1)} more"
    share = f"{tested.agreed} of the {tested.labels} surest verdicts agree with the labels"
    if tested.agreed / tested.labels < agreement:
        return f"its confidence does not tell right from wrong verdicts well enough for {wanted}: only {share}"
    return f"too few labels to be {SURE * 100:g} % sure of {wanted}: {share}; label more"


def not_measured(agreement: float) -> SelectiveThreshold:
    """The threshold of a judge that was never compared with labels: every verdict counts, and nothing is promised."""
    return SelectiveThreshold(agreement=agreement, sure=SURE, labels=0, reason="the judge is not calibrated")


def decided_first(result: GradeResult, threshold: SelectiveThreshold, own: Confidence) -> GradeResult:
    """The judge's own result."""
    metadata = {**result.metadata, SELECTIVE: _metadata(threshold, own, FIRST)}
    return GradeResult(result.score, result.rationale, metadata, result.passed)


def decided_second(
    result: GradeResult, other: GradeResult, threshold: SelectiveThreshold, own: Confidence
) -> GradeResult:
    """The result of the second judge; the first one's is in its metadata."""
    metadata = {**_metadata(threshold, own, SECOND), "first": result.metadata, "rationale": result.rationale}
    own_data = other.metadata.get(SELECTIVE)
    if own_data is not None:
        metadata["second"] = own_data
    return GradeResult(other.score, other.rationale, {**other.metadata, SELECTIVE: metadata}, other.passed)


def unsure(
    result: GradeResult, threshold: SelectiveThreshold, own: Confidence, failed: GraderError | None = None
) -> UnsureError:
    """The error of a verdict that does not count, with the verdict in its metadata."""
    verdict = "pass" if own.passed else "fail"
    if threshold.threshold is None:
        why = f"no confidence is enough: {threshold.reason}"
    else:
        why = f"its confidence {own.confidence:.3f} is below {threshold.threshold:.3f}"
    message = f"the judge is not sure of its verdict ({verdict}, score {own.score:.3f}): {why}"
    if failed is not None:
        message += f"; the second judge gave none: {failed}"
    metadata = {**result.metadata, SELECTIVE: _metadata(threshold, own, NO_ONE)}
    return UnsureError(message, result.rationale, metadata)


def _metadata(threshold: SelectiveThreshold, own: Confidence, decided: str) -> dict[str, Any]:
    shown = {"agreement": threshold.agreement, "threshold": threshold.threshold, "measured": threshold.measured}
    return {**shown, **own._asdict(), "decided": decided}
