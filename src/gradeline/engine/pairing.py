"""Two runs side by side: what graders said of the cases that both have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import fsum
from typing import NamedTuple, TypeAlias

from gradeline.model import Measure, Run, Storage
from gradeline.verdict.columns import Paired
from gradeline.verdict.comparison import PairedCases

Tries: TypeAlias = tuple[float | None, ...]
"""The scores of a case's repeats; None is a failed agent call. What a grader could not grade is not there."""


class RunScores(NamedTuple):
    """The cases of a run in their order, each with the digest of its sample, and what each grader said of them."""

    digests: dict[str, str]
    graders: dict[str, dict[str, Tries]]


class Overlap(NamedTuple):
    """Which cases two runs share. ``edited`` cases have the same name but are not the same."""

    common: list[str]
    edited: list[str]
    baseline_alone: list[str]
    candidate_alone: list[str]


def scores_of(measures: Iterable[Measure], keys: Iterable[str]) -> RunScores:
    """One pass over a run. The measures need their digests."""
    found = RunScores({}, {key: {} for key in keys})
    digests, columns = found.digests, list(found.graders.items())
    for case, _, status, _, _, grades, digest in measures:
        digests[case] = digest
        for key, tries in columns:
            grade = grades.get(key)
            score = None if grade is None else grade.score
            if score is not None or status != "success":
                tries[case] = (*tries[case], score) if case in tries else (score,)
    return found


def overlap(baseline: RunScores, candidate: RunScores) -> Overlap:
    """The cases by where they are."""
    cases = Overlap([], [], [], [])
    after = candidate.digests
    for case, digest in baseline.digests.items():
        if case not in after:
            cases.baseline_alone.append(case)
        elif after[case] == digest:
            cases.common.append(case)
        else:
            cases.edited.append(case)
    cases.candidate_alone.extend(case for case in after if case not in baseline.digests)
    return cases


def paired_cases(baseline: RunScores, candidate: RunScores, cases: Overlap, key: str) -> PairedCases:
    """A grader's mean over the repeats of each case, in both runs; a case without a score in one of them is missing."""
    before, after = baseline.graders[key], candidate.graders[key]
    pairs = PairedCases([], [], [], [], cases.edited)
    names, firsts, seconds, missing = [], [], [], []
    for case in cases.common:
        first, second = _mean(before.get(case)), _mean(after.get(case))
        if first is None or second is None:
            missing.append(case)
        else:
            names.append(case)
            firsts.append(first)
            seconds.append(second)
    missing += [*cases.baseline_alone, *cases.candidate_alone]
    return pairs._replace(cases=names, baseline=firsts, candidate=seconds, missing=missing)


def _mean(tries: Tries | None) -> float | None:
    if tries is None:
        return None
    if len(tries) == 1:
        return tries[0]
    scores = [score for score in tries if score is not None]
    return fsum(scores) / len(scores) if scores else None


def paired(storage: Storage, baseline: Run, candidate: Run, keys: Iterable[str]) -> Mapping[str, Paired]:
    """For a gate: per grader the scores on the cases that both runs have, try by try.

    A grader that is not the same in both runs is not there, an edited case is left out. Where one run has fewer
    repeats of a case, each of them stands beside several of the other's.
    """
    alike = [key for key in keys if is_same_grader(baseline, candidate, key)]
    before = scores_of(storage.measures(baseline.id, digests=True), alike)
    after = scores_of(storage.measures(candidate.id, digests=True), alike)
    common = overlap(before, after).common
    return {key: _try_by_try(before.graders[key], after.graders[key], common) for key in alike}


def is_same_grader(baseline: Run, candidate: Run, key: str) -> bool:
    """Whether both runs have this grader, and it is the same."""
    first, second = baseline.graders.get(key), candidate.graders.get(key)
    return first is not None and second is not None and first.fingerprint == second.fingerprint


def _try_by_try(before: Mapping[str, Tries], after: Mapping[str, Tries], common: Iterable[str]) -> Paired:
    firsts: list[float | None] = []
    seconds: list[float | None] = []
    cases: list[int] = []
    for number, case in enumerate(common):
        first, second = before.get(case), after.get(case)
        if first and second:
            for index in range(max(len(first), len(second))):
                firsts.append(first[index % len(first)])
                seconds.append(second[index % len(second)])
                cases.append(number)
    return Paired(firsts, seconds, cases)
