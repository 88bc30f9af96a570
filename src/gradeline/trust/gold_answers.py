"""Answers of known quality, with the verdicts of a judge on them and the family of the models that wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import fmean
from typing import NamedTuple

from gradeline.judges.panel import family
from gradeline.model import ResponseKey, Run, Storage
from gradeline.store.labels import reference_labels
from gradeline.trust.length_coefficient import LabelledLength
from gradeline.trust.probe_findings import GoldAnswer, JudgedAnswer

PRODUCER = "producer"
"""The key of a case's metadata that names the model which wrote its answer."""
LABELS, OTHER_GRADERS = "labels", "the graders that call no model"
_MAX_RUNS = 20
_SEARCHED = 500


class KnownVerdict(NamedTuple):
    """The verdict on an answer with a label."""

    verdict: float
    passed: bool
    truth: float
    family: str | None
    """Of the model that wrote the answer; None if unknown."""
    characters: int


class GoldAnswers(NamedTuple):
    """The answers, and where their true quality comes from."""

    answers: list[GoldAnswer]
    gold: str


class JudgeIdentity(NamedTuple):
    """The grader whose verdicts are used, and the families of its models."""

    suite: str
    grader: str
    fingerprint: str
    judges: tuple[str, ...]

    @property
    def families(self) -> frozenset[str]:
        return frozenset(map(family, self.judges))


def known_verdicts(
    storage: Storage, judge: JudgeIdentity, own_verdict: Callable[[str, str], JudgedAnswer]
) -> list[KnownVerdict]:
    """The labelled answers of the latest runs of the suite.

    ``own_verdict`` gives the verdict on a case of a run that the probe has judged itself; others come from the store.
    """
    found: dict[ResponseKey, KnownVerdict] = {}
    for run in _runs(storage, judge):
        for key, one in _labelled(storage, run, judge, own_verdict):
            found.setdefault(key, one)
    return list(found.values())


def gold_answers(storage: Storage, judge: JudgeIdentity, labelled: Iterable[KnownVerdict]) -> GoldAnswers:
    """Labelled answers of known writers; without any, answers with a score by a grader without a model."""
    known = [(one.verdict, one.truth, one.family) for one in labelled if one.family is not None]
    gold = LABELS
    if not known:
        checked: dict[ResponseKey, tuple[float, float, str]] = {}
        for run in _runs(storage, judge):
            for key, one in _checked(storage, run, judge):
                checked.setdefault(key, one)
        known = list(checked.values())
        gold = OTHER_GRADERS if known else LABELS
    return GoldAnswers([GoldAnswer(verdict, truth, who in judge.families) for verdict, truth, who in known], gold)


def labelled_lengths(labelled: Iterable[KnownVerdict]) -> list[LabelledLength]:
    """The lengths of labelled answers, whoever wrote them."""
    return [LabelledLength(one.characters, one.passed, one.truth) for one in labelled]


def _runs(storage: Storage, judge: JudgeIdentity) -> list[Run]:
    found = (run for run in storage.list_runs(_SEARCHED) if run.suite == judge.suite and judge.grader in run.graders)
    return [run for run, _ in zip(found, range(_MAX_RUNS), strict=False)]


def _labelled(
    storage: Storage, run: Run, judge: JudgeIdentity, own_verdict: Callable[[str, str], JudgedAnswer]
) -> Iterator[tuple[ResponseKey, KnownVerdict]]:
    """The labelled answers, by the response that they are: a regrade has those of the run that it regrades."""
    answered = _answered_run(storage, run)
    same = run.graders[judge.grader].calibrated_as == judge.fingerprint
    for label in reference_labels(storage, run, judge.grader).labels:
        record = storage.get_record(ResponseKey(run.id, label.case, label.repeat)) if label.value is not None else None
        if record is None or label.value is None:
            continue
        grade = record.grades.get(judge.grader) if same else None
        verdict = None if grade is None else grade.score
        passed = None if grade is None else grade.passed
        if verdict is None and not label.repeat:
            verdict, passed, _ = own_verdict(run.id, label.case)
        if verdict is None or passed is None:
            continue
        producer = record.sample.metadata.get(PRODUCER)
        writer = family(producer) if isinstance(producer, str) and producer else _family_of(run)
        text = record.submissions.get(judge.grader) or record.response.text or ""
        key = ResponseKey(answered, label.case, label.repeat)
        yield key, KnownVerdict(verdict, passed, label.value, writer, len(text))


def _checked(
    storage: Storage, run: Run, judge: JudgeIdentity
) -> Iterator[tuple[ResponseKey, tuple[float, float, str]]]:
    """Verdicts of the judge, with the mean score of the graders without a model and the family of the agent."""
    writer = _family_of(run)
    plain = [key for key, grader in run.graders.items() if not grader.judges]
    if writer is None or not plain or run.graders[judge.grader].calibrated_as != judge.fingerprint:
        return
    answered = _answered_run(storage, run)
    for one in storage.measures(run.id):
        grade = one.grades.get(judge.grader)
        truth = _mean(measure.score for key in plain if (measure := one.grades.get(key)) is not None)
        if grade is not None and grade.score is not None and truth is not None:
            yield ResponseKey(answered, one.case, one.repeat), (grade.score, truth, writer)


def _answered_run(storage: Storage, run: Run) -> str:
    """The run that has the responses: of a regrade the one that it regrades."""
    while run.parent is not None and (parent := storage.get_run(run.parent)) is not None:
        run = parent
    return run.id


def _mean(scores: Iterable[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return fmean(known) if known else None


def _family_of(run: Run) -> str | None:
    """The family of the agent's model, if the run names one."""
    target: Mapping[str, object] = run.target
    model = target.get("model")
    return family(model) if isinstance(model, str) and model else None
