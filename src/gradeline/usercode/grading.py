"""Grading cases with user code and built-ins alike."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from gradeline.errors import GraderError, NeedsIsolationError, Outcome
from gradeline.extractors import DeclaredExtractor
from gradeline.graders import DeclaredGrader, error_grade, run_grader
from gradeline.graders.run import EMPTY_SUBMISSION
from gradeline.model import Extractor, Grade, GradeContext, Grader, Record, Response, Sample
from gradeline.model.config import canonical_options
from gradeline.usercode.messages import Job, Task, TaskResult
from gradeline.usercode.pool import WorkerPool

_AHEAD = 512
"""Cases that are graded while the first of them is waited for."""


class UserGrader(NamedTuple):
    """A custom grader: how workers know it, and what decides its scores."""

    reference: str
    fingerprint: str
    timeout: float = 5.0
    kind: str = "tool"


class Case(NamedTuple):
    """A sample with the submission to grade."""

    sample: Sample
    submission: str


async def grade_cases(
    pool: WorkerPool, graders: Mapping[str, UserGrader | Grader], cases: Iterable[Case], run: str
) -> AsyncIterator[Record]:
    """The records of the cases, in their order; as many are graded at once as the workers can take."""
    ahead: deque[asyncio.Task[Record]] = deque()
    try:
        for case in cases:
            ahead.append(asyncio.create_task(_grade_case(pool, graders, case, run)))
            if len(ahead) >= _AHEAD:
                yield await ahead.popleft()
        while ahead:
            yield await ahead.popleft()
    finally:
        for task in ahead:
            task.cancel()


async def _grade_case(pool: WorkerPool, graders: Mapping[str, UserGrader | Grader], case: Case, run: str) -> Record:
    response = Response(text=case.submission)
    context = GradeContext(case.sample, case.submission, response)
    grades: dict[str, Grade] = {}
    waiting: dict[str, Task] = {}
    for key, grader in graders.items():
        if not isinstance(grader, UserGrader):
            grades[key] = run_grader(grader, context)
            if _needs_worker(grades[key]) and isinstance(grader, DeclaredGrader):
                waiting[key] = _builtin_task(grader, context.submission)
        elif context.submission:
            waiting[key] = Task("grader", grader.reference, context.submission, timeout=grader.timeout)
        else:
            grades[key] = Grade(grader.kind, grader.fingerprint, Outcome.FAIL, 0.0, False, EMPTY_SUBMISSION)
    if waiting:
        results = await pool.run(Job(case.sample, tuple(waiting.values()), response))
        for key, result in zip(waiting, results, strict=True):
            grader = graders[key]
            grades[key] = to_grade(result, grader.kind, grader.fingerprint)
    ordered = {key: grades[key] for key in graders}
    submissions = dict.fromkeys(graders, context.submission)
    return Record(run, case.sample.case_key, 0, case.sample, response, submissions, ordered)


async def grade_once(
    grader: Grader, extractor: Extractor, sample: Sample, response: Response, pass_threshold: float | None = None
) -> tuple[str, Grade]:
    """The submission in one response and its grade; what could hang runs in a worker."""
    async with AsyncExitStack() as stack:
        pool: WorkerPool | None = None

        async def in_worker(task: Task) -> TaskResult:
            nonlocal pool
            if pool is None:
                pool = await stack.enter_async_context(WorkerPool(size=1))
                await pool.start()
            return (await pool.run(Job(sample, (task,), response)))[0]

        submission = ""
        try:
            if response.error is None:
                submission = extractor.extract(response)
        except NeedsIsolationError as error:
            if not isinstance(extractor, DeclaredExtractor):
                return submission, error_grade(grader, error)
            extracted = await in_worker(
                Task("builtin-extractor", extractor.kind, config=canonical_options(extractor.options))
            )
            if extracted.text is None:
                return submission, to_grade(extracted, grader.kind, grader.fingerprint)
            submission = extracted.text
        except GraderError as error:
            return submission, error_grade(grader, error)
        graded = run_grader(grader, GradeContext(sample, submission, response), pass_threshold=pass_threshold)
        if _needs_worker(graded) and isinstance(grader, DeclaredGrader):
            result = await in_worker(_builtin_task(grader, submission))
            graded = to_grade(result, grader.kind, grader.fingerprint, pass_threshold)
        return submission, graded


def _needs_worker(grade: Grade) -> bool:
    return grade.error is not None and grade.error.type == NeedsIsolationError.type


def _builtin_task(grader: DeclaredGrader[Any], submission: str) -> Task:
    return Task("builtin-grader", grader.kind, submission, config=canonical_options(grader.options))


def to_grade(result: TaskResult, kind: str, fingerprint: str, pass_threshold: float | None = None) -> Grade:
    """A worker's result as a record keeps it."""
    if result.result is None:
        return Grade(
            kind, fingerprint, Outcome.ERROR, error=result.error, latency_ms=result.latency_ms, output=result.output
        )
    graded = result.result
    passed = graded.passed if pass_threshold is None else graded.score >= pass_threshold
    return Grade(
        kind,
        fingerprint,
        Outcome.PASS if passed else Outcome.FAIL,
        graded.score,
        passed,
        graded.rationale,
        graded.metadata,
        latency_ms=result.latency_ms,
        output=result.output,
    )
