"""What a judge's scores are worth against labels: corrected rates of a run, and corrected differences of two runs.

A judge's mean is biased by an unknown amount. Labels of some results, drawn at random, measure it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, fsum
from typing import Literal, NamedTuple

import msgspec

from gradeline.stats.clustered_correction import clustered_mean
from gradeline.stats.prediction_powered import Corrected, corrected_mean, rogan_gladen
from gradeline.verdict.evidence import Clustering, Range

CorrectedMeasure = Literal["pass_rate", "mean_score"]
"""What is corrected: the share of results that pass, by the labels' verdicts, or the mean score, by their scores."""
CorrectionMethod = Literal["ppi++", "labels", "rogan_gladen"]
"""``labels`` is the labels' own estimate, where the judge adds nothing to them."""

MIN_LABELS = 30
MIN_OF_CLASS = 5
"""Labels that pass, and labels that fail."""
ADDS_NOTHING = 0.1
"""Below this λ a judge adds nothing."""
_SAMPLE_STEP = 50


class JudgedLabel(NamedTuple):
    """A result with the judge's grade and a label."""

    group: int
    """Its case, or the cluster of its case: results of one group are not independent."""
    score: float
    passed: bool
    label: bool | None
    """Whether it passes by the label; None for a label without a verdict."""
    label_score: float | None = None
    probability: float | None = None
    """The probability with which it was drawn to be labelled; None if that is unknown."""


class LabelledScores(NamedTuple):
    """One grader's scores in a run, with the labels that there are.

    ``scores``, ``passes`` and ``groups`` are those of the results without a label. ``total`` is the number of expected
    grades; ``unjudged`` counts labels of results without a score.
    """

    labelled: Sequence[JudgedLabel] = ()
    scores: Sequence[float] = ()
    passes: Sequence[int] = ()
    groups: Sequence[int] = ()
    total: int = 0
    unjudged: int = 0
    categories: int = 0
    """Labels with only a category, which is neither a verdict nor a score."""
    unresolved: int = 0
    """Results whose raters disagree."""
    stale: int = 0
    """Results whose response was replaced since it was labelled."""
    has_judge: bool = False
    """Whether a model scores."""
    cases: Clustering | None = None
    """The labelled cases and their clusters, if the run has clusters."""
    failed_calls: Sequence[int] = ()
    """The group of each failed call of the agent."""
    command: str = "gradeline label RUN"
    """Draws labels."""

    def passing(self, passes: Callable[[float], bool]) -> LabelledScores:
        """The same with another rule for which scores pass."""
        return self._replace(
            labelled=[one._replace(passed=passes(one.score)) for one in self.labelled],
            passes=[int(passes(score)) for score in self.scores],
        )

    @property
    def judged(self) -> int:
        """The number of results with a score."""
        return len(self.labelled) + len(self.scores)

    @property
    def corrects(self) -> bool:
        """Whether a gate that asks for corrected values means this grader."""
        return self.has_judge or bool(self.labelled) or bool(self.unjudged)


class CorrectedRate(msgspec.Struct, frozen=True, kw_only=True):
    """A rate or mean that a judge gave, and what people would say; without an estimate, ``refusal`` says why."""

    measure: CorrectedMeasure
    judge: float | None
    """The judge's own value."""
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    labels: int = 0
    """The labels that the estimate uses, or could use."""
    weight: float | None = msgspec.field(default=None, name="lambda")
    """0 ignores the judge, 1 relies on it fully."""
    method: CorrectionMethod | None = None
    refusal: str | None = None
    missing_labels: int | None = None
    """The number of labels that are missing, if they are what is missing."""
    notes: tuple[str, ...] = ()
    sentence: str = ""
    """``0.705 judge → 0.398 (0.305–0.499), 100 labels``."""

    @property
    def interval(self) -> Range | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


