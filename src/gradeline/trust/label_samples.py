"""Samples of a run that people label: drawn once, stored with the run, and the same for every rater."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gradeline.errors import UNSURE, ConfigError, Outcome, Problem
from gradeline.model import Record, Run, Storage
from gradeline.model.fingerprint import fingerprint
from gradeline.model.label import SamplingMethod
from gradeline.model.text import quote
from gradeline.rest_types import utc_timestamp
from gradeline.store.database import Transaction
from gradeline.store.labels import (
    LEAST_POPULATION,
    LabelDraw,
    create_label_tables,
    draws_of_responses,
    put_draws,
    results_to_label,
)
from gradeline.store.trust_records import database_of
from gradeline.trust.labelling import check_label_name
from gradeline.trust.sampling import MAX_SEED, NO_VERDICT, SampledResult, draw, suggested_method

SAMPLE_SIZE = 100
"""Results of a sample whose size is not given."""

LabelProgress = Callable[[str], None]
"""Called now and then with what is being done."""


class LabelSample(NamedTuple):
    """A sample of the results of a run, in the order in which it is labelled."""

    id: str
    question: str
    method: SamplingMethod
    seed: int
    draws: list[LabelDraw]


def draw_sample(
    storage: Storage,
    run: Run,
    question: str,
    size: int | None = None,
    seed: int | None = None,
    method: SamplingMethod | None = None,
    progress: LabelProgress = lambda _: None,
) -> LabelSample:
    """Draw a sample of the run's results for labelling, or read and extend the one that was drawn before.

    Without a ``method`` the sample is stratified by the judge's verdict if one verdict is rare, else random. Without a
    ``seed`` the latest sample of the question continues. The method ``unsure`` is the queue of the results that a
    selective judge left to people, all of them by default. `ConfigError` if the run has nothing to label.
    """
    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise ConfigError(Problem("seed", f"invalid seed {seed}: use a whole number from 0 to {MAX_SEED:,}"))
    if question not in run.graders:
        check_label_name(question, "question")
    if size is not None and size < 1:
        raise ConfigError(Problem("sample", f"invalid sample size {size}: use 1 or more"))
    earlier = _find(samples_of(storage, run, question), seed, method)
    if earlier is not None:
        method, seed = earlier.method, earlier.seed
        if _population(earlier) < LEAST_POPULATION * results_to_label(storage, run, question):
            progress("the run has more results than when this sample was drawn: drawing from all of them")
        elif size is not None and size <= len(earlier.draws):
            return earlier._replace(draws=earlier.draws[:size])
        elif size is None and method != "unsure":  # a queue, which may have grown
            return earlier
    progress("reading the results of the run")
    if run.status == "running":
        progress(f"run {run.id} has not ended: when it has, draw the sample again from all of its results")
    found = candidates(storage, run, question, of_judges=method in ("disagreement", "unsure"))
    if not found:
        raise ConfigError(Problem("", f"run {run.id} has no response to label for {quote(question)}"))
    method, seed = method or suggested_method(found), 1 if seed is None else seed
    sample = _sample_id(question, method, seed)
    kept = [(one.case, one.repeat) for one in earlier.draws] if earlier is not None else []
    drawn = draw(found, size or (len(found) if method == "unsure" else SAMPLE_SIZE), seed, method, kept)
    if not drawn:
        raise ConfigError(Problem("", f"run {run.id} has no result that {quote(question)} is unsure of"))
    at, population = utc_timestamp(time.time()), len(found)
    draws = [
        LabelDraw(
            sample=sample,
            question=question,
            place=place,
            case=one.case,
            repeat=one.repeat,
            method=method,
            seed=seed,
            probability=one.probability,
            stratum=one.stratum,
            stratum_size=one.stratum_size,
            population=population,
            at=at,
        )
        for place, one in enumerate(drawn)
    ]
    _store(storage, run, draws)
    stored = _find(samples_of(storage, run, question), seed, method)
    return stored or LabelSample(sample, question, method, seed, draws)


def samples_of(storage: Storage, run: Run, question: str) -> list[LabelSample]:
    """The samples that were drawn of a run for a question, or of the runs that it regrades, the latest last."""
    found: dict[str, dict[tuple[str, int], LabelDraw]] = {}
    for one in draws_of_responses(storage, run, question):
        found.setdefault(one.sample, {})[one.case, one.repeat] = one
    samples = []
    for name, by_result in found.items():
        draws = sorted(by_result.values(), key=lambda one: one.place)
        sample = LabelSample(name, question, draws[0].method, draws[0].seed, draws)
        least = LEAST_POPULATION * _population(sample)  # some were perhaps drawn while the run had fewer results
        samples.append(sample._replace(draws=[one for one in draws if one.population >= least]))
    return sorted(samples, key=lambda sample: max(one.at for one in sample.draws))


def _population(sample: LabelSample) -> int:
    """The number of results that the sample was drawn from."""
    return max(one.population for one in sample.draws)


def candidates(storage: Storage, run: Run, question: str, *, of_judges: bool = False) -> list[SampledResult]:
    """The results that can be labelled: responses without an error to which the question applies."""
    found: list[SampledResult] = []
    inapplicable: list[SampledResult] = []
    graded = question in run.graders
    for one in storage.measures(run.id):
        if one.status != "success":
            continue
        grade = one.grades.get(question)
        outcome = None if grade is None else grade.outcome
        if outcome is Outcome.NOT_APPLICABLE:
            inapplicable.append(SampledResult(one.case, one.repeat))
        else:
            stratum = outcome.value if outcome in (Outcome.PASS, Outcome.FAIL) else NO_VERDICT
            found.append(SampledResult(one.case, one.repeat, stratum if graded else ""))
    found = found or inapplicable  # a grader that only people answer grades nothing
    return _with_judges(storage, run, question, found) if of_judges else found


def _with_judges(storage: Storage, run: Run, question: str, found: Sequence[SampledResult]) -> list[SampledResult]:
    """The candidates with how much judges disagree, and whether the one that is asked is unsure.

    Judges are the graders of the result, the members of a panel, and the repeats of the case.
    """
    judges = {key for key, grader in run.graders.items() if grader.judges} or set(run.graders)
    verdicts: dict[str, list[bool]] = {}
    own: dict[tuple[str, int], float] = {}
    unsure: set[tuple[str, int]] = set()
    for record in storage.records(run.id):
        votes = [grade.passed for key, grade in record.grades.items() if key in judges and grade.passed is not None]
        own[record.case, record.repeat] = max(_split(votes), _member_range(record, question))
        grade = record.grades.get(question)
        if grade is not None and grade.error is not None and grade.error.type == UNSURE:
            unsure.add((record.case, record.repeat))
        if grade is not None and grade.passed is not None:
            verdicts.setdefault(record.case, []).append(grade.passed)
    return [
        one._replace(
            disagreement=max(own.get(one.key, 0.0), _split(verdicts.get(one.case, ()))), unsure=one.key in unsure
        )
        for one in found
    ]


def _split(votes: Sequence[bool]) -> float:
    """1 where votes are split in halves, 0 where all are the same."""
    return 2.0 * min(sum(votes), len(votes) - sum(votes)) / len(votes) if votes else 0.0


def _member_range(record: Record, question: str) -> float:
    """The range of the scores of a panel's members."""
    grade = record.grades.get(question)
    found = grade.metadata.get("disagreement") if grade is not None else None
    spread = found.get("range") if isinstance(found, dict) else None
    return float(spread) if isinstance(spread, int | float) else 0.0


def _find(samples: Sequence[LabelSample], seed: int | None, method: SamplingMethod | None) -> LabelSample | None:
    """The latest of these samples with this seed and method, where they are given."""
    return next(_matching(reversed(samples), seed, method), None)


def _matching(samples: Iterator[LabelSample], seed: int | None, method: SamplingMethod | None) -> Iterator[LabelSample]:
    for one in samples:
        if seed in (None, one.seed) and method in (None, one.method):
            yield one


def _sample_id(question: str, method: SamplingMethod, seed: int) -> str:
    return f"{method}-{seed}-{fingerprint('label sample', question, method, seed)[:6]}"


def _store(storage: Storage, run: Run, draws: Sequence[LabelDraw]) -> None:
    database = database_of(storage)
    create_label_tables(database)

    def work(transaction: Transaction) -> None:
        put_draws(transaction, run.id, draws)

    database.transact(work)
