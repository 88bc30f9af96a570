"""Two runs side by side: what graders said of the cases that both have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import NamedTuple, TypeAlias

from gradeline.model import Measure, Run, Storage
from gradeline.verdict.columns import Paired
from gradeline.verdict.comparison import PairedCases

Tries: TypeAlias = tuple[float | None, ...]
"""The scores of a case's repeats; None is a failed agent call. What a grader could not grade is not there."""


class RunScores(NamedTuple):
    """The cases of a run in their order, and for each the digest of its sample and what each grader said."""

    cases: list[str]
    digests: list[str]
    graders: dict[str, list[Tries]]


class Overlap(NamedTuple):
    """Which cases two runs share, as pairs of places. ``edited`` cases have the same name but are not the same."""

    common: list[tuple[int, int]]
    edited: list[str]
    baseline_alone: list[str]
    candidate_alone: list[str]


def scores_of(measures: Iterable[Measure], keys: Iterable[str]) -> RunScores:
    """One pass over a run, whose measures come with their digests."""
    cases: list[str] = []
    digests: list[str] = []
    graders: dict[str, list[Tries]] = {key: [] for key in keys}
    columns = list(graders.items())
    last = None
    for case, _, status, _, _, grades, digest in measures:
        if case != last:
            last = case
            cases.append(case)
            digests.append(digest)
            for _, tries in columns:
                tries.append(())
        for key, tries in columns:
            grade = grades.get(key)
            score = None if grade is None else grade.score
            if score is not None or status != "success":
                tries[-1] += (score,)
    return RunScores(cases, digests, graders)


def overlap(baseline: RunScores, candidate: RunScores) -> Overlap:
    """The cases by where they are, in the order of the candidate."""
    if baseline[:2] == candidate[:2]:  # the usual thing, and the quick one
        return Overlap([(place, place) for place in range(len(candidate.cases))], [], [], [])
    places = {case: place for place, case in enumerate(baseline.cases)}
    common: list[tuple[int, int]] = []
    edited, alone = [], []
    for after, case in enumerate(candidate.cases):
        before = places.pop(case, None)
        if before is None:
            alone.append(case)
        elif baseline.digests[before] == candidate.digests[after]:
            common.append((before, after))
        else:
            edited.append(case)
    return Overlap(common, edited, list(places), alone)


def paired_cases(baseline: RunScores, candidate: RunScores, cases: Overlap, key: str) -> PairedCases:
    """A grader's mean over the repeats of each case, in both runs; a case without a score in one of them is missing."""
    firsts, seconds = baseline.graders[key], candidate.graders[key]
    names: list[str] = []
    before: list[float] = []
    after: list[float] = []
    missing: list[str] = []
    for place, other in cases.common:
        first, second = _mean(firsts[place]), _mean(seconds[other])
        if first is None or second is None:
            missing.append(candidate.cases[other])
        else:
            names.append(candidate.cases[other])
            before.append(first)
            after.append(second)
    missing += cases.baseline_alone
    missing += cases.candidate_alone
    return PairedCases(names, before, after, missing, cases.edited)


def _mean(tries: Tries) -> float | None:
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


def _try_by_try(before: Sequence[Tries], after: Sequence[Tries], common: Iterable[tuple[int, int]]) -> Paired:
    firsts: list[float | None] = []
    seconds: list[float | None] = []
    cases: list[int] = []
    for place, other in common:
        first, second = before[place], after[other]
        if first and second:
            for index in range(max(len(first), len(second))):
                firsts.append(first[index % len(first)])
                seconds.append(second[index % len(second)])
                cases.append(other)
    return Paired(firsts, seconds, cases)
