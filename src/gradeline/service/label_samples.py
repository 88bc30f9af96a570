"""Samples of a run that people label one result after the other, without seeing what any grader decided."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from gradeline.errors import ConfigError
from gradeline.model import Record, ResponseKey, Run, clean_text, quote
from gradeline.model.label import MAX_NAME, HumanVerdict, LabelKey, LabelRow, SamplingMethod, Verdict
from gradeline.rest_types import result_id, utc_timestamp
from gradeline.service.audit import Recorder, unrecorded
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.events import ENDED
from gradeline.stats import Interval
from gradeline.store.database import SharedStorage, Transaction
from gradeline.store.labels import fresh_labels, insert_label, withdraw_label
from gradeline.store.queries import run_exists
from gradeline.trust.label_import import questions_of
from gradeline.trust.label_samples import LabelSample, draw_sample, samples_of
from gradeline.trust.label_view import rubric_text, shown_texts
from gradeline.trust.labelling import is_label_name, label_of
from gradeline.trust.labelling_status import LabelStatus, label_status


class DrawnSample(Struct, frozen=True, kw_only=True):
    """A sample of the results of a run, and how many of them are labelled."""

    sample: str
    question: str
    """The grader whose question the labels answer, or another name."""
    method: SamplingMethod
    seed: int
    size: int
    labelled: int
    """Results with a label of anyone."""
    labelled_by_you: int


class DrawnResult(Struct, frozen=True, kw_only=True):
    """A result of a sample. How it was drawn is left out: it would show what the judge decided."""

    place: int
    result_id: str
    test_case_id: str
    repeat: int
    labelled_by_you: bool


class SampleWithResults(DrawnSample, frozen=True, kw_only=True):
    """A sample with its results, in the order in which they are labelled."""

    results: list[DrawnResult]


class SampleList(Struct, frozen=True, kw_only=True):
    """The samples of a run, by question, the latest last."""

    samples: list[DrawnSample]


class BlindText(Struct, frozen=True):
    """A text of a result: its input, its expected value, the answer, or a conversation."""

    title: str
    text: str


class OwnLabel(Struct, frozen=True, kw_only=True):
    """The caller's own label."""

    verdict: Verdict | None
    score: float | None
    category: str | None
    comment: str
    at: str


class SampleItem(Struct, frozen=True, kw_only=True):
    """A result to label, without any grade."""

    sample: str
    question: str
    rubric: str | None
    """The instructions of the judge that answers the question too; null if there are none."""
    place: int
    size: int
    labelled_by_you: int
    result_id: str
    test_case_id: str
    repeat: int
    texts: list[BlindText]
    label: OwnLabel | None
    next_place: int | None
    """The next result that you have not labelled; null if there is none but this one."""


class RaterCount(Struct, frozen=True, kw_only=True):
    """The labels of one rater."""

    author: str | None
    labels: int
    adjudications: int


class Agreement(Struct, frozen=True, kw_only=True):
    """A coefficient of agreement with its 95 % interval: 1 is perfect, 0 is chance."""

    estimate: float
    low: float
    high: float


class RaterAgreement(Struct, frozen=True, kw_only=True):
    """Two raters on the results that both have labelled."""

    authors: tuple[str | None, str | None]
    results: int
    same: int
    kappa: Agreement | None
    """Cohen's kappa; null where it is undefined."""


class DisputedResult(Struct, frozen=True, kw_only=True):
    """A result on which raters disagree."""

    result_id: str
    test_case_id: str
    repeat: int
    labels: dict[str, str]
    """Each rater's label in words; a rater without a name is `""`."""
    resolved: bool
    """Whether a majority or an adjudication decides."""


class QuestionLabels(Struct, frozen=True, kw_only=True):
    """The labels of one question, and how well the raters agree."""

    question: str
    results: int
    """Results with a label."""
    raters: list[RaterCount]
    alpha: Agreement | None
    """Krippendorff's alpha over all raters; null where it is undefined, as with one rater."""
    pairs: list[RaterAgreement]
    disagreements: list[DisputedResult]
    unresolved: int
    """Results without a majority or an adjudication, which do not count."""
    stale: int
    """Results whose labels are about a response that was replaced since, which do not count."""


class LabelAgreement(Struct, frozen=True, kw_only=True):
    """The agreement of the raters of a run, by question."""

    evaluation_id: str
    questions: list[QuestionLabels]


class SampleRequest(NamedTuple):
    """A sample to draw; what is None is chosen."""

    question: str | None
    n: int | None
    seed: int | None
    method: SamplingMethod | None


