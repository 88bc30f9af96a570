"""The sums of observations computed one by one, to check those of the stores against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gradeline.model.observation import Observation, ObservationSums
from gradeline.store.rows import SCORE_UNIT, score_units


def expected_sums(observations: Iterable[Observation]) -> list[ObservationSums]:
    """A case counts once, with the mean of its scores; an observation without a case is a case of its own."""
    groups: dict[tuple[str, ...], dict[tuple[str | None, str], list[Observation]]] = defaultdict(dict)
    for one in observations:
        group = (one.task_family, one.candidate_adapter, one.baseline_adapter, one.grader_id)
        case = (one.case_key, one.idempotency_key if one.case_key is None else "")
        groups[group].setdefault(case, []).append(one)
    return [_sums(group, list(groups[group].values())) for group in sorted(groups)]


def _sums(group: tuple[str, ...], cases: list[list[Observation]]) -> ObservationSums:
    scores = [[score_units(one.score)[0] for one in case if one.score is not None] for case in cases]
    means = [sum(units) // len(units) for units in scores if units]
    squares = sum(mean * mean // SCORE_UNIT for mean in means)
    family, candidate, baseline, grader = group
    return ObservationSums(
        family,
        candidate,
        baseline,
        grader,
        sum(map(len, cases)),
        sum(map(len, scores)),
        len(means),
        sum(means) / SCORE_UNIT,
        squares / SCORE_UNIT,
        max(one.observed_at for case in cases for one in case),
    )
