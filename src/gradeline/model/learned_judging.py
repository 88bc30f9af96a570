"""What a judge learns from labels: the weights of a panel, and from which confidence a verdict is relied on."""

from __future__ import annotations

from typing import Protocol

import msgspec


class LabelledConfidences(msgspec.Struct, frozen=True, kw_only=True):
    """For each labelled result, how confident the judge was, and whether its verdict agreed with the label."""

    confidences: tuple[float, ...]
    """From 0 to 1, higher is surer; comparable only within one judge."""
    agreed: tuple[bool, ...]


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
    def coverage(self) -> float | None:
        """The share of labels that the threshold decides; None without labels."""
        return self.decided / self.labels if self.labels else None


class PanelModel(msgspec.Struct, frozen=True):
    """A ridge-logistic model over the scores of a panel's members."""

    coefficients: tuple[float, ...]
    intercept: float


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


class LearnedJudging(Protocol):
    """What a calibration holds for the judge itself."""

    @property
    def panel(self) -> PanelWeights | None: ...

    @property
    def selective(self) -> LabelledConfidences | None: ...