class CorrectionRefusedError(Exception):
    """Why a value is not corrected, and how many labels are missing if that is the reason."""

    def __init__(self, reason: str, missing: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.missing = missing


class _Label(NamedTuple):
    """A label and the judge's value of the same result."""

    value: float
    judged: float
    group: int
    probability: float | None
    place: int
    """Among the labelled results."""


def corrected_rate(
    scores: LabelledScores,
    measure: CorrectedMeasure = "pass_rate",
    coverage_floor: float = 0.95,
    *,
    count_failed_calls: bool = False,
    confidence: float = 0.95,
) -> CorrectedRate:
    """The rate or mean of a run by its labels and the judge's scores.

    With ``count_failed_calls`` each failed call of the agent counts as a result that fails for certain.
    """
    judge = _own_value(scores, measure, count_failed_calls)
    usable = _values(scores, measure)
    try:
        labels, left_out = _drawn_at_random(scores, usable)
        _require_labels(scores, labels, measure)
        _require_coverage(scores, coverage_floor, count_failed_calls)
    except CorrectionRefusedError as refusal:
        return _refused(measure, judge, len(usable), refusal)
    rest = _rest(scores, measure, labels)
    failed = scores.failed_calls if count_failed_calls else ()
    found = _estimate(labels, rest, failed, confidence)
    notes = [*_left_out_notes(scores, left_out), *_coverage_note(scores)]
    method: CorrectionMethod = "ppi++"
    if not rest:
        method = "labels"
        notes.insert(0, "every judged result has a label")
    elif found.weight < ADDS_NOTHING:
        method = "labels"
        notes.insert(0, nothing_added(found.weight, len(labels), len(rest)))
        without_judge = [one._replace(judged=0.0) for one in labels]
        own = _estimate(without_judge, [(0.0, group) for _, group in rest], failed, confidence)
        found = own._replace(weight=found.weight)
    return CorrectedRate(
        measure=measure,
        judge=judge,
        estimate=found.estimate,
        low=found.interval.low,
        high=found.interval.high,
        labels=len(labels),
        weight=found.weight,
        method=method,
        notes=tuple(notes),
        sentence="; ".join([_arrow(judge, found, len(labels)), *notes]),
    )


def borrowed_rate(scores: LabelledScores, table: LabelCounts, coverage_floor: float = 0.95) -> CorrectedRate:
    """The pass rate by Rogan and Gladen, from the judge's errors on labels of another run.

    It is only correct if the judge errs on both alike.
    """
    judge = _own_value(scores, "pass_rate", count_failed_calls=False)
    labels = table.positives + table.negatives
    try:
        _require_coverage(scores, coverage_floor, count_failed_calls=False)
        found = _rogan_gladen(scores, table)
    except CorrectionRefusedError as refusal:
        return _refused("pass_rate", judge, labels, refusal)
    note = "Rogan-Gladen: it assumes that the judge errs here as it did on the labels of its calibration"
    return CorrectedRate(
        measure="pass_rate",
        judge=judge,
        estimate=found.estimate,
        low=found.interval.low,
        high=found.interval.high,
        labels=labels,
        method="rogan_gladen",
        notes=(note,),
        sentence=f"{_arrow(judge, found, labels)} of a calibration; {note}",
    )


class LabelCounts(NamedTuple):
    """A judge's sensitivity and specificity, each with the number of labels that it was measured on."""

    sensitivity: float
    positives: int
    specificity: float
    negatives: int


def refused_rate(scores: LabelledScores, reason: str, measure: CorrectedMeasure = "pass_rate") -> CorrectedRate:
    """A rate that is not corrected for a reason that the caller knows."""
    return _refused(measure, _own_value(scores, measure, count_failed_calls=False), 0, CorrectionRefusedError(reason))


def _rogan_gladen(scores: LabelledScores, table: LabelCounts) -> Corrected:
    passes = sum(scores.passes) + sum(one.passed for one in scores.labelled)
    try:
        return rogan_gladen(
            passes, scores.judged, table.sensitivity, table.positives, table.specificity, table.negatives
        )
    except ValueError as error:
        raise CorrectionRefusedError(str(error)) from None


def _own_value(scores: LabelledScores, measure: CorrectedMeasure, count_failed_calls: bool) -> float | None:
    """The judge's own rate or mean."""
    count = scores.judged + (len(scores.failed_calls) if count_failed_calls else 0)
    if not count:
        return None
    if measure == "pass_rate":
        return (sum(scores.passes) + sum(one.passed for one in scores.labelled)) / count
    return (fsum(scores.scores) + fsum(one.score for one in scores.labelled)) / count


def _values(scores: LabelledScores, measure: CorrectedMeasure) -> list[_Label]:
    """The labels that can be compared with what the judge measures."""
    if measure == "pass_rate":
        return [
            _Label(float(one.label), float(one.passed), one.group, one.probability, place)
            for place, one in enumerate(scores.labelled)
            if one.label is not None
        ]
    # where every score is 0 or 1, pass and fail are scores too
    binary = {0.0, 1.0}.issuperset(scores.scores) and all(one.score in (0.0, 1.0) for one in scores.labelled)
    found = []
    for place, one in enumerate(scores.labelled):
        value = one.label_score
        if value is None and binary and one.label is not None:
            value = float(one.label)
        if value is not None:
            found.append(_Label(value, one.score, one.group, one.probability, place))
    return found


def _drawn_at_random(scores: LabelledScores, labels: Sequence[_Label]) -> tuple[list[_Label], int]:
    """The labels drawn with a known probability, or all of them where every judged result has one.

    The number is that of the others.
    """
    if not scores.scores and len(labels) == len(scores.labelled):
        return [one._replace(probability=None) for one in labels], 0
    drawn = [one for one in labels if one.probability is not None]
    if labels and not drawn:
        raise CorrectionRefusedError(
            f"{not_drawn_text(len(labels), 'label')} not drawn at random: draw them with {scores.command} --sample 100"
            " --random",
            MIN_LABELS,
        )
    return drawn, len(labels) - len(drawn)


def _require_labels(scores: LabelledScores, labels: Sequence[_Label], measure: CorrectedMeasure) -> None:
    count = len(labels)
    if not scores.labelled:
        raise CorrectionRefusedError(_no_labels(scores), MIN_LABELS)
    if not count:
        kind = "a score" if measure == "mean_score" else "a verdict"
        remedy = "; the pass rate can be corrected (aggregation: accuracy)" if measure == "mean_score" else ""
        raise CorrectionRefusedError(f"none of {_labels(len(scores.labelled))} has {kind}{remedy}")
    if count < MIN_LABELS:
        raise CorrectionRefusedError(
            _too_few(scores, count, MIN_LABELS - count, f"at least {MIN_LABELS} are needed"), MIN_LABELS - count
        )
    if scores.cases is not None and scores.cases.shortage is not None:
        raise CorrectionRefusedError(f"the labels are of {scores.cases.shortage}")
    if measure == "pass_rate" and scores.scores:  # where every result has a label, no judge is relied on
        passing = round(fsum(one.value for one in labels))
        for word, number in (("pass", passing), ("fail", count - passing)):
            if number < MIN_OF_CLASS:
                missing = _missing_of_class(number, count, scores.judged - count)
                needed = f"only {number:,} {word}, and at least {MIN_OF_CLASS} are needed"
                raise CorrectionRefusedError(_too_few(scores, count, missing, needed), missing)


def _no_labels(scores: LabelledScores) -> str:
    if scores.categories:
        return f"{_labels(scores.categories)} with only a category, without pass or fail"
    if scores.unjudged:
        return f"none of {_labels(scores.unjudged)} is of a result that the judge scored"
    return f"no labels; label {MIN_LABELS} or more results: {scores.command} --sample 100"


def _missing_of_class(number: int, count: int, left: int) -> int:
    """The labels after which, at this rate, there are enough of a class; not more than are ``left``, if any are."""
    missing = ceil(MIN_OF_CLASS * count / max(number, 1)) - count
    return min(missing, left) if left > 0 else missing


def _too_few(scores: LabelledScores, count: int, missing: int, needed: str) -> str:
    if scores.judged < max(count + 1, MIN_LABELS):
        return f"{_labels(count)}, {needed}: run more cases, as the judge scored only {scores.judged:,} results here"
    unused = scores.unresolved + scores.stale + scores.unjudged + scores.categories  # a part of the sample, perhaps
    sample = ceil((count + missing + unused) / _SAMPLE_STEP) * _SAMPLE_STEP
    if sample > scores.total > 0:
        sample = scores.total
    return f"{_labels(count)}, {needed}: label {missing:,} more: {scores.command} --sample {sample}"


def _require_coverage(scores: LabelledScores, floor: float, count_failed_calls: bool) -> None:
    known = scores.judged + (len(scores.failed_calls) if count_failed_calls else 0)
    if scores.total and known / scores.total < floor - 1e-12:
        raise CorrectionRefusedError(
            f"the judge scored only {known:,} of {scores.total:,} results, below the coverage floor of {floor:g}"
        )


def _rest(scores: LabelledScores, measure: CorrectedMeasure, used: Sequence[_Label]) -> list[tuple[float, int]]:
    """The judge's values and the groups of the results whose label, if there is one, is not used."""
    of_score = measure == "mean_score"
    values = scores.scores if of_score else [float(passed) for passed in scores.passes]
    rest = list(zip(values, scores.groups, strict=True))
    if len(used) < len(scores.labelled):
        kept = {one.place for one in used}
        rest += [
            (one.score if of_score else float(one.passed), one.group)
            for place, one in enumerate(scores.labelled)
            if place not in kept
        ]
    return rest


def _estimate(
    labels: Sequence[_Label], rest: Sequence[tuple[float, int]], failed: Sequence[int], confidence: float
) -> Corrected:
    """The estimate over labelled and other results; failed calls are results that fail for certain."""
    values = [one.value for one in labels] + [0.0] * len(failed)
    judged = [one.judged for one in labels] + [0.0] * len(failed)
    others = [value for value, _ in rest]
    weights = _weights(labels, len(failed))
    groups = [one.group for one in labels] + list(failed) + [group for _, group in rest]
    if len(set(groups)) == len(groups):
        return corrected_mean(values, judged, others, weights, confidence)
    return clustered_mean(values, judged, others, groups, weights, confidence)


def _weights(labels: Sequence[_Label], certain: int = 0) -> list[float] | None:
    """1 / probability of each label, then 1 for each result that is known for certain."""
    known = [one.probability for one in labels if one.probability]
    if len(known) < len(labels):
        return None
    return [1.0 / probability for probability in known] + [1.0] * certain


def nothing_added(weight: float, labels: int, rest: int) -> str:
    # with few results left to judge even the best judge has a small λ
    if rest < labels and weight * (1.0 + labels / rest) >= ADDS_NOTHING:
        return "too few results without a label for the judge to add anything: this is the labels' own estimate"
    return "the judge adds nothing: this is the labels' own estimate"


def _left_out_notes(scores: LabelledScores, left_out: int) -> Iterator[str]:
    if left_out:
        yield f"{not_drawn_text(left_out, 'other label')} not drawn at random and left out"
    if scores.unjudged:
        yield f"{_labels(scores.unjudged)} of results without a score of the judge left out"
    if scores.categories:
        yield f"{_labels(scores.categories)} with only a category left out"
    if scores.unresolved:
        yield f"raters disagree about {scores.unresolved:,} more"
    if scores.stale:
        yield f"{_labels(scores.stale)} of replaced responses left out"


def _coverage_note(scores: LabelledScores) -> Iterator[str]:
    if scores.total and scores.judged < scores.total:
        yield f"over the {scores.judged:,} of {scores.total:,} results that the judge scored"


def _refused(
    measure: CorrectedMeasure, judge: float | None, labels: int, refusal: CorrectionRefusedError
) -> CorrectedRate:
    own = "" if judge is None else f"{judge:.3f} judge, "
    return CorrectedRate(
        measure=measure,
        judge=judge,
        labels=labels,
        refusal=refusal.reason,
        missing_labels=refusal.missing,
        sentence=f"{own}not corrected: {refusal.reason}",
    )


def _arrow(judge: float | None, found: Corrected, labels: int) -> str:
    own = "" if judge is None else f"{judge:.3f} judge → "
    low, high = found.interval
    return f"{own}{found.estimate:.3f} ({low:.3f}–{high:.3f}), {_labels(labels)}"


def _labels(count: int) -> str:
    return f"{count:,} label{'' if count == 1 else 's'}"


def not_drawn_text(count: int, noun: str) -> str:
    return f"{count:,} {noun} was" if count == 1 else f"{count:,} {noun}s were"
