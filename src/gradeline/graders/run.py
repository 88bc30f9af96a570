"""One grader, one context, one outcome: errors become outcomes here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from gradeline.errors import BadReplyError, ConfigError, DataError, GraderError, Outcome, TooLargeError, grade_policy
from gradeline.graders.adapt import as_result
from gradeline.graders.base import DeclaredGrader, as_text
from gradeline.graders.registry import create
from gradeline.model import (
    AskingGrader,
    ErrorInfo,
    Grade,
    GradeContext,
    Grader,
    GradeResult,
    Sample,
    Usage,
    clean_data,
    clean_text,
)
from gradeline.model.copies import copy_context, is_ours
from gradeline.model.text import is_clean, quote_typed
from gradeline.model.tracebacks import users_traceback

NO_SCORE = "no_score"
"""The type of an error: the grader gave its result without a score."""
EMPTY_SUBMISSION = "Empty submission - extractor found no content"


def run_grader(
    grader: Grader, ctx: GradeContext, *, pass_threshold: float | None = None, isolate: bool = True
) -> Grade:
    """The grade as a record keeps it. Never raises: what goes wrong is an ``error`` outcome.

    What could take too long in this process is graded by a worker process, and waited for; without ``isolate`` it is
    an error of type ``needs_isolation``. A failed agent call is ``skipped``; an empty answer of a successful call
    scores 0.0.
    """
    if ctx.response is not None and ctx.response.error is not None:
        return Grade(grader.kind, grader.fingerprint, Outcome.SKIPPED)
    started = perf_counter()
    try:
        if grader.reads_submission and not ctx.submission:
            result = GradeResult(0.0, EMPTY_SUBMISSION)
        else:
            _check_size(grader, ctx)
            if not is_ours(type(grader)):
                result = grader.grade(copy_context(ctx))
            elif isolate or not isinstance(grader, DeclaredGrader):
                result = grader.grade(ctx)
            else:
                result = grader.result(ctx)
            if type(result) is not GradeResult:
                result = as_result(result)
        latency_ms = (perf_counter() - started) * 1000
        return grade_of(grader.kind, grader.fingerprint, result, pass_threshold, latency_ms=latency_ms)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit and the like from a plugin must not end the run
        return error_grade(grader, error, (perf_counter() - started) * 1000)


async def ask_grader(grader: AskingGrader, ctx: GradeContext, *, pass_threshold: float | None = None) -> Grade:
    """The grade of a grader that asks models, with what that used, as `run_grader` gives it.

    Raises `ConfigError` alone: no case can be graded until a person has fixed that.
    """
    if ctx.response is not None and ctx.response.error is not None:
        return Grade(grader.kind, grader.fingerprint, Outcome.SKIPPED)
    started = perf_counter()
    usage: Usage | None = None
    try:
        result: GradeResult | GraderError
        if grader.reads_submission and not ctx.submission:
            result = GradeResult(0.0, EMPTY_SUBMISSION)
        else:
            _check_size(grader, ctx)
            result, usage = await grader.agrade(ctx if is_ours(type(grader)) else copy_context(ctx))
        if usage is not None and not isinstance(usage, Usage):
            given, usage = usage, None
            raise BadReplyError(f"the grader returned {quote_typed(given)} as its usage; return a Usage or None")
        if isinstance(result, GraderError):
            raise result
        if type(result) is not GradeResult:
            result = as_result(result)
        latency_ms = (perf_counter() - started) * 1000
        return grade_of(grader.kind, grader.fingerprint, result, pass_threshold, latency_ms=latency_ms, usage=usage)
    except (ConfigError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if _cancelled(error):
            raise
        return error_grade(grader, error, (perf_counter() - started) * 1000, usage)


def _cancelled(error: BaseException) -> bool:
    """Whether the task that waits was cancelled, and the grader did not raise this by itself."""
    from asyncio import CancelledError, current_task  # only code that runs in a loop comes here

    task = current_task()
    return isinstance(error, CancelledError) and (task is None or task.cancelling() > 0)


def grade_of(
    kind: str,
    fingerprint: str,
    result: GradeResult,
    pass_threshold: float | None = None,
    *,
    latency_ms: float | None = None,
    output: str | None = None,
    usage: Usage | None = None,
) -> Grade:
    """A grader's result as a record keeps it; `DataError` where its metadata cannot be stored."""
    metadata = clean_data(result.metadata, "metadata") if result.metadata else {}
    rationale = result.rationale
    if rationale is not None and not is_clean(rationale):
        rationale = clean_text(rationale).text
    score = result.score
    if score is None:
        message = rationale or "the grader returned a GradeResult without a score and without a rationale"
        error = ErrorInfo(NO_SCORE, message, grade_policy(NO_SCORE).fault)
        return Grade(
            kind,
            fingerprint,
            Outcome.ERROR,
            rationale=rationale,
            metadata=metadata,
            error=error,
            latency_ms=latency_ms,
            output=output,
            usage=usage,
        )
    passed = result.passed if pass_threshold is None else score >= pass_threshold
    outcome = Outcome.PASS if passed else Outcome.FAIL
    return Grade(kind, fingerprint, outcome, score, passed, rationale, metadata, None, latency_ms, output, usage)


def grade(kind: str, submission: str, expected: object = None, config: Mapping[str, Any] | None = None) -> GradeResult:
    """Grade one text with a built-in grader.

    Raises `ValueError` with the path of the fault for a wrong config, and
    `gradeline.errors.GraderError` where there is no score to give.
    """
    grader = create(kind, config)
    ctx = GradeContext(Sample(id=0, input="", ground_truth=as_text(expected)), as_text(submission) or "")
    _check_size(grader, ctx)
    return grader.grade(ctx)


def _check_size(grader: Grader, ctx: GradeContext) -> None:
    if not grader.reads_submission:
        return
    most = grader.max_chars
    truth = ctx.sample.ground_truth
    if len(ctx.submission) <= most and (truth is None or (isinstance(truth, str) and len(truth) <= most)):
        return
    expected = ctx.expected or ""
    for what, text in (("submission", ctx.submission), ("ground_truth", expected)):
        if len(text) > grader.max_chars:
            raise TooLargeError(
                f"the {what} has {len(text):,} characters; {grader.kind} takes at most {grader.max_chars:,}"
            )


def error_grade(
    grader: Grader, error: BaseException, latency_ms: float | None = None, usage: Usage | None = None
) -> Grade:
    """What becomes of a grade when it, or what it needs, fails: an ``error`` that says whose fault it is."""
    kept = error if isinstance(error, GraderError) else GraderError()
    return Grade(
        grader.kind,
        grader.fingerprint,
        Outcome.ERROR,
        rationale=None if kept.rationale is None else clean_text(kept.rationale).text,
        metadata=clean_data(dict(kept.metadata), "metadata"),
        error=error_info(error),
        latency_ms=latency_ms,
        usage=usage,
    )


def error_info(error: BaseException) -> ErrorInfo:
    """An exception as a record keeps it, whatever its ``__str__`` does."""
    if isinstance(error, GraderError):
        error_type, traced = error.type, False
    elif isinstance(error, DataError):
        error_type, traced = "bad_reply", False
    else:
        error_type, traced = type(error).__name__, True
    try:
        message = str(error)
    except BaseException:
        message = f"<{type(error).__name__} whose message cannot be shown>"
    return ErrorInfo(
        clean_text(error_type).text,
        clean_text(message).text,
        grade_policy(error_type).fault,
        users_traceback(error) if traced else None,
    )
