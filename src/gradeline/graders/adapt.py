"""Graders of other shapes, seen as the one protocol the engine calls."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from gradeline.errors import BadReplyError, ConfigError, Problem
from gradeline.graders.base import LINEAR_CHARS, DeclaredGrader, Grader
from gradeline.model import GradeContext, GradeResult, Need, clean_data, fingerprint, quote
from gradeline.model import Grader as GraderProtocol
from gradeline.model.copies import copy_context
from gradeline.model.grade import plain_scalar
from gradeline.model.resources import Resources
from gradeline.model.text import quote_typed


class AdaptedGrader:
    """A user's `Grader` subclass, whichever of the two shapes its ``grade`` has."""

    needs: frozenset[Need] = frozenset()
    max_chars = LINEAR_CHARS
    reads_submission = True

    def __init__(self, grader: Grader, kind: str) -> None:
        self._grader = grader
        self._takes_context = _takes_context(grader)
        self.kind = kind

    def bind(self, resources: Resources) -> AdaptedGrader:
        """As `Grader.bind`."""
        return AdaptedGrader(self._grader.bind(resources), self.kind)

    @property
    def grader_id(self) -> str:
        return self._grader.grader_id

    @cached_property
    def fingerprint(self) -> str:
        """Covers the bytes of the defining file and the config."""
        try:
            source = Path(inspect.getfile(type(self._grader))).read_bytes().hex()
        except (OSError, TypeError):
            source = None
        config = clean_data(self._grader.config, "config")
        return fingerprint("grader", self.kind, type(self._grader).__qualname__, source, config)

    def grade(self, ctx: GradeContext, /) -> GradeResult:
        if self._takes_context:
            return as_result(self._grader.grade(copy_context(ctx)))
        return as_result(self._grader.grade(ctx.submission, ctx.expected))


def as_grader(grader: Grader, kind: str | None = None) -> GraderProtocol:
    """Any grader as the engine calls it."""
    if isinstance(grader, DeclaredGrader):
        return grader
    return AdaptedGrader(grader, kind or grader.grader_id)


def as_result(value: object) -> GradeResult:
    """What a grader's function returned, as a `GradeResult`, or `BadReplyError`."""
    if type(value) is GradeResult:
        return value
    try:
        if isinstance(value, GradeResult):  # a subclass may have left out the checks
            return GradeResult(value.score, value.rationale, value.metadata, value.passed)
        value = plain_scalar(value)
        if isinstance(value, Mapping):
            details: Mapping[str, Any] = value.get("details") or {}
            passed: Any = value.get("passed")
            return GradeResult(value["score"], details.get("reason"), dict(details), passed)
        if isinstance(value, bool):
            return GradeResult(1.0 if value else 0.0, passed=value)
        if isinstance(value, int | float):
            return GradeResult(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadReplyError(f"the grader returned {quote(value)}: {error}") from error
    raise BadReplyError(f"the grader returned {quote_typed(value)}; return a GradeResult with a score from 0.0 to 1.0")


def _takes_context(grader: Grader) -> bool:
    signature = inspect.signature(grader.grade)
    for arguments, takes_context in (((None, None), False), ((None,), True)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return takes_context
    place: Any = type(grader)
    raise ConfigError(
        Problem(
            f"{place.__module__}.{place.__qualname__}.grade{signature}",
            "must take (actual, expected) or (ctx)",
        )
    )
