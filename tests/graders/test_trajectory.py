from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import ConfigError, MissingDataError, Outcome
from gradeline.graders import create, from_definition, run_grader
from gradeline.graders.trajectory import TrajectoryGrader
from gradeline.model import GradeContext, GradeResult, Message, Response, Sample, ToolCall, Trajectory


def call(name: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(name, arguments)


def assistant(text: str = "", *calls: ToolCall) -> Message:
    return Message("assistant", text, calls)


def returned(text: str = "ok", *, is_error: bool = False) -> Message:
    return Message("tool", text, is_error=is_error)


def context(*messages: Message) -> GradeContext:
    return GradeContext(Sample(id=0, input=""), "", Response(text="", trajectory=Trajectory((messages,))))


def grade(ctx: GradeContext, **config: Any) -> GradeResult:
    return create("trajectory", config).grade(ctx)


SEARCHED = context(
    Message("user", "find it"),
    assistant("", call("search", '{"q": "a"}')),
    returned("not found", is_error=True),
    assistant("again", call("search", '{"q": "b"}'), call("read")),
    returned(),
    returned(),
    assistant("here it is"),
)
"""Five steps: three calls and two messages with text."""


def test_all_checks_that_hold_score_one() -> None:
    assert grade(SEARCHED, max_steps=5, required_tools=["search"]) == GradeResult(
        1.0, "All 2 checks hold", {"steps": 5, "tool_calls": 3, "errors": 1, "failed": []}, True
    )


def test_the_score_is_the_share_of_checks_that_hold_and_only_all_pass() -> None:
    assert grade(SEARCHED, min_steps=2, max_tool_calls=2, required_tools=["read"]) == GradeResult(
        2 / 3,
        "max_tool_calls: 3 tool calls, at most 2",
        {"steps": 5, "tool_calls": 3, "errors": 1, "failed": ["max_tool_calls"]},
        False,
    )


def test_every_failed_check_is_named() -> None:
    result = grade(SEARCHED, max_steps=1, max_errors=0)
    assert (result.score, result.rationale) == (0.0, "max_steps: 5 steps, at most 1; max_errors: 1 error, at most 0")


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"min_steps": 5}, None),
        ({"min_steps": 6}, "min_steps: 5 steps, at least 6"),
        ({"max_steps": 5}, None),
        ({"max_steps": 4}, "max_steps: 5 steps, at most 4"),
        ({"max_tool_calls": 3}, None),
        ({"max_tool_calls": 2}, "max_tool_calls: 3 tool calls, at most 2"),
        ({"max_errors": 1}, None),
        ({"max_errors": 0}, "max_errors: 1 error, at most 0"),
        ({"forbidden_tools": ["delete"]}, None),
        ({"forbidden_tools": ["delete", "search"]}, "forbidden_tools: called 'search' (2 times)"),
        ({"required_tools": ["read", "search"]}, None),
        (
            {"required_tools": ["search", "write"]},
            "required_tools: 'write' not called; called 'search' (2 times), 'read'",
        ),
        ({"order": ["search", "read"]}, None),
        ({"order": ["search", "search", "read"]}, None),
        (
            {"order": ["read", "search"]},
            "order: 'search' not called after 'read'; called 'search', 'search', 'read'",
        ),
        ({"order": ["write"]}, "order: 'write' not called; called 'search', 'search', 'read'"),
        ({"allow_repeats": False}, None),
    ],
)
def test_each_check(config: dict[str, Any], fault: str | None) -> None:
    result = grade(SEARCHED, **config)
    assert (result.passed, result.rationale) == (fault is None, fault or "The check holds")


def test_a_call_equal_to_the_previous_one_is_a_repeat() -> None:
    ctx = context(assistant("", call("a", '{"x": 1, "y": 2}')), returned(), assistant("", call("a", '{"y":2,"x":1}')))
    assert grade(ctx, allow_repeats=False).rationale == "allow_repeats: repeated 'a'"


def test_a_call_equal_to_an_earlier_one_is_not_a_repeat() -> None:
    assert grade(context(assistant("", call("a"), call("b"), call("a"))), allow_repeats=False).passed


def test_broken_arguments_are_compared_as_text() -> None:
    same = context(assistant("", call("a", "{oops"), call("a", "{oops")))
    other = context(assistant("", call("a", "{oops"), call("a", "{oops!")))
    assert [grade(ctx, allow_repeats=False).passed for ctx in (same, other)] == [False, True]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"min_steps": 1},
        {"max_steps": 9},
        {"max_tool_calls": 0},
        {"forbidden_tools": ["delete"]},
        {"required_tools": ["search"]},
        {"order": ["search"]},
        {"allow_repeats": False},
        {"max_errors": 0},
    ],
)
@pytest.mark.parametrize("trajectory", [None, Trajectory(((assistant("hello"),),), tools_known=False)])
def test_no_check_passes_or_fails_where_tool_use_is_unknown(
    trajectory: Trajectory | None, config: dict[str, Any]
) -> None:
    ctx = GradeContext(Sample(id=0, input=""), "", Response(text="hello", trajectory=trajectory))
    graded = run_grader(create("trajectory", config), ctx)
    assert (graded.outcome, graded.score) == (Outcome.ERROR, None)
    assert graded.error is not None
    assert graded.error.type == "missing"
    for remedy in ("http: map tool_calls", "tool_calls || `[]`", "python: return a Response", "command: output: json"):
        assert remedy in graded.error.message


