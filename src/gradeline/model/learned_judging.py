"""What a judge learns from labels: the weights of a panel, and from which confidence a verdict is relied on."""

from __future__ import annotations

from hashlib import sha256
from typing import Literal, Protocol

import msgspec

from gradeline.model.fingerprint import fingerprint

_ROUNDING = 1e-9

PanelWeighting = Literal["equal", "unlearned", "learned"]
"""How a panel weights its members; ``unlearned``: weights from labels are wanted, and there are none yet."""


class LabelledConfidences(msgspec.Struct, frozen=True, kw_only=True):
    """For each labelled result, how confident the judge was, and whether its verdict agreed with the label."""

    confidences: tuple[float, ...]
    """From 0 to 1, higher is surer; comparable only within one judge."""
    agreed: tuple[bool, ...]
    weights: tuple[float, ...] = ()
    """How many results each label stands for, where labels were drawn with unequal probabilities; empty: equal."""
    probabilities: bool = False
    """Whether a confidence is the probability that the verdict agrees, by a model learned from other labels."""

    @property
    def consistent(self) -> bool:
        """Whether there is one of each for every label, as in what a calibration learned; a file may hold anything."""
        weights = self.weights or (1.0,) * len(self.agreed)
        return len(self.confidences) == len(self.agreed) == len(weights) and all(weight > 0 for weight in weights)


class SelectiveThreshold(msgspec.Struct, frozen=True, kw_only=True):
    """The confidence from which a judge's verdicts agree with labels in at least ``agreement`` of the cases.

    Without a ``threshold`` the labels support no such promise, and ``reason`` says why.
    """

    agreement: float
    """The promised share of decided cases in which the verdict agrees with the label."""
    sure: float
    """The probability that the promise holds, over draws of the labels."""
    labels: int
    threshold: float | None = None
    decided: int = 0
    """Number of labels whose verdict is at least as confident as the threshold."""
    agreed: int = 0
    """Of these, the ones whose verdict agrees with the label."""
    reason: str = ""

    @property
    def measured(self) -> bool:
        """Whether there are labels at all; without any, every verdict counts and nothing is promised."""
        return self.labels > 0

    @property
    def promised(self) -> bool:
        """Whether the labels support the promise for verdicts of some confidence."""
        return self.threshold is not None

    @property
    def coverage(self) -> float | None:
        """The share of labels that the threshold decides; None without labels."""
        return self.decided / self.labels if self.labels else None

    def counts(self, confidence: float) -> bool:
        """Whether a verdict of this confidence counts."""
        if not self.measured:
            return True
        return self.threshold is not None and confidence >= self.threshold - _ROUNDING


class PanelModel(msgspec.Struct, frozen=True):
    """A logistic model over the standardized scores of a panel's members."""

    coefficients: tuple[float, ...]
    intercept: float


class MemberScores(msgspec.Struct, frozen=True, kw_only=True):
    """How a panel's members usually score, and how their scores go together; learned without the labels' verdicts.

    A missing score is estimated from those of the other members.
    """

    means: tuple[float, ...]
    deviations: tuple[float, ...]
    """Standard deviations; 0 for a member that always gives the same score."""
    correlations: tuple[tuple[float, ...], ...]
    results: int
    """The number of results they are from."""


class MemberGain(msgspec.Struct, frozen=True, kw_only=True):
    """What one member adds to a panel, all figures on labels that the weights were not learned from."""

    judge: str
    """ID of its adapter."""
    scored: int
    """Number of labelled results that it scored."""
    agreement: float | None
    """Its own agreement with the labels; None if it scored none."""
    gain: float
    """The panel's agreement minus that of the panel without this member."""


class PanelWeights(msgspec.Struct, frozen=True, kw_only=True):
    """The weights of a panel's members, learned from labels.

    One model per fold of cases, each learned from the labels of all other folds: the score of a case never depends on
    that case's own label.
    """

    members: tuple[str, ...]
    """IDs of the members' adapters, in order."""
    models: tuple[PanelModel, ...]
    scores: MemberScores
    labels: int
    positives: int
    ridge: float
    agreement: float
    """Agreement with the labels, cross-validated."""
    unweighted_agreement: float
    """Agreement of the plain mean or median."""
    gains: tuple[MemberGain, ...] = ()
    confidences: LabelledConfidences | None = None
    """Cross-validated."""

    @property
    def consistent(self) -> bool:
        """Whether every model and number is about the same members, as in what a calibration learned."""
        size = len(self.members)
        sizes = {len(self.scores.means), len(self.scores.deviations), len(self.scores.correlations)}
        sizes |= {len(row) for row in self.scores.correlations} | {len(one.coefficients) for one in self.models}
        return bool(self.models) and sizes == {size} and (self.confidences is None or self.confidences.consistent)

    @property
    def digest(self) -> str:
        """Changes with the scores that the weights give."""
        models = [(one.coefficients, one.intercept) for one in self.models]
        return fingerprint("panel weights", self.members, models, msgspec.to_builtins(self.scores))


def fold_of(case: str, folds: int) -> int:
    """The fold of a case; all responses to a case are in one fold."""
    return int.from_bytes(sha256(case.encode()).digest()[:8]) % folds


class LearnedJudging(Protocol):
    """What a calibration holds for the judge itself."""

    @property
    def panel(self) -> PanelWeights | None: ...

    @property
    def selective(self) -> LabelledConfidences | None: ...
