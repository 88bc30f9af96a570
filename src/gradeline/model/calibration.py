"""Calibrations: a judge measured against labels, as stored."""

from __future__ import annotations

from typing import Literal

import msgspec

from gradeline.model.learned_judging import LabelledConfidences, PanelWeights
from gradeline.model.observation import CalibrationState

CALIBRATION = "calibration"
"""The kind of these records in the store."""

MIN_LABELS = 100
MIN_CLASS = 10
"""Minimum number of labels that pass, and of those that fail."""
MIN_KAPPA = 0.4
"""Minimum of the one-sided 95 % lower bound of kappa."""
MAX_MISSING = 0.05
"""Maximum share of results that the judge gave no verdict on."""

Bounds = tuple[float, float]
"""The ends of an interval."""


class JudgeState(msgspec.Struct, frozen=True):
    """Whether a grader's judge is calibrated, and why."""

    state: CalibrationState
    reason: str

    @property
    def note(self) -> str:
        """``judge expired: the prompt changed since 2026-11-19``."""
        return f"judge {self.state}: {self.reason}"


class AgreementTable(msgspec.Struct, frozen=True, kw_only=True):
    """Labels by the judge's verdict; weighted counts where labels were drawn with unequal probabilities."""

    tp: float
    """Passes of both."""
    fp: float
    """The judge passes what the label fails."""
    fn: float
    """The judge fails what the label passes."""
    tn: float
    """Failures of both."""
    missing: float = 0.0
    """Labels without a verdict of the judge."""


class KappaEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Cohen's kappa with its 95 % interval."""

    estimate: float
    low: float
    high: float


class ScoreBin(msgspec.Struct, frozen=True, kw_only=True):
    """The labels whose scores are in one bin, for a calibration curve."""

    low: float
    high: float
    labels: int
    score: float
    """The mean of the judge's scores."""
    passed: float
    """The share of labels that pass."""
    isotonic: float
    """The share at the mean score by a curve that never falls."""


class CurveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How the judge's scores relate to the labels."""

    bins: tuple[ScoreBin, ...]
    brier: float
    """Mean squared difference of score and label."""
    ece: float
    """Expected calibration error over the bins."""


class LengthRule(msgspec.Struct, frozen=True, kw_only=True):
    """The agreement of a rule that sees only lengths with the same labels."""

    kind: Literal["longer_wins", "longer_passes"]
    """Of two answers the longer wins; or answers from a length on pass."""
    agreement: float
    labels: int
    threshold: int | None = None
    """The length in characters from which an answer passes, learned from all labels; 0: every answer passes, None: no
    length is best, or the rule has none."""


class TagAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """The labels of the cases with one tag."""

    tag: str
    labels: int
    positives: int
    negatives: int
    missing: int = 0
    agreement: float | None = None
    """None below the minimum number of labels, as for the other numbers."""
    kappa: float | None = None
    sensitivity: float | None = None
    specificity: float | None = None


class JudgeValue(msgspec.Struct, frozen=True, kw_only=True):
    """What the judge's verdicts add to the labels: the interval with both, next to that of the labels only."""

    labels_saved: float
    """Labels that would give the same interval without the judge, less those that there are."""
    labels_saved_low: float
    """The same at the lower 95 % bound of the correlation."""
    width_ratio: float
    correlation: float
    projected: bool = False
    """For a run with many more results, because most results of this one have a label."""
    sentence: str


class Calibration(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """A judge measured against labels (or a named method), with the state that followed.

    The record is about one judge with one prompt: when any of them changes, it has expired. Weighted numbers are
    those of the run's results, whatever the way in which labels were drawn.
    """

    suite: str
    grader: str
    question: str
    """The question that the labels answer."""
    run: str
    judge: tuple[str, ...]
    """The adapter ids of its models."""
    judge_fingerprint: str
    prompt_hash: str = ""
    rubric_version: str = ""
    """The id of a shipped rubric; empty for the suite's own text."""
    served: tuple[str, ...] = ()
    """The models that answered, as the provider named them in its replies; empty if it named none."""
    at: str
    state: CalibrationState
    """``calibrated`` or ``failed``, as of that time."""
    reasons: tuple[str, ...] = ()
    """Why it failed."""
    against: str | None = None
    """The method that replaces people's labels; None: labels of people."""
    labels: int
    """Labelled results, with or without a verdict of the judge."""
    positives: int
    negatives: int
    unresolved: int = 0
    """Results on which raters disagree without an adjudication; not among the labels."""
    stale: int = 0
    """Labels of responses that were replaced since; not among the labels."""
    weighted: bool = False
    """Whether labels were drawn with unequal, known probabilities."""
    unknown_probability: int = 0
    """Labels that were not drawn at random, as far as is known."""
    table: AgreementTable
    agreement: float | None = None
    agreement_ci: Bounds | None = None
    kappa: KappaEstimate | None = None
    kappa_lower: float | None = None
    """One-sided 95 % bound."""
    sensitivity: float | None = None
    sensitivity_ci: Bounds | None = None
    specificity: float | None = None
    specificity_ci: Bounds | None = None
    missing_rate: float
    """The share of the run's results that the judge gave no verdict on."""
    missing: int = 0
    """The number of these results."""
    results: int = 0
    """The run's results that the judge was to grade."""
    curve: CurveSummary | None = None
    length_rule: LengthRule | None = None
    tags: tuple[TagAgreement, ...] = ()
    cost: float | None = None
    """Of the judge, for the labelled results; None: unknown."""
    cost_per_agreement: float | None = None
    value: JudgeValue | None = None
    notes: tuple[str, ...] = ()
    panel: PanelWeights | None = None
    selective: LabelledConfidences | None = None

    @property
    def conclusive(self) -> bool:
        """Whether the labels are enough to tell; without enough of them it failed, and an older record still counts."""
        return self.labels >= MIN_LABELS and min(self.positives, self.negatives) >= MIN_CLASS

    @property
    def labels_saved(self) -> float | None:
        """The labels that the judge saves; None where that is unknown."""
        return None if self.value is None else self.value.labels_saved

    @property
    def headline(self) -> str:
        """``agreement 0.91, kappa 0.82 (0.74–0.90) on 200 labels``."""
        parts = [] if self.agreement is None else [f"agreement {self.agreement:.3f}"]
        if self.kappa is not None:
            parts.append(f"kappa {self.kappa.estimate:.2f} ({self.kappa.low:.2f}–{self.kappa.high:.2f})")
        judged = self.labels if self.curve is None else sum(one.labels for one in self.curve.bins)
        counted = f"{self.labels:,}" if judged == self.labels else f"{judged:,} of {self.labels:,}"
        return f"{', '.join(parts) or 'no agreement to measure'} on {counted} {self.reference}"

    @property
    def reference(self) -> str:
        """What the judge was compared with, as a noun that fits the number of labels."""
        ending = "" if self.labels == 1 else "s"
        return f"label{ending}" if self.against is None else f"verdict{ending} of {self.against}"
