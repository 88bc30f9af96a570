"""Labels of a run next to the grades that they are about, for rates and differences that labels correct."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from operator import mul
from typing import NamedTuple, TypeAlias

from gradeline.engine.definition import command
from gradeline.errors import Outcome
from gradeline.model import Measure, Run, Storage
from gradeline.model.label import ReferenceLabel, ReferenceLabels
from gradeline.store.database import SharedStorage
from gradeline.store.labels import draws_of_run, has_label_tables, reference_labels
from gradeline.store.sql_storage import response_chain
from gradeline.verdict.corrected import CorrectedMeasure, JudgedLabel, LabelledScores
from gradeline.verdict.corrected_difference import LabelledPair, LabelledPairs
from gradeline.verdict.evidence import AgentErrors, Clustering, PairedScores


def labelled_scores(storage: Storage, run: Run) -> dict[str, LabelledScores]:
    """The scores of each grader with the labels of its question; the run's rows are only read if it has labels."""
    labels = {key: reference_labels(storage, run, key) for key in run.graders}
    reading = {key: _LabelReading(run, key, found) for key, found in labels.items() if _any(found)}
    if reading:
        clusters = storage.clusters(run.id)
        groups = _Groups(clusters)
        for measure in storage.measures(run.id):
            group = groups.of(measure.case)
            for one in reading.values():
                one.add(measure, group)
        found = {key: one.scores(clusters) for key, one in reading.items()}
    else:
        found = {}
    return {key: found.get(key) or _without_labels(run, key) for key in run.graders}


def label_command(run: Run, key: str) -> str:
    """The command that draws labels of a grader's question."""
    grader = ("--grader", shlex.quote(key)) if len(run.graders) > 1 else ()
    return command("label", run.id, None, *grader)


def _any(labels: ReferenceLabels) -> bool:
    return bool(labels.labels or labels.unresolved or labels.stale)


def _without_labels(run: Run, key: str) -> LabelledScores:
    return LabelledScores(has_judge=bool(run.graders[key].judges), command=label_command(run, key))


class _Groups:
    """Numbers for cases that are independent of each other: one per cluster, or case without one."""

    def __init__(self, clusters: Mapping[str, str]) -> None:
        self._clusters = clusters
        self._numbers: dict[tuple[bool, str], int] = {}

    def of(self, case: str) -> int:
        cluster = self._clusters.get(case)
        name = (False, case) if cluster is None else (True, cluster)
        return self._numbers.setdefault(name, len(self._numbers))


class _LabelReading:
    """Collects the results of one grader while the rows of the run are read."""

    def __init__(self, run: Run, key: str, labels: ReferenceLabels) -> None:
        self._run, self._key, self._found = run, key, labels
        self._labels = {
            (label.case, label.repeat): label
            for label in labels.labels
            if label.passed is not None or label.score is not None
        }
        self._labelled: list[JudgedLabel] = []
        self._cases: list[str] = []
        self._scores: list[float] = []
        self._passes: list[int] = []
        self._groups: list[int] = []
        self._failed: list[int] = []
        self._total = 0
        self._not_applicable = 0

    def add(self, measure: Measure, group: int) -> None:
        grade = measure.grades.get(self._key)
        self._total += 1
        if grade is not None and grade.outcome == Outcome.NOT_APPLICABLE:
            self._not_applicable += 1
        elif measure.status != "success":
            self._failed.append(group)
        elif grade is not None and grade.score is not None:
            passed = grade.outcome == Outcome.PASS
            label = self._labels.get((measure.case, measure.repeat))
            if label is None:
                self._scores.append(grade.score)
                self._passes.append(passed)
                self._groups.append(group)
            else:
                self._cases.append(measure.case)
                self._labelled.append(
                    JudgedLabel(group, grade.score, passed, label.passed, label.score, label.probability)
                )

    def scores(self, clusters: Mapping[str, str]) -> LabelledScores:
        total = max(self._total, self._run.total or 0) - self._not_applicable
        cases = Clustering(len(set(self._cases)), len({one.group for one in self._labelled})) if clusters else None
        return _without_labels(self._run, self._key)._replace(
            labelled=self._labelled,
            scores=self._scores,
            passes=self._passes,
            groups=self._groups,
            total=total,
            unjudged=len(self._labels) - len(self._labelled),
            categories=len(self._found.labels) - len(self._labels),
            unresolved=self._found.unresolved,
            stale=self._found.stale,
            cases=cases,
            failed_calls=self._failed,
        )


def with_labels(
    storage: Storage,
    baseline: Run,
    candidate: Run,
    key: str,
    paired: PairedScores,
    agent_errors: AgentErrors = "exclude",
) -> PairedScores:
    """The paired scores with the labels of both runs."""
    return paired._replace(labels=labelled_pairs(storage, baseline, candidate, key, paired, agent_errors))


def labelled_pairs(
    storage: Storage,
    baseline: Run,
    candidate: Run,
    key: str,
    paired: PairedScores,
    agent_errors: AgentErrors = "exclude",
) -> LabelledPairs:
    """The paired cases of two runs with the labels of each."""
    runs = (baseline, candidate)
    seeds = [_seeds(storage, run, key) for run in runs]
    shared = _shared_seed(*seeds)
    several = shared is not None and max(map(len, seeds)) > 1
    labels = [reference_labels(storage, run, key, shared if several else None).labels for run in runs]
    commands = LabelledPairs(
        baseline_command=label_command(baseline, key), candidate_command=label_command(candidate, key)
    )
    counts = [len({label.case for label in of_run}) for of_run in labels]
    found = commands._replace(baseline_labels=counts[0], candidate_labels=counts[1])
    if not all(counts):
        return found
    if paired.look is not None:
        return found._replace(obstacle="one of the runs could end early, by looks at the judge's scores")
    measure: CorrectedMeasure = (
        "mean_score" if all(label.score is not None for of_run in labels for label in of_run) else "pass_rate"
    )
    sides = [
        _cases_of(storage, run, key, of_run, measure, agent_errors) for run, of_run in zip(runs, labels, strict=True)
    ]
    if agent_errors == "fail" and any(run.repeats > 1 for run in runs) and any(side.failed for side in sides):
        return found._replace(obstacle="failed calls of repeated cases count as 0, which labels do not cover")
    both: JointProbability = mul if shared is None else min
    return _with_cases(found._replace(measure=measure), paired, sides[0], sides[1], both)


