"""Which rubric of a judge agrees best with labels, measured on labels that did not choose it.

The rubric with the greatest agreement on some labels looks better on these than it is. So the choice is made in each
of several folds anew, without the labels of that fold, and is measured on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from random import Random
from typing import Literal, NamedTuple

import msgspec

from gradeline.stats import score_interval
from gradeline.stats.agreement import cohen_kappa, confusion
from gradeline.stats.paired import paired_difference

FOLDS = 5
MIN_LABELS = 30
MIN_OF_A_CLASS = 5
MAX_MISSING = 0.05
"""A rubric whose judge gives no verdict more often than this is left out."""

Bounds = tuple[float, float]
ChoiceDecision = Literal["better", "not_better"]


class RubricVerdicts(NamedTuple):
    """The verdicts of a judge with one rubric on the labelled results; None where it gave none."""

    name: str
    verdicts: Sequence[bool | None]


class RubricAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """A rubric's agreement with the labels that all rubrics are compared on."""

    name: str
    agreed: int
    of: int
    agreement_ci: Bounds | None
    """Of these labels, which also choose: too high for the rubric that is chosen by them."""
    kappa: float | None
    missing: int
    """Labelled results without a verdict, of all."""
    chosen: int
    """The folds whose other labels choose this rubric."""
    left_out: str | None = None
    """Why it takes no part."""


class RubricChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The rubric to use, and how much better than the first one it is on labels that did not choose it."""

    winner: str
    """Of greatest agreement with all labels; of equals the first."""
    decision: ChoiceDecision
    agreement: float
    """Of the rubric that the other folds choose, on the labels of each fold."""
    agreement_ci: Bounds | None
    difference: float
    """The same minus the agreement of the first rubric."""
    difference_ci: Bounds
    labels: int
    left_out: int
    """Labelled results on which a rubric that takes part has no verdict."""
    folds: int
    rubrics: tuple[RubricAgreement, ...]


class _Compared(NamedTuple):
    """The labelled results on which every rubric that takes part has a verdict."""

    places: Sequence[int]
    labels: Sequence[bool]
    groups: Sequence[str]


def shortage(labels: Sequence[bool]) -> str | None:
    """Why these labels are too few to choose by; None if they are enough."""
    passes = sum(labels)
    missing = max(MIN_LABELS - len(labels), 0)
    rare = min(passes, len(labels) - passes)
    if missing:
        return f"{len(labels)} labels are too few to choose by: label {missing} more"
    if rare < MIN_OF_A_CLASS:
        kind = "passes" if passes <= len(labels) - passes else "failures"
        return f"only {rare} of {len(labels)} labels are {kind}: at least {MIN_OF_A_CLASS} are needed"
    return None


def choose_rubric(
    labels: Sequence[bool],
    groups: Sequence[str],
    candidates: Sequence[RubricVerdicts],
    folds: int = FOLDS,
    seed: int = 0,
) -> RubricChoice:
    """The best of the candidates, of which the first one is in use. Results of a group are in the same fold.

    `ValueError` if the labels that can be compared are too few, or if the first candidate has too few verdicts.
    """
    left_out = [_left_out(one, len(labels)) for one in candidates]
    if left_out[0] is not None:
        raise ValueError(f"{candidates[0].name}: {left_out[0]}, so there is nothing to compare the others with")
    taking_part = [at for at, reason in enumerate(left_out) if reason is None]
    places = [
        place for place in range(len(labels)) if all(candidates[at].verdicts[place] is not None for at in taking_part)
    ]
    compared = _Compared(places, [labels[place] for place in places], [groups[place] for place in places])
    reason = shortage(compared.labels)
    if reason is not None:
        raise ValueError(reason)
    agreed = {at: [float(candidates[at].verdicts[place] is labels[place]) for place in places] for at in taking_part}
    fold_of = _folds(compared.groups, folds, seed)
    chosen = [_best(agreed, [place for place, fold in enumerate(fold_of) if fold != number]) for number in range(folds)]
    held_out = [agreed[chosen[fold]][place] for place, fold in enumerate(fold_of)]
    winner = _best(agreed, range(len(places)))
    difference = paired_difference(held_out, agreed[0], compared.groups)
    return RubricChoice(
        winner=candidates[winner].name,
        decision="better" if winner != 0 and difference.low > 0.0 else "not_better",
        agreement=fsum(held_out) / len(held_out),
        agreement_ci=_bounds(held_out, compared.groups),
        difference=difference.estimate,
        difference_ci=(max(-1.0, difference.low), min(1.0, difference.high)),
        labels=len(places),
        left_out=len(labels) - len(places),
        folds=folds,
        rubrics=tuple(
            _agreement(one, left_out[at], agreed.get(at), compared, chosen.count(at))
            for at, one in enumerate(candidates)
        ),
    )


def split_groups(groups: Sequence[str], seed: int) -> list[bool]:
    """Half of the groups at random, as a flag for each item."""
    return [fold == 0 for fold in _folds(groups, 2, seed)]


def _folds(groups: Sequence[str], folds: int, seed: int) -> list[int]:
    names = sorted(set(groups))
    if len(names) < folds:
        raise ValueError(f"{len(names)} cases or clusters cannot be divided into {folds} folds: label more of them")
    Random(seed).shuffle(names)  # noqa: S311 - a sample, not a key
    fold_of = {name: place % folds for place, name in enumerate(names)}
    return [fold_of[group] for group in groups]


def _best(agreed: dict[int, list[float]], places: Sequence[int]) -> int:
    return max(agreed, key=lambda at: (fsum(agreed[at][place] for place in places), -at))


def _left_out(candidate: RubricVerdicts, labels: int) -> str | None:
    missing = candidate.verdicts.count(None)
    if missing > MAX_MISSING * labels:
        return f"no verdict on {missing} of {labels} labelled results"
    return None


def _agreement(
    candidate: RubricVerdicts, left_out: str | None, agreed: Sequence[float] | None, compared: _Compared, chosen: int
) -> RubricAgreement:
    missing = candidate.verdicts.count(None)
    if agreed is None:
        return RubricAgreement(
            name=candidate.name,
            agreed=0,
            of=0,
            agreement_ci=None,
            kappa=None,
            missing=missing,
            chosen=0,
            left_out=left_out,
        )
    kappa = cohen_kappa(confusion(compared.labels, [candidate.verdicts[place] for place in compared.places]))
    return RubricAgreement(
        name=candidate.name,
        agreed=int(fsum(agreed)),
        of=len(agreed),
        agreement_ci=_bounds(agreed, compared.groups),
        kappa=None if kappa is None else kappa.estimate,
        missing=missing,
        chosen=chosen,
    )


def _bounds(values: Sequence[float], groups: Sequence[str]) -> Bounds | None:
    interval = score_interval(values, groups)
    return None if interval is None else (interval.low, interval.high)
