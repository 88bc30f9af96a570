"""Grading cases with user code and built-ins alike."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import NamedTuple

from gradeline.errors import NeedsIsolationError, Outcome
from gradeline.graders import DeclaredGrader, run_grader
from gradeline.graders.run import EMPTY_SUBMISSION
from gradeline.model import Grade, GradeContext, Grader, Record, Response, Sample
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
            error = grades[key].error
            if error is not None and error.type == NeedsIsolationError.type and isinstance(grader, DeclaredGrader):
                config = grader.definition().get("config", {})
                waiting[key] = Task("builtin", grader.kind, context.submission, config=config)
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