class _JudgedCase(NamedTuple):
    """The judge's mean over the results of a case, and over those with a label; and the mean of the labels."""

    judged: float
    label: float | None = None
    judged_labelled: float = 0.0
    probability: float | None = None


class _Side(NamedTuple):
    cases: dict[str, _JudgedCase]
    failed: bool


class _ResultValue(NamedTuple):
    judged: float
    label: float | None
    probability: float | None


def _cases_of(
    storage: Storage,
    run: Run,
    key: str,
    labels: Sequence[ReferenceLabel],
    measure: CorrectedMeasure,
    agent_errors: AgentErrors,
) -> _Side:
    """The judged cases of one run."""
    by_result = {(label.case, label.repeat): label for label in labels}
    results: dict[str, list[_ResultValue]] = {}
    failed = False
    for one in storage.measures(run.id):
        grade = one.grades.get(key)
        if one.status != "success":
            failed = True
            if agent_errors == "fail" and (grade is None or grade.outcome != Outcome.NOT_APPLICABLE):
                results.setdefault(one.case, []).append(_ResultValue(0.0, 0.0, 1.0))  # it fails for certain
        elif grade is not None and grade.score is not None:
            judged = grade.score if measure == "mean_score" else float(grade.outcome == Outcome.PASS)
            label = by_result.get((one.case, one.repeat))
            value = None if label is None else _value(label, measure)
            probability = None if label is None else label.probability
            results.setdefault(one.case, []).append(_ResultValue(judged, value, probability))
    if all(result.label is not None for case in results.values() for result in case):
        results = {case: [result._replace(probability=1.0) for result in found] for case, found in results.items()}
    drawn = {result.probability for case in results.values() for result in case if result.label is not None}
    known = run.repeats == 1 or len(drawn) == 1
    return _Side({case: _labelled_case(found, known) for case, found in results.items()}, failed)


def _value(label: ReferenceLabel, measure: CorrectedMeasure) -> float | None:
    if measure == "mean_score":
        return label.score
    return None if label.passed is None else float(label.passed)


def _labelled_case(results: Sequence[_ResultValue], known: bool) -> _JudgedCase:
    """``known`` says whether the probability of a result tells how often its case has a label."""
    judged = _mean(result.judged for result in results)
    labelled = [result for result in results if result.label is not None]
    if not labelled:
        return _JudgedCase(judged)
    return _JudgedCase(
        judged,
        _mean(result.label for result in labelled if result.label is not None),
        _mean(result.judged for result in labelled),
        labelled[0].probability if known else None,
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return fsum(found) / len(found)


JointProbability: TypeAlias = Callable[[float, float], float]
"""The probability that a case is drawn in both runs, from those in each."""


def _shared_seed(baseline: Mapping[int, int], candidate: Mapping[int, int]) -> int | None:
    """The seed whose samples have the most cases in both runs, of seeds with the results drawn by each; None if none.

    The order of a sample depends on its seed and on the names of the cases only: one seed draws the same cases. How
    likely a case is in both runs is not known of samples with several seeds, so one of them is used.
    """
    shared = {seed: min(number, candidate[seed]) for seed, number in baseline.items() if seed in candidate}
    return max(shared, key=lambda seed: (shared[seed], -seed), default=None)


def _seeds(storage: Storage, run: Run, key: str) -> Counter[int]:
    """The number of results that were drawn of a run for a grader's question with a known probability, by seed."""
    if not isinstance(storage, SharedStorage) or not has_label_tables(storage.database.read):
        return Counter()
    read = storage.database.read
    draws = (draw for one in response_chain(read, run.id) for draw in draws_of_run(read, one, key))
    return Counter(draw.seed for draw in draws if draw.probability is not None)


def _with_cases(
    found: LabelledPairs, paired: PairedScores, baseline: _Side, candidate: _Side, joint: JointProbability
) -> LabelledPairs:
    """With the cases that the judge scored in both runs."""
    groups: dict[tuple[bool, str], int] = {}
    pairs, labelled = [], []
    for place, case in enumerate(paired.cases):
        first, second = baseline.cases.get(case), candidate.cases.get(case)
        if first is None or second is None:
            continue
        cluster = paired.clusters[place] if paired.clusters else None
        name = (False, case) if cluster is None else (True, cluster)
        pair = _pair(groups.setdefault(name, len(groups)), first, second, joint)
        pairs.append(pair)
        if pair.label is not None:
            labelled.append(pair.group)
    clustering = Clustering(len(labelled), len(set(labelled))) if paired.clusters else None
    return found._replace(pairs=pairs, cases=clustering)


def _pair(group: int, first: _JudgedCase, second: _JudgedCase, joint: JointProbability) -> LabelledPair:
    judged = second.judged - first.judged
    if first.label is None or second.label is None:
        return LabelledPair(group, judged)
    both = None
    if first.probability is not None and second.probability is not None:
        both = joint(first.probability, second.probability)
    return LabelledPair(group, judged, second.label - first.label, second.judged_labelled - first.judged_labelled, both)
