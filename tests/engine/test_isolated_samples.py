"""User and plugin code changes its input, without an effect on other code."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from gradeline import Grader, GradeResult, Sample, grader, run_suite
from gradeline.engine.grade import GraderUse, Grading
from gradeline.engine.plan import Graded
from gradeline.extractors import create as create_extractor
from gradeline.extractors.base import DeclaredExtractor
from gradeline.graders import DeclaredGrader, as_grader
from gradeline.model import Config, GradeContext, Response, Trajectory

WHOLE = create_extractor("last_assistant")


class _NoOptions(Config, frozen=True):
    pass


class Marking(DeclaredGrader[_NoOptions]):
    """A plugin's grader that passes where it is the first to see the sample, and marks it."""

    kind: ClassVar[str] = "marking"
    name = "Marking"
    description = "d"
    scoring_guide = "g"
    version = "1"
    calls: ClassVar[int] = 0

    def result(self, ctx: GradeContext) -> GradeResult:
        first = "marked" not in ctx.sample.metadata
        ctx.sample.metadata["marked"] = True
        if ctx.response is not None and ctx.response.trajectory is not None and ctx.response.trajectory.memory:
            first = first and ctx.response.trajectory.memory.pop("human", None) is not None
        return GradeResult(float(first))


class MarksContext(Grader):
    def grade(self, ctx: GradeContext) -> bool:
        first = "marked" not in ctx.sample.metadata
        ctx.sample.metadata["marked"] = True
        return first


class ClearsMemory(DeclaredExtractor[_NoOptions]):
    kind: ClassVar[str] = "clears"
    name = "Clears"
    description = "d"
    version = "1"

    def extract(self, response: Response) -> str:
        assert response.trajectory is not None
        assert response.trajectory.memory is not None
        return response.trajectory.memory.pop("human", "nothing")


def graded(response: Response, **uses: GraderUse) -> dict[str, Graded]:
    named = [use._replace(key=key) for key, use in uses.items()]
    return asyncio.run(Grading(named, None).grade(Sample(1, "q", "a"), response))


def test_graders_of_plugins_each_see_the_sample_as_it_is() -> None:
    response = Response(text="a", trajectory=Trajectory.of_text("a"))
    uses = [GraderUse("", one, WHOLE) for one in (Marking(), Marking(), as_grader(MarksContext(), "own"))]
    found = graded(response, one=uses[0], two=uses[1], three=uses[2], four=uses[2])
    assert [one.grade.score for one in found.values()] == [1.0] * 4


def test_graders_and_extractors_of_plugins_cannot_change_the_response() -> None:
    memory = {"human": "Ann"}
    steps = Trajectory(Trajectory.of_text("a").turns, memory)
    use = GraderUse("", Marking(), ClearsMemory())
    found = graded(Response(text="a", trajectory=steps), one=use, two=use)
    assert [(one.submission, one.grade.score) for one in found.values()] == [("Ann", 1.0)] * 2
    assert memory == {"human": "Ann"}


@pytest.mark.parametrize(
    ("returned", "message"),
    [(3, "extractor 'odd' returned 3 (int); return a string"), (None, "extractor 'odd' returned None (NoneType); r")],
)
def test_an_extractor_of_a_plugin_that_returns_no_string_is_an_error_of_its_grade(
    returned: object, message: str
) -> None:
    class Odd(ClearsMemory):
        kind: ClassVar[str] = "odd"

        def extract(self, response: Response) -> Any:
            return returned

    found = graded(Response(text="a"), odd=GraderUse("", Marking(), Odd()), right=GraderUse("", Marking(), WHOLE))
    assert found["right"].grade.score == 1.0
    assert found["odd"].grade.error is not None
    assert found["odd"].grade.error.type == "bad_reply"
    assert found["odd"].grade.error.message.startswith(message)


def test_an_exception_of_a_plugin_extractor_is_an_error_of_its_grade() -> None:
    class Raises(ClearsMemory):
        kind: ClassVar[str] = "raises"

        def extract(self, response: Response) -> str:
            raise ZeroDivisionError("oh")

    found = graded(Response(text="a"), odd=GraderUse("", Marking(), Raises()), right=GraderUse("", Marking(), WHOLE))
    assert found["right"].grade.score == 1.0
    assert found["odd"].grade.error is not None
    assert (found["odd"].grade.error.type, found["odd"].grade.error.message) == ("ZeroDivisionError", "oh")


def test_each_python_function_gets_an_unchanged_sample() -> None:
    def agent(sample: Sample) -> str:
        sample.metadata["by"] = "the agent"
        sample.metadata["list"].append("the agent")
        return "fine"

    @grader
    def first(sample: Sample, submission: str) -> GradeResult:
        untouched = sample.metadata == {"list": []} and sample.extra_vars == {}
        sample.metadata["by"] = sample.extra_vars["by"] = "a grader"
        sample.metadata["list"].append("a grader")
        return GradeResult(float(untouched))

    @grader
    async def second(sample: Sample, submission: str) -> GradeResult:
        return first(sample, submission)

    result = run_suite(
        {
            "name": "marks",
            "dataset": [{"input": "q", "metadata": {"list": []}}],
            "target": agent,
            "graders": {"first": first, "second": second, "object": MarksContext(), "again": first},
        },
        store="memory://",
    )
    (record,) = result.records()
    assert {key: grade.score for key, grade in record.grades.items()} == dict.fromkeys(record.grades, 1.0)
    assert record.sample.metadata == {"list": []}
