"""Two runs side by side: the scores of the cases that both have, in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gradeline.model import Measure, Run, Storage
from gradeline.verdict import Paired


def case_means(measures: Iterable[Measure], keys: Iterable[str]) -> dict[str, dict[str, float]]:
    """Per grader each case's mean over its repeats; a case without a score is not there."""
    sums: dict[str, dict[str, tuple[float, int]]] = {key: {} for key in keys}
    for one in measures:
        for key, cases in sums.items():
            grade = one.grades.get(key)
            if grade is not None and grade.score is not None:
                total, count = cases.get(one.case, (0.0, 0))
                cases[one.case] = (total + grade.score, count + 1)
    return {key: {case: total / count for case, (total, count) in cases.items()} for key, cases in sums.items()}


def paired(storage: Storage, baseline: Run, candidate: Run, keys: Iterable[str]) -> Mapping[str, Paired]:
    """Per grader the scores of the cases that both runs have, paired by case."""
    wanted = tuple(keys)
    before = case_means(storage.measures(baseline.id), wanted)
    after = case_means(storage.measures(candidate.id), wanted)
    pairs = {}
    for key in wanted:
        common = [case for case in after[key] if case in before[key]]
        pairs[key] = Paired([before[key][case] for case in common], [after[key][case] for case in common])
    return pairs