class LabelSamples:
    """The samples of a store that people label over REST, each with their own labels."""

    def __init__(self, storage: SharedStorage, clock: Callable[[], float] = time.time) -> None:
        self._storage = storage
        self._clock = clock

    def draw(self, run: Run, wanted: SampleRequest, rater: str, record_act: Recorder = unrecorded) -> SampleWithResults:
        """Draw a sample of an ended run, or extend the one that these parameters drew before to ``n`` results."""
        if run.status not in ENDED:
            raise ServiceError(Code.CONFLICT, f"The evaluation is {run.status}; draw a sample when it has ended")
        question = _question(run, wanted.question)
        try:
            drawn = draw_sample(self._storage, run, question, wanted.n, wanted.seed, wanted.method)
        except ConfigError as error:
            raise ServiceError(Code.CONFLICT, "; ".join(problem.message for problem in error.problems)) from None
        sample = self._find(run, drawn.id)
        details = {"sample": sample.id, "question": question, "size": len(sample.draws)}
        self._storage.database.transact(lambda transaction: record_act(transaction, run.id, details))
        return self._with_results(run, sample, rater)

    def of_run(self, run: Run, rater: str) -> SampleList:
        """All samples of a run."""
        found = []
        for question in questions_of(self._storage, run):
            labels = _by_result(fresh_labels(self._storage, run, question).labels)
            found += [_drawn(sample, labels, rater) for sample in samples_of(self._storage, run, question)]
        return SampleList(samples=found)

    def get(self, run: Run, sample: str, rater: str) -> SampleWithResults:
        """A sample with its results; `ServiceError` NOT_FOUND if the run does not have it."""
        return self._with_results(run, self._find(run, sample), rater)

    def item(self, run: Run, sample: str, place: int | None, rater: str) -> SampleItem:
        """The result at a place of a sample; without a place, the first one that the rater has not labelled."""
        found = self._find(run, sample)
        own = self._own(run, found.question, rater)
        if place is None:
            place = next((one.place for one in found.draws if (one.case, one.repeat) not in own), 0)
        return self._item(run, found, _place(found, place), own)

    def label(
        self,
        run: Run,
        sample: str,
        place: int,
        value: HumanVerdict,
        rater: str,
        record_act: Recorder = unrecorded,
    ) -> SampleItem:
        """Store the rater's label of the result at a place, in place of an earlier one."""
        found = self._find(run, sample)
        draw = found.draws[_place(found, place)]
        record = self._record(run, draw.case, draw.repeat)
        drawn = value._replace(probability=draw.probability, sample=found.id)
        row = label_of(record, found.question, drawn, rater, utc_timestamp(self._clock()))
        details = {
            "result_id": result_id(draw.case, draw.repeat),
            "grader_id": found.question,
            "verdict": value.verdict,
            "score": value.score,
        }

        def add(transaction: Transaction) -> None:
            if not run_exists(transaction.run, run.id):
                raise not_found("evaluation", run.id)
            insert_label(transaction, run.id, row)
            record_act(transaction, run.id, details)

        self._storage.database.transact(add)
        return self.item(run, sample, place, rater)

    def withdraw(self, run: Run, sample: str, place: int, rater: str, record_act: Recorder = unrecorded) -> SampleItem:
        """Withdraw the rater's label of the result at a place; without one, nothing changes."""
        found = self._find(run, sample)
        draw = found.draws[_place(found, place)]
        now = utc_timestamp(self._clock())
        labelled = self._own(run, found.question, rater).get((draw.case, draw.repeat))
        if labelled is not None:
            details = {"result_id": result_id(draw.case, draw.repeat), "grader_id": found.question}

            def remove(transaction: Transaction) -> None:
                key = LabelKey(run.id, draw.case, draw.repeat, found.question)
                if withdraw_label(transaction, key, rater, now):
                    record_act(transaction, run.id, details)

            self._storage.database.transact(remove)
        return self.item(run, sample, place, rater)

    def agreement(self, run: Run) -> LabelAgreement:
        """How well the raters of a run agree."""
        found = [label_status(self._storage, run, question) for question in questions_of(self._storage, run)]
        return LabelAgreement(evaluation_id=run.id, questions=[_question_labels(one) for one in found])

    def _find(self, run: Run, sample: str) -> LabelSample:
        for question in questions_of(self._storage, run):
            for one in samples_of(self._storage, run, question):
                if one.id == sample:
                    return one
        raise not_found("sample of this evaluation", sample)

    def _own(self, run: Run, question: str, rater: str) -> dict[tuple[str, int], LabelRow]:
        rows = fresh_labels(self._storage, run, question).labels
        return {(row.case, row.repeat): row for row in rows if (row.rater, row.role) == (rater, "rater")}

    def _record(self, run: Run, case: str, repeat: int) -> Record:
        record = self._storage.get_record(ResponseKey(run.id, case, repeat))
        if record is None:
            raise not_found("result", result_id(case, repeat))
        return record

    def _with_results(self, run: Run, sample: LabelSample, rater: str) -> SampleWithResults:
        labels = _by_result(fresh_labels(self._storage, run, sample.question).labels)
        drawn = _drawn(sample, labels, rater)
        results = [
            DrawnResult(
                place=place,
                result_id=result_id(one.case, one.repeat),
                test_case_id=one.case,
                repeat=one.repeat,
                labelled_by_you=rater in labels.get((one.case, one.repeat), ()),
            )
            for place, one in enumerate(sample.draws)
        ]
        return SampleWithResults(
            sample=drawn.sample,
            question=drawn.question,
            method=drawn.method,
            seed=drawn.seed,
            size=drawn.size,
            labelled=drawn.labelled,
            labelled_by_you=drawn.labelled_by_you,
            results=results,
        )

    def _item(self, run: Run, sample: LabelSample, place: int, own: Mapping[tuple[str, int], LabelRow]) -> SampleItem:
        draw = sample.draws[place]
        record = self._record(run, draw.case, draw.repeat)
        row = own.get((draw.case, draw.repeat))
        unlabelled = [at for at, one in enumerate(sample.draws) if (one.case, one.repeat) not in own and at != place]
        later = [at for at in unlabelled if at > place]
        return SampleItem(
            sample=sample.id,
            question=sample.question,
            rubric=rubric_text(run, sample.question, read_files=False),
            place=place,
            size=len(sample.draws),
            labelled_by_you=sum((one.case, one.repeat) in own for one in sample.draws),
            result_id=result_id(draw.case, draw.repeat),
            test_case_id=draw.case,
            repeat=draw.repeat,
            texts=[BlindText(one.title, one.text) for one in shown_texts(record)],
            label=None if row is None else _own_label(row),
            next_place=next(iter(later or unlabelled), None),
        )


