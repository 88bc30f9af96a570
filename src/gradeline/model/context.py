"""The input of a grader, and copies of it for user code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from gradeline.model.grade import Grade
from gradeline.model.response import Document, Response
from gradeline.model.sample import Sample
from gradeline.model.text import clean_text

Need = Literal["response", "baseline", "grades"]
"""What a grader may need in addition to sample and submission."""


class GradeContext(msgspec.Struct, frozen=True):
    """A submission with its case.

    ``response`` is the whole response of the agent, ``baseline`` the baseline's response to the same case,
    ``baseline_submission`` the submission extracted from it, ``grades`` the grades of earlier graders. Each is set if
    the grader needs it.
    """

    sample: Sample
    submission: str
    response: Response | None = None
    baseline: Response | None = None
    grades: Mapping[str, Grade] = {}
    baseline_submission: str | None = None

    def __post_init__(self) -> None:
        # graders see the stored text, so that regrading gives the same result
        if not self.submission.isascii() or "\0" in self.submission:
            msgspec.structs.force_setattr(self, "submission", clean_text(self.submission).text)

    @property
    def expected(self) -> str | None:
        """The expected value as one string; turns of a conversation are joined by newlines."""
        return expected_text(self.sample)

    @property
    def documents(self) -> tuple[Document, ...] | None:
        """What the agent retrieved for its answer; None if that is unknown."""
        return None if self.response is None else self.response.documents


def expected_text(sample: Sample) -> str | None:
    """The expected value of a case as one string; turns of a conversation are joined by newlines."""
    truth = sample.ground_truth
    if isinstance(truth, list):
        truth = "\n".join(truth)
    return truth if truth is None or (truth.isascii() and "\0" not in truth) else clean_text(truth).text


def copy_data(value: Any) -> Any:
    """A deep copy of JSON data."""
    if type(value) is dict:
        return {key: copy_data(item) for key, item in value.items()}
    if type(value) is list:
        return [copy_data(item) for item in value]
    return value


def copy_sample(sample: Sample) -> Sample:
    """The sample with new containers, empty ones included: user code can fill those."""
    question, expected = sample.input, sample.ground_truth
    return Sample(
        sample.id,
        question if type(question) is str else list(question),
        expected if expected is None or type(expected) is str else list(expected),
        copy_data(sample.metadata) if sample.metadata else {},
        copy_data(sample.agent_args) if sample.agent_args else {},
        copy_data(sample.rubric_vars) if sample.rubric_vars else {},
        copy_data(sample.extra_vars) if sample.extra_vars else {},
        sample.tags,
        sample.rubric,
        sample.rubric_path,
        checks=copy_data(sample.checks) if sample.checks else msgspec.UNSET,
    )


def copy_response(response: Response) -> Response:
    """The response with a new memory mapping; the rest is immutable."""
    steps = response.trajectory
    if steps is None or steps.memory is None:
        return response
    return replace(response, trajectory=replace(steps, memory=dict(steps.memory)))


def copy_context(ctx: GradeContext) -> GradeContext:
    """The context with new containers."""
    return GradeContext(
        copy_sample(ctx.sample),
        ctx.submission,
        None if ctx.response is None else copy_response(ctx.response),
        None if ctx.baseline is None else copy_response(ctx.baseline),
        {key: replace(grade, metadata=copy_data(grade.metadata)) for key, grade in ctx.grades.items()},
        ctx.baseline_submission,
    )


@cache
def is_own_class(kind: type) -> bool:
    """Whether a class is defined in this package: such code does not modify its input."""
    return kind.__module__.startswith("gradeline.")
