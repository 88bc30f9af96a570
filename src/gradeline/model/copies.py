"""Copies for code that is not ours: what it changes in a sample or response, no one else sees."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec.structs import replace

from gradeline.model.context import GradeContext
from gradeline.model.response import Response
from gradeline.model.sample import Sample


def copy_data(value: Any) -> Any:
    """A JSON tree with mappings and lists of its own."""
    if type(value) is dict:
        return {key: copy_data(item) for key, item in value.items()}
    if type(value) is list:
        return [copy_data(item) for item in value]
    return value


def copy_sample(sample: Sample) -> Sample:
    """The sample with containers of its own, empty ones included: those can be filled."""
    asked, expected = sample.input, sample.ground_truth
    return Sample(
        sample.id,
        asked if type(asked) is str else list(asked),
        expected if expected is None or type(expected) is str else list(expected),
        copy_data(sample.metadata) if sample.metadata else {},
        copy_data(sample.agent_args) if sample.agent_args else {},
        copy_data(sample.rubric_vars) if sample.rubric_vars else {},
        copy_data(sample.extra_vars) if sample.extra_vars else {},
        sample.tags,
        sample.rubric,
        sample.rubric_path,
    )


def copy_response(response: Response) -> Response:
    """The response with an agent memory of its own; the rest of it is immutable."""
    steps = response.trajectory
    if steps is None or steps.memory is None:
        return response
    return replace(response, trajectory=replace(steps, memory=dict(steps.memory)))


def copy_context(ctx: GradeContext) -> GradeContext:
    """All that a grader is given, with containers of its own."""
    return GradeContext(
        copy_sample(ctx.sample),
        ctx.submission,
        None if ctx.response is None else copy_response(ctx.response),
        None if ctx.baseline is None else copy_response(ctx.baseline),
        {key: replace(grade, metadata=copy_data(grade.metadata)) for key, grade in ctx.grades.items()},
        ctx.baseline_submission,
    )


@cache
def is_ours(kind: type) -> bool:
    """Whether a class is defined in this package: such code is known not to change what it is given."""
    return kind.__module__.startswith("gradeline.")