def _place(sample: LabelSample, place: int) -> int:
    if not 0 <= place < len(sample.draws):
        raise not_found(f"place in the sample of {len(sample.draws):,} results", str(place))
    return place


def _question(run: Run, named: str | None) -> str:
    """The named question, else that of the only judge, else that of the only grader."""
    if named is not None:
        if clean_text(named).changed or not is_label_name(named):
            raise ServiceError(
                Code.INVALID_INPUT,
                f"Field 'question' is {quote(named, 60)}; use 1 to {MAX_NAME} characters on one line, trimmed",
            )
        return named
    judges = [key for key, grader in run.graders.items() if grader.judges]
    choices = judges or list(run.graders)
    if len(choices) != 1:
        shown = f"one of {', '.join(choices)}, or another name" if choices else "a name for what the labels answer"
        raise ServiceError(Code.MISSING_FIELD, f"Field 'question' is required: {shown}")
    return choices[0]


def _by_result(rows: Sequence[LabelRow]) -> dict[tuple[str, int], set[str]]:
    """The raters of each labelled result."""
    found: dict[tuple[str, int], set[str]] = {}
    for row in rows:
        if row.role == "rater":
            found.setdefault((row.case, row.repeat), set()).add(row.rater)
    return found


def _drawn(sample: LabelSample, labels: Mapping[tuple[str, int], set[str]], rater: str) -> DrawnSample:
    raters = [labels.get((one.case, one.repeat), set()) for one in sample.draws]
    return DrawnSample(
        sample=sample.id,
        question=sample.question,
        method=sample.method,
        seed=sample.seed,
        size=len(sample.draws),
        labelled=sum(bool(names) for names in raters),
        labelled_by_you=sum(rater in names for names in raters),
    )


def _own_label(row: LabelRow) -> OwnLabel:
    return OwnLabel(verdict=row.verdict, score=row.score, category=row.category, comment=row.comment, at=row.at)


def _agreement(interval: Interval | None) -> Agreement | None:
    return None if interval is None else Agreement(estimate=interval.estimate, low=interval.low, high=interval.high)


def _question_labels(status: LabelStatus) -> QuestionLabels:
    return QuestionLabels(
        question=status.question,
        results=status.results,
        raters=[
            RaterCount(author=one.rater or None, labels=one.labels, adjudications=one.adjudications)
            for one in status.raters
        ],
        alpha=_agreement(status.alpha),
        pairs=[
            RaterAgreement(
                authors=(one.first or None, one.second or None),
                results=one.results,
                same=one.same,
                kappa=_agreement(one.kappa),
            )
            for one in status.pairs
        ],
        disagreements=[
            DisputedResult(
                result_id=result_id(one.case, one.repeat),
                test_case_id=one.case,
                repeat=one.repeat,
                labels=one.values,
                resolved=one.resolved,
            )
            for one in status.disagreements
        ],
        unresolved=status.unresolved,
        stale=status.stale,
    )
