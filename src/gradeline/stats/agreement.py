"""Agreement of a judge with labels, and of raters: confusion tables, Cohen's kappa, Krippendorff's alpha."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import fsum, sqrt
from random import Random
from typing import Literal, NamedTuple, TypeAlias

from gradeline.stats.distributions import normal_quantile
from gradeline.stats.intervals import Interval, percentile

MeasurementLevel: TypeAlias = Literal["nominal", "ordinal", "interval", "ratio"]
"""What differences between two ratings mean: only same or not, ranks, distances, or distances relative to size."""

_RESAMPLES = 1_000


class Confusion(NamedTuple):
    """A judge's verdicts against labels. ``tp``: both say pass; ``fp``: only the judge does; ``fn``: only the label.

    Cells are counts, or sums of weights. ``missing``: labelled items without a verdict, in no other number.
    """

    tp: float
    fp: float
    fn: float
    tn: float
    missing: float = 0.0
    squares: tuple[float, float, float, float] | None = None
    """Sums of squared weights of the four cells; None where every item counts once."""

    @property
    def n(self) -> float:
        """Items with a label and a verdict."""
        return self.tp + self.fp + self.fn + self.tn

    @property
    def positives(self) -> float:
        """Items with a verdict whose label is pass."""
        return self.tp + self.fn

    @property
    def negatives(self) -> float:
        """Items with a verdict whose label is fail."""
        return self.fp + self.tn

    @property
    def agreement(self) -> float | None:
        return _share(self.tp + self.tn, self.n)

    @property
    def sensitivity(self) -> float | None:
        """The share of labelled passes that the judge passes."""
        return _share(self.tp, self.positives)

    @property
    def specificity(self) -> float | None:
        """The share of labelled failures that the judge fails."""
        return _share(self.tn, self.negatives)

    @property
    def missing_rate(self) -> float | None:
        """The share of labelled items without a verdict."""
        return _share(self.missing, self.n + self.missing)


def confusion(
    labels: Sequence[bool], verdicts: Sequence[bool | None], weights: Sequence[float] | None = None
) -> Confusion:
    """The table of a judge's verdicts (None: no verdict) against labels of the same items.

    ``weights`` are 1/sampling probability of each item, where items were not drawn with equal probability.
    """
    if len(labels) != len(verdicts):
        raise ValueError(f"{len(labels)} labels but {len(verdicts)} verdicts: pass one verdict for each label")
    if weights is None:
        counts = Counter(zip(labels, verdicts, strict=True))
        tp, fp, fn, tn = (counts[cell] for cell in _CELLS)
        return Confusion(tp, fp, fn, tn, counts[True, None] + counts[False, None])
    check_weights(weights, len(labels))
    members: dict[tuple[bool, bool | None], list[float]] = {}
    for label, verdict, weight in zip(labels, verdicts, weights, strict=True):
        members.setdefault((label, verdict), []).append(weight)
    sums = [fsum(members.get(cell, [])) for cell in _CELLS]
    squares = [fsum(weight * weight for weight in members.get(cell, [])) for cell in _CELLS]
    missing = fsum([*members.get((True, None), []), *members.get((False, None), [])])
    return Confusion(sums[0], sums[1], sums[2], sums[3], missing, (squares[0], squares[1], squares[2], squares[3]))


_CELLS = ((True, True), (False, True), (True, False), (False, False))
"""Label and verdict of tp, fp, fn, tn."""


def check_weights(weights: Sequence[float], items: int) -> None:
    """`ValueError` unless there is one finite weight above 0 for each item."""
    if len(weights) != items:
        raise ValueError(f"{items} labels but {len(weights)} weights: pass one weight for each label")
    for index, weight in enumerate(weights):
        if not 0.0 < weight < float("inf"):
            raise ValueError(f"weight {index} is {weight!r}; a weight is 1/sampling probability, so at least 1")


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def cohen_kappa(table: Confusion | Sequence[Sequence[float]], confidence: float = 0.95) -> Interval | None:
    """Cohen's kappa: agreement beyond chance, with the interval by its asymptotic standard error.

    A sequence of rows is a square table of counts of two raters over any number of categories. None where kappa is
    undefined: there are no items, or both raters used one and the same category only.
    """
    found = _kappa(table)
    if found is None:
        return None
    kappa, se, n = found
    reach = normal_quantile(0.5 + _level(confidence) / 2.0) * se
    return Interval(max(-1.0, kappa - reach), min(1.0, kappa + reach), estimate=kappa, se=se, n=n)


def kappa_lower_bound(table: Confusion | Sequence[Sequence[float]], confidence: float = 0.95) -> float | None:
    """The one-sided lower bound of Cohen's kappa; None where kappa is undefined."""
    found = _kappa(table)
    if found is None:
        return None
    kappa, se, _ = found
    return max(-1.0, kappa - normal_quantile(_level(confidence)) * se)


