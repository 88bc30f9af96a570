"""How far labelling is, and how well the raters agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from gradeline.model import Run, Storage
from gradeline.model.grade import PASS_SCORE
from gradeline.model.label import LabelRow, SamplingMethod, reference_label
from gradeline.stats.agreement import cohen_kappa, krippendorff_alpha
from gradeline.stats.intervals import Interval
from gradeline.store.labels import fresh_labels
from gradeline.trust.label_samples import samples_of


class RaterProgress(NamedTuple):
    """The labels of one rater."""

    rater: str
    labels: int
    adjudications: int


class SampleProgress(NamedTuple):
    """A sample, and how many of its results each rater has labelled."""

    sample: str
    method: SamplingMethod
    seed: int
    size: int
    labelled: int
    """Results that at least one rater has labelled."""
    by_rater: dict[str, int]


class RaterPair(NamedTuple):
    """Two raters on the results that both have labelled."""

    first: str
    second: str
    results: int
    same: int
    kappa: Interval | None
    """Cohen's kappa; None where it is undefined."""


class RaterDisagreement(NamedTuple):
    """A result on which raters disagree."""

    case: str
    repeat: int
    values: dict[str, str]
    """What each rater says."""
    resolved: bool
    """Whether a majority or an adjudication decides."""


class LabelStatus(NamedTuple):
    """The labels of one question about a run."""

    question: str
    results: int
    """Results with a label."""
    raters: list[RaterProgress]
    samples: list[SampleProgress]
    alpha: Interval | None
    """Krippendorff's alpha of all raters; None where it is undefined, as with one rater."""
    pairs: list[RaterPair]
    disagreements: list[RaterDisagreement]
    unresolved: int
    """Results without a majority or an adjudication."""
    stale: int
    """Results whose labels are about a response that was replaced since."""


def label_status(storage: Storage, run: Run, question: str) -> LabelStatus:
    """The progress and agreement of the raters."""
    found = fresh_labels(storage, run, question)
    grader = run.graders.get(question)
    threshold = PASS_SCORE if grader is None or grader.pass_threshold is None else grader.pass_threshold
    own = [row for row in found.labels if row.role == "rater"]
    by_result: dict[tuple[str, int], dict[str, LabelRow]] = {}
    for row in own:
        by_result.setdefault((row.case, row.repeat), {})[row.rater] = row
    unresolved = {key for key, rows in found.by_result().items() if reference_label(rows, threshold) is None}
    return LabelStatus(
        question=question,
        results=len(found.by_result()),
        raters=_raters(found.labels),
        samples=_samples(storage, run, question, by_result),
        alpha=_alpha(list(by_result.values()), threshold),
        pairs=_pairs(by_result, threshold),
        disagreements=[
            RaterDisagreement(
                *key, {rater: value_text(row) for rater, row in sorted(rows.items())}, key not in unresolved
            )
            for key, rows in by_result.items()
            if len({_compared(row, threshold) for row in rows.values()}) > 1
        ],
        unresolved=len(unresolved),
        stale=len(found.stale),
    )


def value_text(row: LabelRow) -> str:
    """A label in words: ``pass``, ``0.75``, a category, or several of them."""
    score = None if row.score is None else f"{row.score:g}"
    return " ".join(part for part in (row.verdict, score, row.category) if part is not None)


def _raters(labels: Sequence[LabelRow]) -> list[RaterProgress]:
    counts = Counter((row.rater, row.role) for row in labels)
    names = sorted({rater for rater, _ in counts})
    return [RaterProgress(rater, counts[rater, "rater"], counts[rater, "adjudicator"]) for rater in names]


def _samples(
    storage: Storage, run: Run, question: str, by_result: Mapping[tuple[str, int], Mapping[str, LabelRow]]
) -> list[SampleProgress]:
    found = []
    for sample in samples_of(storage, run, question):
        labelled = [by_result[key] for one in sample.draws if (key := (one.case, one.repeat)) in by_result]
        by_rater = Counter(rater for rows in labelled for rater in rows)
        found.append(
            SampleProgress(
                sample.id, sample.method, sample.seed, len(sample.draws), len(labelled), dict(sorted(by_rater.items()))
            )
        )
    return found


def _compared(row: LabelRow, threshold: float) -> bool | str | None:
    """What agreement is about: pass or fail, else the category."""
    passed = row.passed(threshold)
    return row.category if passed is None else passed


def _alpha(results: Sequence[Mapping[str, LabelRow]], threshold: float) -> Interval | None:
    """Of the scores where every label has one, else of pass and fail or the categories."""
    if results and all(row.score is not None for rows in results for row in rows.values()):
        scores = [{rater: row.score for rater, row in rows.items() if row.score is not None} for rows in results]
        return krippendorff_alpha(scores, "interval")
    values = [
        {rater: str(value) for rater, row in rows.items() if (value := _compared(row, threshold)) is not None}
        for rows in results
    ]
    return krippendorff_alpha(values)


def _pairs(by_result: Mapping[tuple[str, int], Mapping[str, LabelRow]], threshold: float) -> list[RaterPair]:
    raters = sorted({rater for rows in by_result.values() for rater in rows})
    return [
        pair
        for first, second in combinations(raters, 2)
        if (pair := _pair(first, second, list(by_result.values()), threshold)) is not None
    ]


def _pair(first: str, second: str, results: Sequence[Mapping[str, LabelRow]], threshold: float) -> RaterPair | None:
    both = [
        (_compared(rows[first], threshold), _compared(rows[second], threshold))
        for rows in results
        if first in rows and second in rows
    ]
    if not both:
        return None
    counts = Counter(both)
    names = sorted({value for pair in both for value in pair}, key=str)
    table = [[float(counts[left, right]) for right in names] for left in names]
    same = sum(counts[name, name] for name in names)
    return RaterPair(first, second, len(both), same, cohen_kappa(table))
