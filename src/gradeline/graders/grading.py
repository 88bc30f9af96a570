"""Run a grader on one case. An exception becomes an ``error`` outcome in `error_grade`, and only there."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from gradeline.errors import (
    BadReplyError,
    CaseLeftOut,
    ConfigError,
    GraderError,
    NeedsIsolationError,
    Outcome,
    TooLargeError,
    grade_policy,
)
from gradeline.graders.base import DeclaredGrader, as_result, as_text
from gradeline.graders.registry import create
from gradeline.model import (
    AsyncGrader,
    ErrorInfo,
    Grade,
    GradeContext,
    GradeResult,
    GraderProtocol,
    MeteredResult,
    Sample,
    Usage,
    clean_data,
    clean_text,
)
from gradeline.model.context import copy_context, is_own_class
from gradeline.model.grade import grader_error
from gradeline.model.text import is_clean, quote_typed

NO_SCORE = "no_score"
"""Error type of a `GradeResult` without a score."""
EMPTY_SUBMISSION = "Empty submission - extractor found no content"


def run_grader(
    grader: GraderProtocol, ctx: GradeContext, *, pass_threshold: float | None = None, isolate: bool = True
) -> Grade:
    """Grade a case. Never raises: an exception becomes an ``error`` outcome.

    Work that could take too long in this process runs in a worker process; without ``isolate`` it is an error of type
    ``needs_isolation``. A failed agent call is ``skipped``; an empty answer of a successful call scores 0.0.
    """
    if ctx.response is not None and ctx.response.error is not None:
        return skipped_grade(grader.kind, grader.fingerprint)
    started = perf_counter()
    try:
        if grader.reads_submission and not ctx.submission:
            result = GradeResult(0.0, EMPTY_SUBMISSION)
        else:
            chars = _check_size(grader, ctx)
            if not is_own_class(type(grader)):
                result = grader.grade(copy_context(ctx))
            elif not isinstance(grader, DeclaredGrader):
                result = grader.grade(ctx)
            else:
                try:
                    # one call less than `local_result` for short texts
                    short = chars <= grader.local_chars
                    result = grader.result(ctx) if short else grader.local_result(ctx, chars)
                except NeedsIsolationError:
                    if not isolate:
                        raise
                    result = grader.isolated(ctx)
            if type(result) is not GradeResult:
                result = as_result(result)
        latency_ms = (perf_counter() - started) * 1000
        return result_grade(grader.kind, grader.fingerprint, result, pass_threshold, latency_ms=latency_ms)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin's SystemExit must not end the run
        return error_grade(grader.kind, grader.fingerprint, error, (perf_counter() - started) * 1000)


async def run_async_grader(grader: AsyncGrader, ctx: GradeContext, *, pass_threshold: float | None = None) -> Grade:
    """`run_grader` for a grader that waits for models, servers or programs; the grade includes their usage.

    Raises only `ConfigError`: no case can be graded until the configuration is fixed.
    """
    if ctx.response is not None and ctx.response.error is not None:
        return skipped_grade(grader.kind, grader.fingerprint)
    started = perf_counter()
    usage: Usage | None = None
    output: str | None = None
    try:
        result: GradeResult | GraderError
        if grader.reads_submission and not ctx.submission:
            result = GradeResult(0.0, EMPTY_SUBMISSION)
        else:
            _check_size(grader, ctx)
            metered = await grader.agrade(ctx if is_own_class(type(grader)) else copy_context(ctx))
            result, usage, output = MeteredResult(*metered)  # a plugin may return a plain tuple
        if usage is not None and not isinstance(usage, Usage):
            returned, usage = usage, None
            raise BadReplyError(f"the grader returned {quote_typed(returned)} as its usage; return a Usage or None")
        if isinstance(result, GraderError):
            raise result
        if type(result) is not GradeResult:
            result = as_result(result)
        latency_ms = (perf_counter() - started) * 1000
        return result_grade(
            grader.kind, grader.fingerprint, result, pass_threshold, latency_ms=latency_ms, output=output, usage=usage
        )
    except (ConfigError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if _cancelled(error):
            raise
        latency_ms = (perf_counter() - started) * 1000
        return error_grade(grader.kind, grader.fingerprint, error, latency_ms, output=output, usage=usage)


def _cancelled(error: BaseException) -> bool:
    """Whether the current task was cancelled, as opposed to a grader that raises `CancelledError` itself."""
    from asyncio import CancelledError, current_task  # keeps start-up light; a loop is running here

    task = current_task()
    return isinstance(error, CancelledError) and (task is None or task.cancelling() > 0)


def result_grade(
    kind: str,
    fingerprint: str,
    result: GradeResult,
    pass_threshold: float | None = None,
    *,
    latency_ms: float | None = None,
    output: str | None = None,
    usage: Usage | None = None,
) -> Grade:
    """A grader's result as a stored grade; `DataError` if its metadata cannot be stored."""
    metadata = clean_data(result.metadata, "metadata") if result.metadata else {}
    rationale = result.rationale
    if rationale is not None and not is_clean(rationale):
        rationale = clean_text(rationale).text
    score = result.score
    if score is None:
        message = rationale or "the grader returned a GradeResult without a score and without a rationale"
        error = ErrorInfo(NO_SCORE, message, grade_policy(NO_SCORE).fault)
        failed = error_grade(kind, fingerprint, error, latency_ms, output=output, usage=usage)
        return replace(failed, rationale=rationale, metadata=metadata)
    passed = result.passed if pass_threshold is None else score >= pass_threshold
    outcome = Outcome.PASS if passed else Outcome.FAIL
    return Grade(kind, fingerprint, outcome, score, passed, rationale, metadata, None, latency_ms, output, usage)


