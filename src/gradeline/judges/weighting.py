"""The score of a panel with weights from labels: the probability that people pass the response."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt

from gradeline.model.learned_judging import MemberScores, PanelWeights, fold_of
from gradeline.stats.logistic import LogisticModel

Scores = Sequence[float | None]
"""The scores of a panel's members, in order; None is a member without one."""
_SHRINKAGE = 2.0
"""How many results count against correlations that the labelled results show."""


def panel_probability(weights: PanelWeights, case: str, scores: Scores) -> float:
    """The probability of a pass, by the model that was learned without the labels of this case's fold."""
    model = weights.models[fold_of(case, len(weights.models))]
    return LogisticModel(model.coefficients, model.intercept).probability(standardized(weights.scores, scores))


def member_scores(rows: Sequence[Scores]) -> MemberScores:
    """Means, deviations and correlations of the members' scores; each from the results where both are known."""
    members = range(len(rows[0]))
    means: list[float] = []
    deviations: list[float] = []
    for member in members:
        known = [row[member] for row in rows]
        values = [score for score in known if score is not None]
        mean = fsum(values) / len(values) if values else 0.5
        means.append(mean)
        deviations.append(sqrt(fsum((score - mean) ** 2 for score in values) / len(values)) if values else 0.0)
    scores = MemberScores(means=tuple(means), deviations=tuple(deviations), correlations=(), results=len(rows))
    z = [[_standard(scores, member, row[member]) for member in members] for row in rows]
    correlations = tuple(tuple(_correlation(z, one, other) for other in members) for one in members)
    return MemberScores(means=tuple(means), deviations=tuple(deviations), correlations=correlations, results=len(rows))


def standardized(members: MemberScores, scores: Scores) -> list[float]:
    """The scores as distances from each member's mean; a missing one is what those of the others suggest."""
    z = [_standard(members, member, score) for member, score in enumerate(scores)]
    known = [member for member, value in enumerate(z) if value is not None]
    if len(known) < len(z):
        shares = _shares(members, known, [z[member] or 0.0 for member in known])
        for member, value in enumerate(z):
            if value is None:
                row = members.correlations[member]
                z[member] = fsum(share * row[other] for share, other in zip(shares, known, strict=True))
    return [value or 0.0 for value in z]


def _standard(members: MemberScores, member: int, score: float | None) -> float | None:
    if score is None:
        return None
    deviation = members.deviations[member]
    return (score - members.means[member]) / deviation if deviation > 0 else 0.0


def _correlation(z: Sequence[Sequence[float | None]], one: int, other: int) -> float:
    if one == other:
        return 1.0
    products = [a * b for row in z if (a := row[one]) is not None and (b := row[other]) is not None]
    return fsum(products) / len(products) if products else 0.0


def _shares(members: MemberScores, known: Sequence[int], z: Sequence[float]) -> list[float]:
    """The solution of the normal equations of the known members, shrunk a little."""
    ridge = 1.0 + _SHRINKAGE / max(members.results, 1)
    matrix = [
        [ridge if one == other else members.correlations[one][other] for other in known] + [value]
        for one, value in zip(known, z, strict=True)
    ]
    size = len(known)
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(matrix[row][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-12:  # pairs with different results can contradict each other
            return [0.0] * size
        for row in range(size):
            factor = matrix[row][i] / matrix[i][i] if row != i else 0.0
            if factor:
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[i], strict=True)]
    return [row[-1] / row[i] for i, row in enumerate(matrix)]