def _kappa(table: Confusion | Sequence[Sequence[float]]) -> tuple[float, float, int] | None:
    """Kappa, its standard error (Fleiss, Cohen and Everitt) and the number of items."""
    rows, squares = _rows(table)
    n = fsum(map(fsum, rows))
    if n <= 0:
        return None
    size = range(len(rows))
    left = [fsum(rows[i]) / n for i in size]
    right = [fsum(row[j] for row in rows) / n for j in size]
    observed = fsum(rows[i][i] for i in size) / n
    chance = fsum(left[i] * right[i] for i in size)
    if 1.0 - chance <= 1e-12:
        return None
    kappa = (observed - chance) / (1.0 - chance)
    # how much one item of each cell moves kappa; over counts this is the formula of Fleiss, Cohen and Everitt
    moves = fsum(
        squares[i][j] * (((i == j) - observed) - (1.0 - kappa) * (left[j] + right[i] - 2.0 * chance)) ** 2
        for i in size
        for j in size
    )
    return kappa, sqrt(moves) / (n * (1.0 - chance)), round(n)


def _rows(table: Confusion | Sequence[Sequence[float]]) -> tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]]:
    """The square table, and the sums of squared weights of its cells."""
    if isinstance(table, Confusion):
        rows = [[table.tp, table.fn], [table.fp, table.tn]]
        if table.squares is None:
            return rows, rows
        tp, fp, fn, tn = table.squares
        return rows, [[tp, fn], [fp, tn]]
    if any(len(row) != len(table) for row in table):
        raise ValueError(f"the table has {len(table)} rows: each needs the same number of columns")
    if any(cell < 0 for row in table for cell in row):
        raise ValueError("the table has a negative count")
    return table, table


def _level(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}")
    return confidence


def krippendorff_alpha(
    units: Iterable[Mapping[str, float | str]],
    level: MeasurementLevel = "nominal",
    seed: int = 0,
    confidence: float = 0.95,
) -> Interval | None:
    """Krippendorff's alpha of any number of raters; a unit maps raters to ratings, and may lack raters.

    The interval is a percentile bootstrap over units, the same for the same seed. None where alpha is undefined: no
    unit has two ratings, or all ratings are equal.
    """
    rated = [list(unit.values()) for unit in units if len(unit) > 1]
    ratings = _Ratings(rated, level)
    alpha = ratings.alpha(Counter(range(len(rated))))
    if alpha is None:
        return None
    random = Random(seed)
    everything = range(len(rated))
    resampled = (ratings.alpha(Counter(random.choices(everything, k=len(rated)))) for _ in range(_RESAMPLES))
    drawn = sorted(value for value in resampled if value is not None)
    tail = (1.0 - _level(confidence)) / 2.0
    low, high = (percentile(drawn, share) for share in (tail, 1.0 - tail)) if drawn else (-1.0, 1.0)
    return Interval(min(low, alpha), max(high, alpha), estimate=alpha, n=len(rated))


class _Ratings:
    """Ratings of units, as counts of each distinct value."""

    def __init__(self, units: Sequence[Sequence[float | str]], level: MeasurementLevel) -> None:
        values = _ordered({value for unit in units for value in unit}, level)
        place = {value: index for index, value in enumerate(values)}
        self._units = [sorted(Counter(place[value] for value in unit).items()) for unit in units]
        self._values = values
        self._level = level
        self._fixed = None if level == "ordinal" else [self._disagreement(unit, values) for unit in self._units]

    def alpha(self, times: Mapping[int, int]) -> float | None:
        """Alpha where each unit counts this number of times."""
        totals = [0] * len(self._values)
        for unit, count in times.items():
            for value, ratings in self._units[unit]:
                totals[value] += count * ratings
        n = sum(totals)
        scale = _midranks(totals) if self._level == "ordinal" else self._values
        expected = self._pairs(list(enumerate(totals)), scale)
        if n < 2 or expected <= 0.0:
            return None
        fixed = self._fixed
        observed = fsum(
            count * (fixed[unit] if fixed is not None else self._disagreement(self._units[unit], scale))
            for unit, count in times.items()
        )
        return 1.0 - (n - 1) * observed / expected

    def _disagreement(self, counts: Sequence[tuple[int, int]], scale: Sequence[float | str]) -> float:
        return self._pairs(counts, scale) / (sum(count for _, count in counts) - 1)

    def _pairs(self, counts: Sequence[tuple[int, int]], scale: Sequence[float | str]) -> float:
        """The sum of squared distances over all pairs of ratings."""
        if self._level == "nominal":
            n = sum(count for _, count in counts)
            return float(n * n - sum(count * count for _, count in counts)) / 2.0
        numbers = [(float(scale[value]), count) for value, count in counts if count]
        if self._level == "ratio":
            return fsum(a * b * ((x - y) / (x + y)) ** 2 for (x, a), (y, b) in combinations(numbers, 2) if x + y != 0.0)
        n = sum(count for _, count in numbers)
        mean = fsum(x * count for x, count in numbers) / n if n else 0.0
        return n * fsum(count * (x - mean) ** 2 for x, count in numbers)


def _ordered(values: Iterable[float | str], level: MeasurementLevel) -> list[float | str]:
    if level == "nominal":
        return sorted(values, key=str)
    numbers: list[float | str] = []
    for value in values:
        if isinstance(value, str):
            raise ValueError(f"rating {value!r} is not a number: alpha at the level {level!r} needs numbers")
        if level == "ratio" and value < 0:
            raise ValueError(f"rating {value!r} is negative: alpha at the level 'ratio' needs numbers from 0")
        numbers.append(value)
    return sorted(numbers, key=float)


def _midranks(totals: Sequence[int]) -> list[float]:
    """The mean rank of each value among all ratings."""
    ranks, before = [], 0
    for total in totals:
        ranks.append(before + total / 2.0)
        before += total
    return ranks
