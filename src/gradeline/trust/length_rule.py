"""The floor for any judge: how well a rule that sees only lengths agrees with the labels."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import fsum, inf
from typing import NamedTuple

from gradeline.model.calibration import LengthRule
from gradeline.trust.label_and_verdict import LabelAndVerdict

FOLDS = 5
_SLACK = 1e-9


def length_rule(labelled: Sequence[LabelAndVerdict], weights: Sequence[float]) -> LengthRule | None:
    """The agreement of "the longer answer wins", or of "answers from some length on pass"; None if unknown.

    The first is for judges that compare two answers. For others the length is the one that agrees best with the labels
    of four fifths of the cases, and is measured on the rest, in turn.
    """
    pairs = [
        _Length(one.length - one.other_length, one.passed, weight, one.case)
        for one, weight in zip(labelled, weights, strict=True)
        if one.length is not None and one.other_length is not None
    ]
    if pairs:
        return LengthRule(kind="longer_wins", agreement=_agreement([(one, 0) for one in pairs]), labels=len(pairs))
    single = [
        _Length(one.length, one.passed, weight, one.case)
        for one, weight in zip(labelled, weights, strict=True)
        if one.length is not None
    ]
    if len({one.case for one in single}) < FOLDS or len({one.value for one in single}) < 2:
        return None
    best = _best_threshold(single)
    return LengthRule(
        kind="longer_passes",
        agreement=_cross_validated(single),
        labels=len(single),
        threshold=None if best == inf else int(best),
    )


class _Length(NamedTuple):
    value: int
    passed: bool
    weight: float
    case: str

    @property
    def fold(self) -> int:
        """The results of a case are in one fold."""
        return blake2b(self.case.encode(errors="surrogatepass"), digest_size=8).digest()[0] % FOLDS


def _agreement(decided: Sequence[tuple[_Length, float]]) -> float:
    """The weighted share of answers whose label is that of the rule: from the threshold on they pass."""
    right = fsum(one.weight for one, threshold in decided if (one.value >= threshold) is one.passed)
    return right / fsum(one.weight for one, _ in decided)


def _cross_validated(lengths: Sequence[_Length]) -> float:
    folds = [one.fold for one in lengths]
    thresholds = {
        fold: _best_threshold([one for one, other in zip(lengths, folds, strict=True) if other != fold])
        for fold in set(folds)
    }
    return _agreement([(one, thresholds[fold]) for one, fold in zip(lengths, folds, strict=True)])


def _best_threshold(lengths: Sequence[_Length]) -> float:
    """The length from which passing agrees best; 0: all pass, infinity: none does. Ties to the shortest."""
    right = fsum(one.weight for one in lengths if one.passed)
    best, found = right, 0.0
    ordered = sorted(lengths)
    for place, one in enumerate(ordered):
        # the threshold moves above this answer, which now fails
        right += -one.weight if one.passed else one.weight
        following = ordered[place + 1].value if place + 1 < len(ordered) else inf
        if following > one.value and right > best + _SLACK:
            best, found = right, float(following)
    return found
