"""Modes and options of tool_calls that compare less than whole calls, and tests of calls in a trajectory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradeline import GradeContext, Response, Sample, run_suite
from gradeline.errors import ConfigError
from gradeline.graders import create, run_grader
from gradeline.model import Grade, Message, ToolCall, Trajectory
from gradeline.parsing.patterns import matches_glob

WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOLS = [
    {"type": "function", "function": WEATHER},
    {"name": "search", "input_schema": {"required": ["q"]}},
    {"name": "now"},
]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def graded(
    made: list[dict[str, Any]] | str, truth: object = None, metadata: dict[str, Any] | None = None, **config: Any
) -> Grade:
    text = made if isinstance(made, str) else json.dumps(made)
    truth = None if truth is None else json.dumps(truth)
    case = Sample(id=1, input="", ground_truth=truth, metadata=metadata or {})
    return run_grader(create("tool_calls", config), GradeContext(case, text))


@pytest.mark.parametrize(
    ("made", "rationale"),
    [
        ([call("weather", city="Oslo", days=2), call("search", q="x"), call("now")], "3 calls made, all valid"),
        ([call("weather", days=2)], "call 1, 'weather': $: \"city\" is a required property"),
        ([call("weather", city="Oslo", days=0)], "call 1, 'weather': $.days: 0 is less than the minimum of 1"),
        ([call("wether", city="Oslo")], "call 1, 'wether': there is no tool 'wether'; the tools are 'weather', 'search', 'now'"),
        ([{"name": "now", "arguments": "[1]"}], "call 1, 'now': the arguments are not a JSON object but '[1]'"),
        ([], "No tool was called"),
        ("It rains.", "The submission is not JSON (invalid character (byte 0)): 'It rains.'"),
    ],
)  # fmt: skip
def test_schema_validates_every_call(made: list[dict[str, Any]] | str, rationale: str) -> None:
    for grade in (
        graded(made, mode="schema", tools=TOOLS),
        graded(made, metadata={"tools": TOOLS}, mode="schema"),
        graded(made, metadata={"api": {"tools": TOOLS}}, mode="schema", tools="$metadata.api.tools"),
    ):
        assert grade.rationale == rationale
        assert grade.passed is rationale.endswith("valid")


def test_schema_without_tools_is_an_error() -> None:
    unknown = graded([call("now")], mode="schema")
    assert unknown.error is not None
    assert (unknown.outcome, unknown.error.type) == ("error", "missing")
    faulty = graded([call("now")], mode="schema", tools=[{"name": "now", "parameters": {"type": "no"}}])
    assert faulty.error is not None
    assert faulty.error.message.startswith("tools[0]: the schema of 'now': $.type:")


def test_schema_takes_the_tools_of_the_target(tmp_path: Path) -> None:
    def suite(tools: str) -> dict[str, Any]:
        return {
            "name": "tools",
            "dataset": [{"id": 1, "input": "q"}],
            "target": {"kind": "openai", "model": "m", "base_url": "http://127.0.0.1:9", "tools": [WEATHER]},
            "graders": {"valid": {"kind": "tool_calls", "mode": "schema", "tools": tools}},
        }

    from gradeline.suite.read import read_suite

    file = tmp_path / "suite.json"
    file.write_text(json.dumps(suite("$target.tools")))
    assert read_suite(file).graders[0].config["tools"] == [WEATHER]
    with pytest.raises(ConfigError, match=r"a grader can take \$target.tools and \$target.response_schema"):
        run_suite(suite("$target.api_key"), store="memory://")
    with pytest.raises(ConfigError, match="the target has no response_schema"):
        run_suite(suite("$target.response_schema"), store="memory://")


@pytest.mark.parametrize(
    ("made", "score"),
    [(["a", "b"], 1.0), (["a"], 2 / 3), (["a", "b", "c"], 0.8), (["c"], 0.0), ([], 0.0), (["b", "a", "a"], 1.0)],
)
def test_f1_compares_the_names(made: list[str], score: float) -> None:
    for truth in (["a", "b"], [call("a", x=[1]), call("b")]):
        grade = graded([call(name, y=2) for name in made], truth, mode="f1")
        assert grade.score == pytest.approx(score)
        assert grade.passed is (score == 1.0)
    assert graded([call("a")], ["a", "b"], mode="f1", threshold=0.6).passed
    assert graded([call("c")], ["a"], mode="f1").rationale == (
        "F1 of the tools' names 0.000, threshold 1; missing: 'a'; extra: 'c'"
    )


def test_partial_allows_more_arguments() -> None:
    truth = [call("buy", item=[{"id": 7, "tags": ["a"]}], count=[1, ""])]
    made = [call("buy", item={"id": 7.0, "tags": ["a"], "size": "m"}, color="red")]
    assert graded(made, truth, args="partial").passed
    assert not graded(made, truth).passed
    assert not graded([call("buy", item={"id": 8, "tags": ["a"]})], truth, args="partial").passed
    assert not graded([call("buy", item={"id": 7, "tags": ["a", "b"]})], truth, args="partial").passed
    assert not graded([call("buy", item={"id": 7, "tags": ["a"]}, count=2)], truth, args="partial").passed


def test_ignored_arguments_are_not_compared() -> None:
    truth = [call("get", id=[1], request_id=["expected"])]
    made = [call("get", id=1, request_id="x", trace_id="y")]
    assert not graded(made, truth).passed
    assert graded(made, truth, ignore=["request_id", "trace_*"]).passed
    assert graded(made, truth, {"noise": ["*_id"]}, ignore="$metadata.noise").passed
    assert not graded([call("get", id=2)], truth, ignore=["*_id"]).passed


def test_expected_names_may_have_wildcards() -> None:
    assert graded([call("orders_search", q=1)], [call("orders_*", q=[1])]).passed
    assert not graded([call("users_search", q=1)], [call("orders_*", q=[1])]).passed


def test_faults_of_these_options_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        create("tool_calls", {"preset": "bfcl", "args": "partial", "tools": "weather", "threshold": 2})
    assert [problem.path for problem in caught.value.problems] == ["config.threshold", "config.tools", "config.args"]


def test_globs_have_two_wildcards() -> None:
    assert matches_glob("llm.chat", "llm.c?at")
    assert matches_glob("a\nb", "a*b")
    assert matches_glob("test[0](1)", "test[0](?)")
    assert not matches_glob("LLM.chat", "llm.*")
    assert not matches_glob("llmxchat", "llm.cha*")


SEARCH = ToolCall("search_orders", '{"order": {"id": 123, "open": true}, "path": "a/b.md"}')
REPLY = ToolCall("reply", '{"text": "done"}')


def checked(config: dict[str, Any], *calls: ToolCall, metadata: dict[str, Any] | None = None) -> Grade:
    steps = Trajectory((tuple(Message("assistant", tool_calls=(one,)) for one in calls),))
    case = Sample(id=1, input="", metadata=metadata or {})
    return run_grader(create("trajectory", config), GradeContext(case, "", Response(text="", trajectory=steps)))


@pytest.mark.parametrize(
    ("config", "passed"),
    [
        ({"required_tools": ["search_*"]}, True),
        ({"required_tools": ["find_*"]}, False),
        ({"forbidden_tools": ["*_orders"]}, False),
        ({"order": ["search*", "r*"]}, True),
        ({"order": ["r*", "search*"]}, False),
        ({"order": ["search*", "search*", "reply"], "exact": True}, True),
        ({"order": ["search*", "reply"], "exact": True}, False),
        ({"counts": {"search*": {"min": 2, "max": 2}, "reply": {"min": 1}}}, True),
        ({"counts": {"search*": {"max": 1}}}, False),
        ({"counts": {"delete": {"max": 0}}}, True),
        ({"calls": [{"tool": "search*", "args": {"order": {"id": 123}}}]}, True),
        ({"calls": [{"tool": "search*", "args": {"order": {"id": 124}}}]}, False),
        ({"calls": [{"tool": "search*", "args": {"order": {"id": 123}}, "only": True}]}, False),
        ({"calls": [{"tool": "search*", "args": {"order": {"id": 123}}, "max": 1}]}, False),
        ({"calls": [{"tool": "*", "patterns": {"path": "a/*.md"}}]}, True),
        ({"calls": [{"tool": "*", "patterns": {"path": "b/*"}}]}, False),
        ({"calls": [{"tool": "reply", "args": {}, "min": 0, "max": 0}]}, False),
    ],
)
def test_a_trajectory_is_checked_with_wildcards_counts_and_arguments(config: dict[str, Any], passed: bool) -> None:
    assert checked(config, SEARCH, SEARCH, REPLY).passed is passed


def test_options_of_a_trajectory_come_from_the_case() -> None:
    metadata = {"tools": ["search_orders"], "steps": 3, "id": 123, "times": {"max": "2"}}
    config = {
        "required_tools": "$metadata.tools",
        "max_steps": "$metadata.steps",
        "counts": {"search_orders": {"max": "$metadata.times.max"}},
        "calls": [{"tool": "search_orders", "args": {"order": {"id": 123}, "path": "$metadata.path"}}],
    }
    assert checked(config, SEARCH, SEARCH, REPLY, metadata={**metadata, "path": "a/b.md"}).passed
    failed = checked(config, SEARCH, SEARCH, SEARCH, REPLY, metadata={**metadata, "path": "x"})
    assert failed.rationale == (
        "max_steps: 4 steps, at most 3; counts: 'search_orders' called 3 times, at most 2; "
        "calls: 'search_orders' called with the arguments 0 times, at least 1"
    )
    missing = checked(config, SEARCH, metadata=metadata)
    assert missing.error is not None
    assert (missing.error.type, missing.error.message.split(":")[0]) == ("missing", "calls[0].args.path")
    wrong = checked({"max_steps": "$metadata.tools"}, SEARCH, metadata=metadata)
    assert wrong.error is not None
    assert wrong.error.message == "max_steps: $metadata.tools is ['search_orders'], not a whole number of at least 0"


def test_faults_of_a_trajectory_are_named_with_their_paths() -> None:
    config = {
        "exact": True,
        "required_tools": "search",
        "counts": {"a": {"min": 2, "max": 1}},
        "calls": [{"tool": "a"}, {"tool": "b", "max": "many"}],
    }
    with pytest.raises(ConfigError) as caught:
        create("trajectory", config)
    assert [problem.path for problem in caught.value.problems] == [
        "config.required_tools",
        "config.exact",
        "config.counts.a.min",
        "config.calls[1].max",
    ]