def grade(kind: str, submission: str, expected: object = None, config: Mapping[str, Any] | None = None) -> GradeResult:
    """Grade one string with a built-in grader.

    Raises `ValueError` with the path of the fault for an invalid config, and `gradeline.errors.GraderError` if there is
    no score.
    """
    grader = create(kind, config)
    ctx = GradeContext(Sample(id=0, input="", ground_truth=as_text(expected)), as_text(submission) or "")
    _check_size(grader, ctx)
    return grader.grade(ctx)


def _check_size(grader: GraderProtocol, ctx: GradeContext) -> int:
    """The characters of submission and ground truth together; `TooLargeError` if one of them has too many."""
    if not grader.reads_submission:
        return 0
    limit = grader.max_chars
    truth = ctx.sample.ground_truth
    submitted = len(ctx.submission)
    known = 0 if truth is None else len(truth) if isinstance(truth, str) else len(ctx.expected or "")
    if submitted <= limit and known <= limit:
        return submitted + known
    what, chars = ("submission", submitted) if submitted > limit else ("ground_truth", known)
    raise TooLargeError(f"the {what} has {chars:,} characters; {grader.kind} takes at most {limit:,}")


def error_grade(
    kind: str,
    fingerprint: str,
    error: BaseException | ErrorInfo,
    latency_ms: float | None = None,
    *,
    output: str | None = None,
    usage: Usage | None = None,
) -> Grade:
    """The grade of a grader that failed, or whose input could not be prepared.

    This is the only place that turns an exception into an outcome; `gradeline.model.grade.grader_error` gives its
    type. A `GraderError` also provides rationale and metadata.
    """
    if isinstance(error, CaseLeftOut):
        return Grade(kind, fingerprint, error.outcome, rationale=clean_text(str(error)).text)
    details = error if isinstance(error, GraderError) else GraderError()
    return Grade(
        kind,
        fingerprint,
        Outcome.ERROR,
        rationale=None if details.rationale is None else clean_text(details.rationale).text,
        metadata=clean_data(dict(details.metadata), "metadata") if details.metadata else {},
        error=error if isinstance(error, ErrorInfo) else grader_error(error),
        latency_ms=latency_ms,
        output=output,
        usage=usage,
    )


def skipped_grade(kind: str, fingerprint: str) -> Grade:
    """The grade of a failed call: there is nothing to grade."""
    return Grade(kind, fingerprint, Outcome.SKIPPED)
