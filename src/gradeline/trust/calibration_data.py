"""What a calibration is computed from, read from the store: labels or a method's verdicts, and the judge's grades."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gradeline.engine.definition import RunDefinition
from gradeline.engine.judge_trust import served_models
from gradeline.errors import UNSURE, ConfigError, Outcome, Problem, closest_match
from gradeline.judges.selective import stored_confidence
from gradeline.model import Grade, Record, ResponseKey, Run, RunGrader, Storage
from gradeline.model.context import expected_text
from gradeline.model.label import ReferenceLabel
from gradeline.model.text import quote
from gradeline.store.database import SharedStorage
from gradeline.store.labels import current_labels, has_label_tables, reference_labels
from gradeline.store.sql_storage import response_chain
from gradeline.trust.calibration import CalibratedJudge, JudgedResults, LabelSource
from gradeline.trust.label_and_verdict import LabelAndVerdict
from gradeline.trust.reference_methods import ReferenceMethod

_DECIDED = {Outcome.PASS: True, Outcome.FAIL: False}
_NOT_JUDGED = (Outcome.SKIPPED, Outcome.NOT_APPLICABLE)

Progress = Callable[[int], None]
"""Is told the number of results read so far."""


class CalibrationData(NamedTuple):
    """The input of `calibrate`, as far as the store has it."""

    labelled: list[LabelAndVerdict]
    results: JudgedResults
    source: LabelSource
    grades: Sequence[tuple[ReferenceLabel, bool, Grade]] = ()
    """The judge's grades of labelled results, with the label, and whether it passes."""


def judged_graders(run: Run, named: Sequence[str] = ()) -> dict[str, RunGrader]:
    """The graders of a run that have a judge, or of these the named ones; `ConfigError` lists what is wrong."""
    judged = {key: grader for key, grader in run.graders.items() if grader.judges}
    if not judged:
        reason = f"none of the graders of run {run.id} has a judge: {', '.join(run.graders) or 'it has no graders'}"
        raise ConfigError(Problem("grader", reason))
    problems = []
    for key in named:
        if key not in judged:
            near = closest_match(key, judged)
            hint = f"did you mean {near!r}?" if near else f"use one of {', '.join(judged)}"
            what = "has no judge" if key in run.graders else "is not a grader of the run"
            problems.append(Problem("grader", f"{quote(key)} {what}; {hint}"))
    if problems:
        raise ConfigError(problems)
    return {key: judged[key] for key in dict.fromkeys(named)} if named else judged


def labelled_questions(storage: Storage, run: Run) -> list[str]:
    """The questions that the labels of a run answer, by name."""
    if not isinstance(storage, SharedStorage) or not has_label_tables(storage.database.read):
        return []
    read = storage.database.read
    return sorted({row.question for row in current_labels(read, response_chain(read, run.id))})


def judge_of(run: Run, key: str, question: str) -> CalibratedJudge:
    """The judge of a run's grader, and the names under which its calibration is filed."""
    grader = run.graders[key]
    return CalibratedJudge(
        suite=run.suite,
        grader=key,
        question=question,
        run=run.id,
        judge=grader.judges,
        judge_fingerprint=grader.calibrated_as,
        prompt_hash=grader.prompt_hash,
        rubric_version=grader.rubric_version,
    )


def read_labels(
    storage: Storage,
    run: Run,
    key: str,
    question: str,
    positive: Sequence[str] = (),
    progress: Progress = lambda _: None,
) -> CalibrationData:
    """The labels of a question with the verdicts of a grader's judge; ``positive`` are the categories that pass."""
    found = reference_labels(storage, run, question)
    labels = _decided(found.labels, positive, question)
    reader = _VerdictReader(storage, run, key)
    labelled = []
    grades = []
    for label, passed in labels:
        record = storage.get_record(ResponseKey(run.id, label.case, label.repeat))
        grade = None if record is None else record.grades.get(key)
        if grade is not None:
            grades.append((label, passed, grade))
        one = None if record is None else reader.verdict(record, passed, label)
        if one is not None:
            labelled.append(one)
    results = _other_results(storage, run, key, {(one.case, one.repeat) for one in labelled}, progress)
    notes = []
    if len(labelled) < len(labels):
        number = len(labels) - len(labelled)
        notes.append(f"{number} labels left out: the judge was not to grade these results")
    served = {model for _, _, grade in grades for model in served_models(grade)}
    source = LabelSource(None, found.unresolved, found.stale, tuple(notes), tuple(sorted(served)))
    return CalibrationData(labelled, results, source, grades)


def read_method_verdicts(
    storage: Storage, run: Run, key: str, method: ReferenceMethod, progress: Progress = lambda _: None
) -> CalibrationData:
    """The verdicts of a method on all results of a run, with those of a grader's judge."""
    reader = _VerdictReader(storage, run, key)
    labelled: list[LabelAndVerdict] = []
    served: set[str] = set()
    left_out = total = missing = 0
    for number, record in enumerate(storage.records(run.id)):
        progress(number)
        expected = _expected(record, reader)
        answer = reader.answer(record)
        grade = record.grades.get(key)
        one = None
        if expected is not None and answer is not None:
            one = reader.verdict(record, method.passes(answer, [expected]), None)
        if record.response.error is None and (grade is None or grade.outcome not in _NOT_JUDGED):
            total += 1
            missing += grade is None or (grade.score is None and not _is_unsure(grade))
            left_out += one is None
        if one is not None:
            labelled.append(one)
            served |= set() if grade is None else served_models(grade)
    if not labelled:
        reason = f"no result of run {run.id} has an expected value to compare with by {method.name}"
        raise ConfigError(Problem("against", f"{reason}; label some: gradeline label {run.id} --sample 100"))
    notes = [f"the reference is {method.name}, not people: {method.validity}"]
    if left_out:
        notes.append(f"{left_out} results without an expected value are left out")
    source = LabelSource(method.name, notes=tuple(notes), served=tuple(sorted(served)))
    return CalibrationData(labelled, JudgedResults((), total, missing), source)


