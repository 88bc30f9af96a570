"""The confidence of a judge on labelled results, from which thresholds for selective judging follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gradeline.judges.selective import Confidence, first_metadata, selective_threshold, stored_confidence
from gradeline.model.grade import PASS_SCORE, Grade
from gradeline.model.learned_judging import LabelledConfidences, SelectiveThreshold

SHOWN_AGREEMENTS = (0.8, 0.85, 0.9, 0.95)
"""The agreements for which a calibration shows what share the judge could decide."""


class LabelledVerdict(NamedTuple):
    """A judge's own verdict on a labelled result."""

    own: Confidence
    passed: bool
    """The label."""
    weight: float = 1.0
    """How many results the label stands for."""


def own_verdict(grade: Grade, pass_score: float = PASS_SCORE) -> Confidence | None:
    """The judge's own verdict, whether its verdict counted or not; None if it gave no score.

    For a panel with weights, this is the verdict of the plain mean or median.
    """
    weights: Any = first_metadata(grade.metadata).get("weights")
    unweighted = weights.get("unweighted") if isinstance(weights, Mapping) else None
    if isinstance(unweighted, int | float):
        return Confidence.of(float(unweighted), pass_score)
    stored = stored_confidence(grade.metadata)
    if stored is not None:
        return Confidence.of(stored.score, pass_score)
    return None if grade.score is None else Confidence.of(grade.score, pass_score)


def learn(verdicts: Sequence[LabelledVerdict]) -> LabelledConfidences | None:
    """The confidences of the verdicts and whether they agree with the labels; None without labels.

    No weights are learned from these labels, so all of them may be used for thresholds.
    """
    if not verdicts:
        return None
    weights = tuple(verdict.weight for verdict in verdicts)
    return LabelledConfidences(
        confidences=tuple(verdict.own.confidence for verdict in verdicts),
        agreed=tuple(verdict.own.passed is verdict.passed for verdict in verdicts),
        weights=weights if len(set(weights)) > 1 else (),
    )


def shown_thresholds(labelled: LabelledConfidences) -> list[SelectiveThreshold]:
    """What share a judge could decide, for some agreements."""
    return [selective_threshold(labelled, agreement) for agreement in SHOWN_AGREEMENTS]
