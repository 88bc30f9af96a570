"""The difference of two runs that a judge scored, corrected by the cases that are labelled in both."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

import msgspec

from gradeline.stats.clustered_correction import clustered_difference
from gradeline.stats.distributions import student_two_sided
from gradeline.stats.prediction_powered import Corrected, corrected_difference
from gradeline.verdict.corrected import (
    ADDS_NOTHING,
    MIN_LABELS,
    CorrectedMeasure,
    CorrectionMethod,
    CorrectionRefusedError,
    not_drawn_text,
    nothing_added,
)
from gradeline.verdict.evidence import Clustering, Range

_FEW_CHANGES = 5
SAME_CASES = " --sample 100 --random --seed 1"
"""Draws the same cases in two runs."""


class LabelledPair(NamedTuple):
    """A case of two runs: the candidate's score minus the baseline's, by the judge and by labels."""

    group: int
    judged: float
    """Over all results of the case."""
    label: float | None = None
    """None without a label in both runs."""
    judged_labelled: float = 0.0
    """The judge's difference over the labelled results."""
    probability: float | None = None
    """The probability that both are labelled; None if that is unknown."""


class LabelledPairs(NamedTuple):
    """One grader's scores in two runs, with the labels of each."""

    pairs: Sequence[LabelledPair] = ()
    """The cases with a score of the judge in both runs."""
    baseline_labels: int = 0
    candidate_labels: int = 0
    """Cases with a label in each run."""
    measure: CorrectedMeasure = "pass_rate"
    cases: Clustering | None = None
    """The labelled cases and their clusters, if the runs have clusters."""
    obstacle: str | None = None
    """Why these runs cannot be compared on labels."""
    baseline_command: str = "gradeline label BASE"
    candidate_command: str = "gradeline label CAND"

    @property
    def any(self) -> bool:
        """Whether any case has a label."""
        return bool(self.baseline_labels or self.candidate_labels)


class CorrectedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of two runs by a judge, and what people would say; ``refusal`` says why there is no estimate."""

    measure: CorrectedMeasure
    judge: float | None
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    labels: int = 0
    """Cases with a label in both runs."""
    weight: float | None = msgspec.field(default=None, name="lambda")
    method: CorrectionMethod | None = None
    refusal: str | None = None
    missing_labels: int | None = None
    notes: tuple[str, ...] = ()
    sentence: str = ""
    """``+0.030 judge → -0.052 (-0.110…+0.006), 100 cases labelled in both runs``."""

    @property
    def interval(self) -> Range | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


def corrected_pairs(pairs: LabelledPairs, confidence: float = 0.95) -> CorrectedDifference:
    """The difference of two runs by the cases that are labelled in both."""
    judge = fsum(pair.judged for pair in pairs.pairs) / len(pairs.pairs) if pairs.pairs else None
    labelled = [pair for pair in pairs.pairs if pair.label is not None]
    own = "" if judge is None else f"{judge:+.3f} judge"
    try:
        drawn = _drawn_pairs(pairs, labelled)
    except CorrectionRefusedError as refusal:
        return CorrectedDifference(
            measure=pairs.measure,
            judge=judge,
            labels=len(labelled),
            refusal=refusal.reason,
            missing_labels=refusal.missing,
            sentence=f"{own}{', ' if own else ''}not corrected: {refusal.reason}",
        )
    used = set(map(id, drawn))
    rest = [pair for pair in pairs.pairs if id(pair) not in used]
    found = _estimate_difference(drawn, rest, confidence)
    notes = []
    if len(drawn) < len(labelled):
        notes.append(f"{not_drawn_text(len(labelled) - len(drawn), 'other label')} not drawn at random and left out")
    method: CorrectionMethod = "ppi++"
    if not rest:
        method = "labels"
        notes.insert(0, "every judged case has labels")
    elif found.weight < ADDS_NOTHING:
        method = "labels"
        notes.insert(0, nothing_added(found.weight, len(drawn), len(rest)))
        found = _without_judge(drawn, rest, confidence)._replace(weight=found.weight)
    low, high = found.interval
    arrow = f"{own} → " if own else ""
    text = f"{arrow}{found.estimate:+.3f} ({low:+.3f}…{high:+.3f}), {len(drawn):,} cases labelled in both runs"
    return CorrectedDifference(
        measure=pairs.measure,
        judge=judge,
        estimate=found.estimate,
        low=low,
        high=high,
        p_value=student_two_sided(found.estimate / found.se, found.groups - 1.0) if found.se else 1.0,
        labels=len(drawn),
        weight=found.weight,
        method=method,
        notes=tuple(notes),
        sentence="; ".join([text, *notes]),
    )


def _drawn_pairs(pairs: LabelledPairs, labelled: Sequence[LabelledPair]) -> list[LabelledPair]:
    """The labelled cases that may be used."""
    if pairs.obstacle is not None:
        raise CorrectionRefusedError(pairs.obstacle)
    if not pairs.baseline_labels or not pairs.candidate_labels:
        raise CorrectionRefusedError(_unlabelled_side(pairs), MIN_LABELS)
    if len(labelled) == len(pairs.pairs):
        drawn = [pair._replace(probability=None) for pair in labelled]
    else:
        drawn = [pair for pair in labelled if pair.probability is not None]
    if labelled and not drawn:
        raise CorrectionRefusedError(
            f"{not_drawn_text(len(labelled), 'label')} not drawn at random: draw the same cases of both runs with"
            f" {pairs.baseline_command}{SAME_CASES} and {pairs.candidate_command}{SAME_CASES}",
            MIN_LABELS,
        )
    if len(drawn) < MIN_LABELS:
        missing = MIN_LABELS - len(drawn)
        raise CorrectionRefusedError(
            f"{_cases(len(drawn))} labelled in both runs ({pairs.baseline_labels:,} in the baseline,"
            f" {pairs.candidate_labels:,} in the candidate), and at least {MIN_LABELS} are needed:"
            f" label {missing:,} more in both, drawn with {pairs.baseline_command}{SAME_CASES} and"
            f" {pairs.candidate_command}{SAME_CASES}",
            missing,
        )
    if pairs.cases is not None and pairs.cases.shortage is not None:
        raise CorrectionRefusedError(f"the labels are of {pairs.cases.shortage}")
    return drawn


def _unlabelled_side(pairs: LabelledPairs) -> str:
    sides = [
        (f"the baseline: {pairs.baseline_command}", pairs.baseline_labels),
        (f"the candidate: {pairs.candidate_command}", pairs.candidate_labels),
    ]
    missing = [side for side, labels in sides if not labels]
    if len(missing) == 2:
        commands = " and ".join(f"{side}{SAME_CASES}" for side in missing)
        return f"neither run has labels; label the same cases of {commands}"
    return f"no label of {missing[0]}{SAME_CASES}, if the other run has that sample"


def _estimate_difference(
    labelled: Sequence[LabelledPair], rest: Sequence[LabelledPair], confidence: float
) -> Corrected:
    """The estimate; where hardly any label differs, with one more case in favour of each run.

    Without a change among the labels their variance is 0, though changes are only rare (Agresti and Min).
    """
    values = [pair.label or 0.0 for pair in labelled]
    judged = [pair.judged_labelled for pair in labelled]
    groups = [pair.group for pair in labelled]
    weights = None
    if all(pair.probability for pair in labelled):
        weights = [1.0 / pair.probability for pair in labelled if pair.probability]
    if sum(value != 0.0 for value in values) < _FEW_CHANGES:
        values, judged = [*values, 1.0, -1.0], [*judged, 0.0, 0.0]
        groups += [-1, -2]
        weights = None if weights is None else [*weights, *[fsum(weights) / len(weights)] * 2]
    others = [pair.judged for pair in rest]
    groups += [pair.group for pair in rest]
    if len(set(groups)) == len(groups):
        return corrected_difference(values, judged, others, weights, confidence)
    return clustered_difference(values, judged, others, groups, weights, confidence)


def _without_judge(labelled: Sequence[LabelledPair], rest: Sequence[LabelledPair], confidence: float) -> Corrected:
    """The labels' own estimate."""
    plain = [pair._replace(judged_labelled=0.0) for pair in labelled]
    return _estimate_difference(plain, [pair._replace(judged=0.0) for pair in rest], confidence)


def _cases(count: int) -> str:
    return "1 case is" if count == 1 else f"{count:,} cases are"