def _decided(
    labels: Sequence[ReferenceLabel], positive: Sequence[str], question: str
) -> list[tuple[ReferenceLabel, bool]]:
    """Each label with whether it passes; `ConfigError` if categories are not divided into those that pass and fail."""
    known = {label.category for label in labels if label.category is not None}
    unknown = [category for category in positive if category not in known]
    if unknown:
        names = ", ".join(map(quote, sorted(known))) or "none"
        reason = (
            f"no label of {quote(question)} has the category {', '.join(map(quote, unknown))}; its categories: {names}"
        )
        raise ConfigError(Problem("positive", reason))
    decided = []
    undecided: set[str] = set()
    for label in labels:
        if positive and label.category is not None:
            decided.append((label, label.category in positive))
        elif label.passed is not None:
            decided.append((label, label.passed))
        elif label.category is not None:
            undecided.add(label.category)
    if undecided and not positive:
        names = ", ".join(map(quote, sorted(undecided)))
        reason = f"labels of {quote(question)} are categories ({names}); name each that passes with --positive"
        raise ConfigError(Problem("positive", reason))
    return decided


def _expected(record: Record, reader: _VerdictReader) -> str | None:
    """What the answer should be: the expected value, or else the answer of the run that it is compared with."""
    expected = expected_text(record.sample)
    return reader.other_answer(record) if expected is None else expected


class _VerdictReader:
    """Reads a judge's verdicts from the records of a run."""

    def __init__(self, storage: Storage, run: Run, key: str) -> None:
        self._storage = storage
        self._key = key
        self._clusters = storage.clusters(run.id)
        baseline = _baseline_of(run, key)
        self._baseline = None if baseline is None else _find(storage, baseline)

    def verdict(self, record: Record, passed: bool, label: ReferenceLabel | None) -> LabelAndVerdict | None:
        """The label with the judge's verdict; None if the judge was not to grade the result."""
        grade = record.grades.get(self._key)
        if record.response.error is not None or (grade is not None and grade.outcome in _NOT_JUDGED):
            return None
        answer, other = self.answer(record), self.other_answer(record)
        # a judge that was not sure enough has a verdict all the same, which is stored with its confidence
        own = None if grade is None else stored_confidence(grade.metadata) or grade
        return LabelAndVerdict(
            case=record.case,
            passed=passed,
            verdict=None if own is None else own.passed,
            score=None if own is None else own.score,
            repeat=record.repeat,
            cluster=self._clusters.get(record.case),
            probability=None if label is None else label.probability,
            tags=record.sample.tags if label is None else label.tags,
            length=None if answer is None else len(answer),
            other_length=None if other is None else len(other),
            cost=_cost(grade),
        )

    def answer(self, record: Record) -> str | None:
        """What the judge saw: the submission, or else the response."""
        found = record.submissions.get(self._key)
        return record.response.text if found is None else found

    def other_answer(self, record: Record) -> str | None:
        """The answer of the run that this one is compared with; None for other graders."""
        if self._baseline is None:
            return None
        key = ResponseKey(self._baseline.id, record.case, record.repeat % self._baseline.repeats)
        response = self._storage.get_response(key)
        return None if response is None else response.text


def _baseline_of(run: Run, key: str) -> str | None:
    try:
        return RunDefinition.of(run).baselines.get(key)
    except ConfigError:  # an imported run has no definition
        return None


def _find(storage: Storage, run: str) -> Run | None:
    try:
        return storage.find_run(run)
    except ConfigError:  # it was deleted
        return None


def _is_unsure(grade: Grade) -> bool:
    return grade.error is not None and grade.error.type == UNSURE


def _cost(grade: Grade | None) -> float | None:
    return None if grade is None or grade.usage is None else grade.usage.cost


def _other_results(
    storage: Storage, run: Run, key: str, labelled: set[tuple[str, int]], progress: Progress
) -> JudgedResults:
    """The verdicts on results without a label, and the number without a verdict among all results."""
    verdicts = array("d")
    total = missing = 0
    for outcome, result in _outcomes(storage, run, key, progress):
        total += 1
        passed = _DECIDED.get(outcome) if outcome is not None else None
        missing += passed is None
        if passed is not None and result not in labelled:
            verdicts.append(passed)
    counts = storage.selective_counts(run.id).get(key)
    unsure = 0 if counts is None else counts.unsure  # the judge has a verdict, which did not count
    return JudgedResults(verdicts, total, missing - unsure)


def _outcomes(
    storage: Storage, run: Run, key: str, progress: Progress
) -> Iterator[tuple[Outcome | None, tuple[str, int]]]:
    """The outcome of each result that the judge was to grade; None where it has no grade."""
    for number, measure in enumerate(storage.measures(run.id)):
        progress(number)
        grade = measure.grades.get(key)
        outcome = None if grade is None else Outcome(grade.outcome)
        if measure.status == "success" and outcome not in _NOT_JUDGED:
            yield outcome, (measure.case, measure.repeat)