def test_an_agent_that_reports_no_tool_calls_passes() -> None:
    for trajectory in (Trajectory(), Trajectory.of_text("hello")):
        ctx = GradeContext(Sample(id=0, input=""), "", Response(text="hello", trajectory=trajectory))
        assert grade(ctx, forbidden_tools=["delete"], max_tool_calls=0, max_errors=0).passed
        assert grade(ctx).passed


CALLED = context(assistant("", call("search")), assistant("done"))
"""Calls without results, as of an agent with only tool_calls mapped."""


HALF_REPORTED = context(
    assistant("", call("search", "1"), call("fetch", "2")),
    Message("tool", "found", tool_call_id="1", name="search"),
    assistant("done"),
)
"""Two calls, of which one has its result."""


@pytest.mark.parametrize("ctx", [CALLED, HALF_REPORTED])
@pytest.mark.parametrize("config", [{}, {"max_errors": 0, "forbidden_tools": ["delete"]}])
def test_errors_are_unknown_where_a_result_is_not_reported(ctx: GradeContext, config: dict[str, Any]) -> None:
    with pytest.raises(MissingDataError, match="reports tool calls without their results"):
        grade(ctx, **config)


def test_errors_that_are_reported_decide_where_the_others_cannot_change_it() -> None:
    assert grade(HALF_REPORTED, max_errors=1).passed
    failed = Message("tool", "not found", tool_call_id="1", name="search", is_error=True)
    ctx = context(assistant("", call("search", "1"), call("fetch", "2")), failed)
    assert grade(ctx, max_errors=0).rationale == "max_errors: 1 error, at most 0"


def test_checks_without_results_do_not_need_them() -> None:
    result = grade(CALLED, forbidden_tools=["delete"], max_tool_calls=1)
    assert (result.passed, result.metadata["errors"]) == (True, None)


def test_a_message_of_whitespace_is_not_a_step() -> None:
    assert grade(context(assistant(" \n")), max_steps=0).passed


def test_the_absence_of_calls_is_reported() -> None:
    assert grade(context(), required_tools=["a"]).rationale == "required_tools: 'a' not called; called none"


def test_long_lists_of_tools_are_cut_short() -> None:
    ctx = context(assistant("", *(call(f"t{number}") for number in range(20))))
    assert grade(ctx, order=["t1", "t0"]).rationale == (
        "order: 't0' not called after 't1'; called 't0', 't1', 't2', 't3', 't4', 't5', 't6', 't7', 12 more"
    )


def test_no_response_is_missing() -> None:
    with pytest.raises(MissingDataError, match="the context has no response"):
        grade(GradeContext(Sample(id=0, input=""), "text"), max_steps=1)


def test_an_empty_answer_is_graded_by_its_trajectory() -> None:
    assert run_grader(create("trajectory", {"max_steps": 5}), SEARCHED).outcome is Outcome.PASS


@pytest.mark.parametrize("config", [{}, {"allow_repeats": True}])
def test_without_options_no_tool_call_may_come_back_with_an_error(config: dict[str, Any]) -> None:
    sound = context(assistant("", call("search")), returned())
    broken = context(assistant("", call("search")), returned(is_error=True))
    assert grade(sound, **config).passed is True
    assert grade(broken, **config).rationale == "max_errors: 1 error, at most 0"


def test_options_that_contradict_each_other_are_all_named() -> None:
    with pytest.raises(ConfigError) as raised:
        create("trajectory", {"min_steps": 3, "max_steps": 2, "forbidden_tools": ["a"], "order": ["a"]})
    assert [str(problem) for problem in raised.value.problems] == [
        "config.min_steps: 3 is more than max_steps, 2",
        "config.order: 'a' is also in forbidden_tools",
    ]


@pytest.mark.parametrize(
    "config",
    [{"max_steps": -1}, {"max_errors": "no"}, {"order": []}, {"required_tools": "a"}, {"forbidden_tools": [1]}],
)
def test_faulty_options_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"config\.{next(iter(config))}"):
        create("trajectory", config)


def test_the_stored_form_rebuilds_the_grader() -> None:
    grader = TrajectoryGrader({"max_steps": 3, "order": ["a", "b"]})
    assert grader.definition() == {"kind": "trajectory", "config": {"max_steps": 3, "order": ["a", "b"]}}
    assert from_definition(grader.definition()).fingerprint == grader.fingerprint


def test_the_listing_defines_a_step() -> None:
    options = TrajectoryGrader.describe()["config_schema"]["properties"]
    assert options["max_steps"] == {
        "description": "Maximum steps. A step is a tool call, or a message of the agent with text.",
        "anyOf": [{"type": "integer", "minimum": 0}, REFERENCE],
    }
    assert options["order"]["anyOf"] == [{"type": "array", "items": {"type": "string"}, "minItems": 1}, REFERENCE]


REFERENCE = {"type": "string", "pattern": r"^\$(expected|input|ground_truth(\..+)?|metadata\..+)$"}


HOSTILE_ARGUMENTS = st.sampled_from(
    ["{}", "", "[" * 100_000, '{"a":' * 50_000, '{"a": 1e999}', '{"a": "\ud800"}', "NaN"]
)


@given(st.lists(st.builds(ToolCall, st.text(max_size=3), HOSTILE_ARGUMENTS), max_size=5))
def test_any_calls_get_a_score(calls: list[ToolCall]) -> None:
    ctx = context(assistant("", *calls), *(returned() for _ in calls))
    result = grade(ctx, allow_repeats=False, forbidden_tools=["a"], order=["b"], max_errors=0)
    assert 0.0 <= result.score <= 1.0
