"""What a calibration learns for the judge itself, from the labels that it is measured by."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from gradeline.errors import ConfigError
from gradeline.judges.prompts import shipped_rubric
from gradeline.judges.selective import Confidence
from gradeline.judges.weighting import panel_probability
from gradeline.model import Grade, ResponseKey, Run, RunGrader, Storage
from gradeline.model.calibration import Calibration
from gradeline.model.grade import PASS_SCORE
from gradeline.model.learned_judging import LabelledConfidences, PanelWeights
from gradeline.trust import panel_weights, selective
from gradeline.trust.calibration import representative
from gradeline.trust.calibration_data import CalibrationData, Progress
from gradeline.trust.label_and_verdict import LabelAndVerdict, weights_of
from gradeline.trust.panel_weights import NotLearned, PanelVotes, votes_of
from gradeline.trust.selective import LabelledVerdict, own_verdict


class Learned(NamedTuple):
    """What the judge learned, and notes about it."""

    panel: PanelWeights | None = None
    selective: LabelledConfidences | None = None
    notes: tuple[str, ...] = ()


class _LabelledGrade(NamedTuple):
    label: LabelAndVerdict
    grade: Grade
    weight: float
    own: Confidence


def learn_from_labels(
    storage: Storage, run: Run, key: str, data: CalibrationData, progress: Progress = lambda _: None
) -> tuple[CalibrationData, Learned]:
    """What a grader's judge learned from labels of people, and the data with its own verdicts.

    The verdicts of a panel that takes its weights from labels are those by weights of all other labels, whether the
    run already used weights or not.
    """
    if data.source.against is not None:
        return data, Learned()
    grader = run.graders[key]
    pass_score = pass_score_of(grader)
    graded = list(_labelled_grades(storage, run, key, data, pass_score))
    verdicts = [LabelledVerdict(one.own, one.label.passed, one.weight) for one in graded]
    learned = Learned(selective=selective.learn(verdicts))
    weights = None
    if grader.weights is not None:
        found = _panel_weights(graded, _panel_pass_score(grader))
        if grader.weights == "equal":
            learned = learned._replace(notes=_hint(found))
        elif isinstance(found, NotLearned):
            learned = learned._replace(notes=(f"no weights of the judges: {found.reason}",))
        else:
            weights = found
            learned = learned._replace(panel=weights)
    if weights is None:
        return data, learned
    return _with_weights(storage, run, key, data, weights, progress), learned


def with_learned(found: Calibration, learned: Learned) -> Calibration:
    """The calibration with what the judge learned."""
    notes = (*found.notes, *learned.notes)
    return msgspec.structs.replace(found, panel=learned.panel, selective=learned.selective, notes=notes)


def pass_score_of(grader: RunGrader) -> float:
    """The score from which a grader's verdict is a pass."""
    if grader.pass_threshold is not None or not grader.rubric_version:
        return PASS_SCORE if grader.pass_threshold is None else grader.pass_threshold
    try:
        return shipped_rubric(grader.rubric_version).pass_threshold
    except ConfigError:  # of another release
        return PASS_SCORE


def _panel_pass_score(grader: RunGrader) -> float:
    """The probability from which a panel with weights passes."""
    return PASS_SCORE if grader.pass_threshold is None else grader.pass_threshold


def _labelled_grades(
    storage: Storage, run: Run, key: str, data: CalibrationData, pass_score: float
) -> Iterator[_LabelledGrade]:
    """The labels that stand for the run, with the judge's own verdicts; those of whole conversations are left out."""
    all_labelled = not data.results.unlabelled and data.results.total <= len(data.labelled)
    used = data.labelled if all_labelled else representative(data.labelled)[0]
    weights = [1.0] * len(used) if all_labelled else weights_of(used)
    for label, weight in zip(used, weights, strict=True):
        record = storage.get_record(ResponseKey(run.id, label.case, label.repeat))
        grade = None if record is None else record.grades.get(key)
        own = None if grade is None or "per_turn_grades" in grade.metadata else own_verdict(grade, pass_score)
        if grade is not None and own is not None:
            yield _LabelledGrade(label, grade, weight, own)


def _panel_weights(graded: Sequence[_LabelledGrade], pass_score: float) -> PanelWeights | NotLearned:
    votes: list[PanelVotes] = []
    members: tuple[str, ...] = ()
    for one in graded:
        scores = votes_of(one.grade.metadata)
        if scores is None:
            continue
        members = members or tuple(scores)
        if tuple(scores) == members:
            label = one.label
            votes.append(PanelVotes(label.case, label.passed, tuple(scores.values()), one.own.passed, one.weight))
    if not members:
        return NotLearned("no labelled result has scores of the panel's judges")
    return panel_weights.learn(members, votes, pass_score)


def _hint(found: PanelWeights | NotLearned) -> tuple[str, ...]:
    """What weights would change for a panel whose judges count equally."""
    if isinstance(found, NotLearned) or found.agreement <= found.unweighted_agreement:
        return ()
    better = f"agreement {found.agreement:.3f} (cross-validated) instead of {found.unweighted_agreement:.3f}"
    return (f"with weights: calibrated, this panel would have {better}",)


def _with_weights(
    storage: Storage, run: Run, key: str, data: CalibrationData, weights: PanelWeights, progress: Progress
) -> CalibrationData:
    """The data with the verdicts by the weights, on all results that the panel gave a verdict on."""
    least = _panel_pass_score(run.graders[key])
    places = {(label.case, label.repeat): place for place, label in enumerate(data.labelled)}
    labelled = list(data.labelled)
    unlabelled = array("d")
    for number, record in enumerate(storage.records(run.id)):
        progress(number)
        grade = record.grades.get(key)
        votes = None if grade is None or own_verdict(grade) is None else votes_of(grade.metadata)
        if votes is None:
            continue
        probability = panel_probability(weights, record.case, tuple(votes.values()))
        place = places.get((record.case, record.repeat))
        if place is None:
            unlabelled.append(probability >= least)
        else:
            labelled[place] = labelled[place]._replace(verdict=probability >= least, score=probability)
    return data._replace(labelled=labelled, results=data.results._replace(unlabelled=unlabelled))
