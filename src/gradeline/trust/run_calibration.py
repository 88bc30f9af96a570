"""Calibrates the judges of a stored run, and stores the calibrations."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from gradeline.engine.definition import now
from gradeline.errors import ConfigError, Problem
from gradeline.model import Run, Storage
from gradeline.model.calibration import Calibration
from gradeline.trust.calibration import best_judge, calibrate, candidate_of
from gradeline.trust.calibration_data import (
    CalibrationData,
    Progress,
    judge_of,
    judged_graders,
    labelled_questions,
    read_labels,
    read_method_verdicts,
)
from gradeline.trust.calibration_records import store_calibration
from gradeline.trust.learning import learn_from_labels, with_learned
from gradeline.trust.reference_methods import ReferenceMethodName, reference_method


class CalibratedRun(NamedTuple):
    """The calibrations of the judges of a run."""

    calibrations: list[Calibration]
    without_labels: list[str]
    """The graders whose question has no labels."""

    @property
    def best(self) -> str | None:
        """The grader whose judge to use, of several that were compared with the same labels; None for other judges."""
        found = self.calibrations
        if len(found) < 2 or len({(one.question, one.against) for one in found}) > 1:
            return None
        best = best_judge([candidate_of(one) for one in found])
        return None if best is None else best.name

    @property
    def exit_code(self) -> int:
        """0 if every judge is calibrated, 1 if one failed, 3 if there were too few labels to tell."""
        failed = [one for one in self.calibrations if one.state != "calibrated"]
        if not failed:
            return 0
        return 1 if any(one.conclusive for one in failed) else 3


def calibrate_run(
    storage: Storage,
    run: Run,
    *,
    graders: Sequence[str] = (),
    question: str | None = None,
    against: ReferenceMethodName | None = None,
    positive: Sequence[str] = (),
    progress: Progress = lambda _: None,
) -> CalibratedRun:
    """Measure the judges of a run against labels, and store the results.

    All graders with a judge are measured, or those that are named; by labels of their own question, or of the one that
    is named, or ``against`` a method. ``positive`` are the categories of labels that pass. `ConfigError` if no grader
    has labels, or a named one has none.
    """
    keys = list(judged_graders(run, graders))
    if against is not None:
        method = reference_method(against)
        read = {key: read_method_verdicts(storage, run, key, method, progress) for key in keys}
    else:
        read = _read_labels(storage, run, keys, question, positive, progress, required=bool(graders))
    at = now()
    found = []
    for key, own in read.items():
        data, learned = learn_from_labels(storage, run, key, own, progress)
        measured = calibrate(judge_of(run, key, question or key), data.labelled, data.results, at, data.source)
        found.append(with_learned(measured, learned))
    for one in found:
        store_calibration(storage, one)
    return CalibratedRun(found, [key for key in keys if key not in read])


def _read_labels(
    storage: Storage,
    run: Run,
    keys: Sequence[str],
    question: str | None,
    positive: Sequence[str],
    progress: Progress,
    *,
    required: bool,
) -> dict[str, CalibrationData]:
    """The labels and verdicts of each grader that has labels."""
    questions = labelled_questions(storage, run)
    wanted = {key: question or key for key in keys}
    missing = [key for key, name in wanted.items() if name not in questions]
    if len(missing) == len(keys) or (required and missing):
        names = dict.fromkeys(wanted[key] for key in missing)
        raise ConfigError([_no_labels(run, name, questions, is_grader=name in keys) for name in names])
    return {
        key: read_labels(storage, run, key, name, positive, progress)
        for key, name in wanted.items()
        if key not in missing
    }


def _no_labels(run: Run, question: str, questions: Sequence[str], *, is_grader: bool) -> Problem:
    option = "--grader" if is_grader else "--question"
    remedy = f"gradeline label {run.id} {option} {shlex.quote(question)} --sample 100"
    others = [name for name in questions if name != question]
    hint = f"; if labels of {', '.join(others)} answer the same question, name it with --question" if others else ""
    return Problem(question, f"run {run.id} has no labels for it: {remedy}{hint}")
