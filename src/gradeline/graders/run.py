"""One grader, one context, one outcome: errors become outcomes here and nowhere else."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from gradeline.errors import ConfigError, DataError, GraderError, Outcome, TooLargeError, grade_policy
from gradeline.graders.base import as_text
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
from gradeline.model.text import is_clean

EMPTY_SUBMISSION = "Empty submission - extractor found no content"


def run_grader(grader: Grader, ctx: GradeContext, *, pass_threshold: float | None = None) -> Grade:
    """The grade as a record keeps it. Never raises: what goes wrong is an ``error`` outcome.

    A failed agent call is ``skipped``; an empty answer of a successful call scores 0.0.
    """
    if ctx.response is not None and ctx.response.error is not None:
        return Grade(grader.kind, grader.fingerprint, Outcome.SKIPPED)
    started = perf_counter()
    try:
        if grader.reads_submission and not ctx.submission:
            result = GradeResult(0.0, EMPTY_SUBMISSION)
        else:
            _check_size(grader, ctx)
            result = grader.grade(ctx)
        return _scored(grader, result, pass_threshold, started)
    except Exception as error:
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
            result, usage = await grader.agrade(ctx)
        if isinstance(result, GraderError):
            raise result
        return _scored(grader, result, pass_threshold, started, usage)
    except ConfigError:
        raise
    except Exception as error:
        return error_grade(grader, error, (perf_counter() - started) * 1000, usage)


def _scored(
    grader: Grader, result: GradeResult, pass_threshold: float | None, started: float, usage: Usage | None = None
) -> Grade:
    metadata = clean_data(result.metadata, "metadata") if result.metadata else {}
    passed = result.passed if pass_threshold is None else result.score >= pass_threshold
    rationale = result.rationale
    return Grade(
        grader.kind,
        grader.fingerprint,
        Outcome.PASS if passed else Outcome.FAIL,
        result.score,
        passed,
        rationale if rationale is None or is_clean(rationale) else clean_text(rationale).text,
        metadata,
        latency_ms=(perf_counter() - started) * 1000,
        usage=usage,
    )


def grade(kind: str, submission: str, expected: object = None, config: Mapping[str, Any] | None = None) -> GradeResult:
    """Grade one text with a built-in grader.

    Raises `ValueError` with the path of the fault for a wrong config, and
    `gradeline.errors.GraderError` where there is no score to give.
    """
    grader = create(kind, config)
    ctx = GradeContext(Sample(id=0, input="", ground_truth=as_text(expected)), submission)
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


def error_grade(grader: Grader, error: Exception, latency_ms: float | None = None, usage: Usage | None = None) -> Grade:
    """What becomes of a grade when it, or what it needs, fails: an ``error`` that says whose fault it is."""
    if isinstance(error, GraderError):
        error_type, trace = error.type, None
    elif isinstance(error, DataError):
        error_type, trace = "bad_reply", None
    else:
        error_type, trace = type(error).__name__, "".join(traceback.format_exception(error))
    info = ErrorInfo(
        error_type,
        clean_text(str(error)).text,
        grade_policy(error_type).fault,
        None if trace is None else clean_text(trace).text,
    )
    return Grade(grader.kind, grader.fingerprint, Outcome.ERROR, error=info, latency_ms=latency_ms, usage=usage)
