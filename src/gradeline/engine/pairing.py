"""Two runs side by side: what graders said of the cases that both have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from gradeline.model import Columns, GradeColumns, ResponseColumns, Run, Storage
from gradeline.stats.changes import ALPHA
from gradeline.stats.sequential import LOOKS, look_sizes
from gradeline.verdict.columns import NO_NOISE, Look, Paired, Tries


class RunScores(NamedTuple):
    """The cases of a run in their order, and for each the digest of its sample and what each grader said."""

    cases: list[str]
    digests: list[str]
    graders: dict[str, list[Tries]]
    clusters: Sequence[str | None] = ()
    """The cluster of each case, None for one that has none; empty where no case has one."""
    noise: Mapping[str, float] = NO_NOISE
    """By grader, the change of a case below which it counts as same; not those of which every change counts."""

    @property
    def places(self) -> dict[str, int]:
        """Where each case is."""
        return {case: place for place, case in enumerate(self.cases)}


class Overlap(NamedTuple):
    """Which cases two runs share, as pairs of places. ``edited`` cases have the same name but are not the same."""

    common: list[tuple[int, int]]
    edited: list[str]
    baseline_only: list[str]
    candidate_only: list[str]
    look: Look | None = None
    """Where a run may have ended early: the cases are those up to its last look."""


def read_scores(storage: Storage, run: Run, keys: Iterable[str]) -> RunScores:
    """One pass over a run."""
    scores, clusters = scores_of(storage.columns(run.id, digests=True), keys), storage.clusters(run.id)
    scores = scores._replace(noise=noise_of(run))
    return scores._replace(clusters=[clusters.get(case) for case in scores.cases]) if clusters else scores


def noise_of(run: Run) -> Mapping[str, float]:
    """The suite's `noise` of each grader, where it has one."""
    return {key: grader.noise for key, grader in run.graders.items() if grader.noise}


def scores_of(pages: Iterable[Columns], keys: Iterable[str]) -> RunScores:
    """The scores in pages of columns, which come with their digests."""
    read = _Reading(keys)
    for responses, grades in pages:
        read.add(responses, grades)
    return read.in_order()


