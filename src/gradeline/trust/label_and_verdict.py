"""A label with the judge's verdict on the same result, and how much it counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import fsum
from typing import NamedTuple

from gradeline.stats import Confusion, Interval, cohen_kappa, confusion, kappa_lower_bound
from gradeline.stats.intervals import effective_interval


class LabelAndVerdict(NamedTuple):
    """A label and the judge's verdict on the same result."""

    case: str
    passed: bool
    """The label."""
    verdict: bool | None
    """Whether it passes by the judge; None: the judge gave no verdict."""
    score: float | None = None
    repeat: int = 0
    cluster: str | None = None
    """Results of one cluster, or of one case, are not independent."""
    probability: float | None = None
    """The probability with which the result was drawn; None: it was not drawn at random, as far as is known."""
    tags: tuple[str, ...] = ()
    length: int | None = None
    """Of the answer, in characters."""
    other_length: int | None = None
    """Of the answer that it is compared with."""
    cost: float | None = None
    """Of the judge; None: unknown."""

    @property
    def agrees(self) -> bool:
        """Whether the judge's verdict is the label's."""
        return self.verdict is self.passed

    @property
    def group(self) -> tuple[str, str]:
        """What it shares with results that it is not independent of."""
        return ("case", self.case) if self.cluster is None else ("cluster", self.cluster)


def weights_of(labelled: Sequence[LabelAndVerdict]) -> list[float]:
    """How much each label counts, with a mean of 1: inversely to the probability with which it was drawn.

    Equal where the probability of any is unknown.
    """
    inverse = [1.0 / one.probability for one in labelled if one.probability]
    if len(inverse) < len(labelled) or not inverse:
        return [1.0] * len(labelled)
    mean = fsum(inverse) / len(inverse)
    return [1.0 if abs(weight - mean) <= 1e-9 * mean else weight / mean for weight in inverse]


def agreement_table(labelled: Sequence[LabelAndVerdict], weights: Sequence[float]) -> Confusion:
    """Labels by verdict."""
    labels, verdicts = [one.passed for one in labelled], [one.verdict for one in labelled]
    return confusion(labels, verdicts, None if _equal(weights) else weights)


class KappaBounds(NamedTuple):
    """Cohen's kappa with its 95 % interval and its one-sided 95 % lower bound."""

    estimate: float
    low: float
    high: float
    lower: float


def kappa_bounds(labelled: Sequence[LabelAndVerdict], weights: Sequence[float]) -> KappaBounds | None:
    """Kappa of judge and labels; None where it is undefined."""
    found = cohen_kappa(agreement_table(labelled, weights))
    if found is None:
        return None
    cells = _cells(labelled, weights)
    table = _uncertain_table(cells, _group_excess(labelled, weights))
    interval, lower = cohen_kappa(table), kappa_lower_bound(table)
    if interval is None or lower is None:
        return None
    estimate = found.estimate
    return KappaBounds(estimate, min(estimate, interval.low), max(estimate, interval.high), min(estimate, lower))


def share_interval(
    labelled: Sequence[LabelAndVerdict], weights: Sequence[float], *, of: bool | None = None
) -> Interval | None:
    """The share of verdicts that are the label's, among all labels or those that pass or fail; None without any."""
    judged = [pair for pair in zip(labelled, weights, strict=True) if pair[0].verdict is not None]
    own = [(one, weight) for one, weight in judged if of is None or one.passed is of]
    total = fsum(weight for _, weight in own)
    if not own:
        return None
    share = fsum(weight for one, weight in own if one.agrees) / total
    sizes: dict[tuple[str, str], float] = defaultdict(float)
    for one, weight in own:
        sizes[one.group] += weight
    independent = total * total / fsum(size * size for size in sizes.values())
    if independent < _TWO:
        return Interval(0.0, 1.0, estimate=share, n=len(own))
    cells = [cell for cell in _cells(labelled, weights) if of is None or cell.label is of]
    spread = fsum(cell.number * cell.weight**2 * (cell.agrees - share) ** 2 for cell in cells)
    moves = [(one.group, weight * (one.agrees - share)) for one, weight in own]
    return effective_interval(share, spread * _excess(moves) / (total * total), independent, len(own))


_TWO = 2.0
_ENOUGH_DISAGREEMENTS = 5.0
"""With fewer disagreements in a stratum, up to one more is assumed: their number is too uncertain."""


class _Cell(NamedTuple):
    """The labels of one weight with the same label and verdict; a fractional number where some are assumed."""

    weight: float
    label: bool
    verdict: bool
    number: float

    @property
    def agrees(self) -> bool:
        return self.label is self.verdict


def _cells(labelled: Sequence[LabelAndVerdict], weights: Sequence[float]) -> list[_Cell]:
    """The labels with a verdict, counted.

    Where weights differ, each stratum is given up to one disagreement more: fifty labels without one do not prove that
    the nine hundred results that they stand for have none.
    """
    counts: dict[tuple[float, bool], list[int]] = {}
    for one, weight in zip(labelled, weights, strict=True):
        if one.verdict is not None:
            counts.setdefault((weight, one.verdict), [0, 0])[one.agrees] += 1
    assumes = not _equal(weights)
    cells = []
    for (weight, verdict), (wrong, right) in counts.items():
        assumed = max(0.0, 1.0 - wrong / _ENOUGH_DISAGREEMENTS) if assumes and right else 0.0
        cells.append(_Cell(weight, verdict, verdict, right - assumed))
        cells.append(_Cell(weight, not verdict, verdict, wrong + assumed))
    return cells


def _uncertain_table(cells: Sequence[_Cell], excess: float) -> Confusion:
    """The table whose kappa has the right uncertainty; ``excess`` is the variance added by groups."""
    sums, squares = dict.fromkeys(_TABLE, 0.0), dict.fromkeys(_TABLE, 0.0)
    for cell in cells:
        sums[cell.label, cell.verdict] += cell.number * cell.weight
        squares[cell.label, cell.verdict] += cell.number * cell.weight**2 * excess
    (tp, fp, fn, tn), (tp2, fp2, fn2, tn2) = ([found[place] for place in _TABLE] for found in (sums, squares))
    return Confusion(tp, fp, fn, tn, squares=(tp2, fp2, fn2, tn2))


_TABLE = ((True, True), (False, True), (True, False), (False, False))
"""Label and verdict of tp, fp, fn, tn."""


def _equal(weights: Sequence[float]) -> bool:
    return len(set(weights)) <= 1


def _group_excess(labelled: Sequence[LabelAndVerdict], weights: Sequence[float]) -> float:
    """The variance of kappa by groups of results over its variance by results."""
    table = agreement_table(labelled, weights)
    label = (table.positives / table.n, table.negatives / table.n)
    judge = ((table.tp + table.fp) / table.n, (table.fn + table.tn) / table.n)
    observed = (table.tp + table.tn) / table.n
    chance = label[0] * judge[0] + label[1] * judge[1]
    loss = (1.0 - observed) / (1.0 - chance)  # 1 - kappa
    return _excess(
        (
            one.group,
            weight * ((one.agrees - observed) - loss * (judge[not one.passed] + label[not one.verdict] - 2 * chance)),
        )
        for one, weight in zip(labelled, weights, strict=True)
        if one.verdict is not None
    )


def _excess(moves: Iterable[tuple[tuple[str, str], float]]) -> float:
    """The sum of squares by groups over that by results; at least 1."""
    sums: dict[tuple[str, str], float] = defaultdict(float)
    single = 0.0
    for group, move in moves:
        sums[group] += move
        single += move * move
    return max(1.0, fsum(value * value for value in sums.values()) / single) if single > 0.0 else 1.0