class _Reading:
    """Scores while they are read, by the name of their case."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._cases: list[str] = []
        self._digests: list[str] = []
        self._positions: list[int] = []
        self._graders: dict[str, list[Tries]] = {key: [] for key in keys}

    def add(self, responses: ResponseColumns, grades: GradeColumns) -> None:
        if responses.cases and not self._add_whole(responses, grades):
            self._add_each(responses, grades)

    def _add_whole(self, responses: ResponseColumns, grades: GradeColumns) -> bool:
        """The usual page: every case once, each with a grade of every grader. It is taken column by column."""
        cases, statuses = responses.cases, responses.statuses
        graders = tuple(grades.graders[: len(grades.graders) // len(cases)])
        if (
            statuses.count("success") != len(statuses)
            or tuple(grades.graders) != graders * len(cases)
            or any(grades.cases[place :: len(graders)] != cases for place in range(len(graders)))
            or len(set(cases)) != len(cases)
            or (self._cases and self._cases[-1] == cases[0])
            or not set(self._graders).issubset(graders)
        ):
            return False
        columns = {key: grades.scores[graders.index(key) :: len(graders)] for key in self._graders}
        if any(None in scores for scores in columns.values()):
            return False
        self._cases += cases
        self._digests += responses.digests
        self._positions += responses.positions
        for key, scores in columns.items():
            self._graders[key] += zip(scores, strict=True)
        return True

    def _add_each(self, responses: ResponseColumns, grades: GradeColumns) -> None:
        failed = Counter(
            case for case, status in zip(responses.cases, responses.statuses, strict=True) if status != "success"
        )
        scored: dict[str, dict[str, list[float]]] = {key: {} for key in self._graders}
        for case, key, score in zip(grades.cases, grades.graders, grades.scores, strict=True):
            if score is not None and key in scored:
                scored[key].setdefault(case, []).append(score)
        for case, digest, position in zip(responses.cases, responses.digests, responses.positions, strict=True):
            if self._cases and self._cases[-1] == case:
                continue
            self._cases.append(case)
            self._digests.append(digest)
            self._positions.append(position)
            for tries in self._graders.values():
                tries.append(())
        # a page may continue the last case of the one before
        first = len(self._cases) - len(set(responses.cases))
        for place in range(first, len(self._cases)):
            case = self._cases[place]
            for key, tries in self._graders.items():
                tries[place] += (*repeat(None, failed[case]), *scored[key].get(case, ()))

    def in_order(self) -> RunScores:
        """By the position of the case."""
        positions = self._positions
        if positions == sorted(positions):
            return RunScores(self._cases, self._digests, self._graders)
        order = sorted(range(len(positions)), key=positions.__getitem__)
        return RunScores(
            [self._cases[place] for place in order],
            [self._digests[place] for place in order],
            {key: [tries[place] for place in order] for key, tries in self._graders.items()},
        )


def overlap(baseline: RunScores, candidate: RunScores) -> Overlap:
    """The cases by where they are, in the order of the candidate."""
    if baseline[:2] == candidate[:2]:  # the usual thing, and the quick one
        return Overlap([(place, place) for place in range(len(candidate.cases))], [], [], [])
    places = baseline.places
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


def up_to_the_look(cases: Overlap, baseline: Run, candidate: Run) -> Overlap:
    """The cases that may be compared where one of the runs is judged by its looks: those up to its last one.

    The intervals of all looks hold together, whatever decides which is the last. So they are valid against any other
    run, and for a run as the baseline of others. Of two runs that were both stopped no case may be compared: each
    stopped at its own look, in its own order.
    """
    sides = ((candidate.early, 1), (baseline.early, 0)) if baseline.id != candidate.id else ()
    looks = [(early, side) for early, side in sides if early is not None and early.decides]
    stopped = [(early, side) for early, side in looks if early.stopped]
    if not looks:
        return cases
    if both_stopped(baseline, candidate):
        return Overlap([], cases.edited, [], [])
    early, side = (stopped or looks)[0]
    number, common = early.look, [pair for pair in cases.common if pair[side] < early.place]
    if not number:  # it was interrupted: the look that was due by then
        number = max(1, min(LOOKS, LOOKS * len(cases.common) // early.of))
        common = sorted(cases.common, key=lambda pair: pair[side])[: look_sizes(early.of)[number - 1]]
    cases = cases._replace(common=common, look=Look(number, ALPHA / early.graders))
    if early.stopped:  # what the other run has beyond it was not asked, and is not missing
        cases = cases._replace(baseline_only=[]) if side else cases._replace(candidate_only=[])
    return cases


def both_stopped(baseline: Run, candidate: Run) -> bool:
    """Whether both runs ended early."""
    return all(run.early is not None and run.early.stopped for run in (baseline, candidate))


def paired_scores(baseline: RunScores, candidate: RunScores, cases: Overlap, key: str) -> Paired:
    """One grader's scores in both runs, of each case of the baseline that was not edited.

    A case belongs to the cluster that it has in the candidate, else to that in the baseline. The candidate's suite
    says which changes count as same.
    """
    firsts, seconds = baseline.graders[key], candidate.graders[key]
    places = baseline.places if cases.baseline_only else {}
    only = [places[case] for case in cases.baseline_only]
    return Paired(
        [candidate.cases[other] for _, other in cases.common] + cases.baseline_only,
        [firsts[place] for place, _ in cases.common] + [firsts[place] for place in only],
        [seconds[other] for _, other in cases.common] + [()] * len(only),
        cases.candidate_only,
        cases.edited,
        _clusters(baseline, candidate, cases, only),
        cases.look,
        candidate.noise.get(key, 0.0),
    )


def _clusters(baseline: RunScores, candidate: RunScores, cases: Overlap, only: list[int]) -> Sequence[str | None]:
    if not baseline.clusters and not candidate.clusters:
        return ()
    firsts = baseline.clusters or [None] * len(baseline.cases)
    seconds = candidate.clusters or [None] * len(candidate.cases)
    return [seconds[other] or firsts[place] for place, other in cases.common] + [firsts[place] for place in only]


def paired(storage: Storage, baseline: Run, candidate: Run, keys: Iterable[str]) -> Mapping[str, Paired]:
    """For a gate: the scores of each grader in both runs. A grader that is not the same in both runs is left out."""
    alike = [key for key in keys if is_same_grader(baseline, candidate, key)]
    before, after = (read_scores(storage, run, alike) for run in (baseline, candidate))
    cases = up_to_the_look(overlap(before, after), baseline, candidate)
    return {key: paired_scores(before, after, cases, key) for key in alike}


def is_same_grader(baseline: Run, candidate: Run, key: str) -> bool:
    """Whether both runs have this grader, and it is the same."""
    first, second = baseline.graders.get(key), candidate.graders.get(key)
    return first is not None and second is not None and first.fingerprint == second.fingerprint
