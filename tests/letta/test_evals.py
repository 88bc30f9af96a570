"""Letta's extractors, their helpers and its records, as suite code calls them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gradeline import GradeResult, Sample
from gradeline.errors import ConfigError, MissingDataError
from gradeline.letta.evals import (
    RewardContext,
    RewardOutput,
    SuiteSpec,
    after_marker,
    all_assistant,
    first_assistant,
    get_assistant_messages,
    get_last_turn_messages,
    get_messages_by_type,
    get_tool_calls,
    last_assistant,
    last_turn,
    memory_block,
    pattern,
    suite_spec,
    tool_arguments,
    tool_output,
)
from gradeline.letta.messages import (
    AgentState,
    AssistantMessage,
    LettaToolCall,
    ToolCallMessage,
    ToolReturnMessage,
    UserMessage,
)


def assistant(text: Any) -> AssistantMessage:
    return AssistantMessage(id="m", content=text)


def called(name: str, arguments: str, call_id: str | None) -> ToolCallMessage:
    return ToolCallMessage(id="t", tool_call=LettaToolCall(name=name, arguments=arguments, tool_call_id=call_id))


def returned(text: str, call_id: str | None, name: str | None = None) -> ToolReturnMessage:
    return ToolReturnMessage(id="r", tool_return=text, tool_call_id=call_id, name=name)


TURNS = [
    [
        UserMessage(content="What is 6 times 7?"),
        assistant("Let me see: ANSWER: 41, no."),
        called("add", '{"a": 1}', "c1"),
        called("multiply", '{"a": 6, "b": 7}', "c2"),
        returned("2", "c1"),
        returned("42", "c2"),
        called("multiply", "{}", "c3"),
        returned("0", "c3"),
    ],
    [
        UserMessage(content="So?"),
        assistant([{"text": "6 x 7:"}, {"text": "ANSWER: 42"}]),
        assistant("name: Alice, age: 30"),
    ],
]
STATE = AgentState.of({"human": "likes figs"})


@pytest.mark.parametrize(
    ("extractor", "config", "expected"),
    [
        (last_assistant, {}, "name: Alice, age: 30"),
        (first_assistant, {}, "Let me see: ANSWER: 41, no."),
        (all_assistant, {}, "Let me see: ANSWER: 41, no.\n6 x 7: ANSWER: 42\nname: Alice, age: 30"),
        (last_turn, {"separator": " | "}, "6 x 7: ANSWER: 42 | name: Alice, age: 30"),
        (pattern, {"pattern": r"\d+"}, "30"),
        (pattern, {"pattern": r"name: (\w+)", "group": 1}, "Alice"),
        (pattern, {"pattern": r"ANSWER: (\d+)", "group": 1}, "42"),
        (pattern, {"pattern": r"(\w+): (\w+)", "search_all": True, "group": 1}, "Alice 30"),
        (pattern, {"pattern": r"(?<=age: )\d+"}, "30"),
        (pattern, {"pattern": r"(?<=: )\w+", "search_all": True}, "Alice 30"),
        (pattern, {"pattern": r"(?<=zebra)\d+"}, ""),
        (after_marker, {"marker": "ANSWER:"}, "42"),
        (after_marker, {"marker": "ANSWER:", "include_marker": True}, "ANSWER: 42"),
        (tool_arguments, {"tool_name": "multiply"}, '{"a": 6, "b": 7}'),
        (tool_arguments, {"tool_name": "divide"}, "{}"),
        (tool_output, {"tool_name": "multiply"}, "42"),
        (tool_output, {"tool_name": "divide"}, ""),
    ],
)
def test_built_in_extractors_agree_with_those_of_letta(extractor: Any, config: dict[str, Any], expected: str) -> None:
    assert extractor(TURNS, config) == expected
    assert extractor(TURNS, {**config, "my_own_option": 3}) == expected


@pytest.mark.parametrize("extractor", [last_assistant, first_assistant, all_assistant, last_turn])
@pytest.mark.parametrize("turns", [[], [[]], [[UserMessage(content="hi")]]])
def test_without_messages_the_text_is_empty(extractor: Any, turns: list[list[Any]]) -> None:
    assert extractor(turns, {}) == ""


def test_a_memory_block_comes_from_the_agent_s_state() -> None:
    assert memory_block(TURNS, {"block_label": "human"}, STATE) == "likes figs"
    assert memory_block(TURNS, {"block_label": "persona"}, agent_state=STATE) == ""
    with pytest.raises(MissingDataError, match="does not report the agent's memory"):
        memory_block(TURNS, {"block_label": "human"})


def test_a_missing_option_is_named() -> None:
    with pytest.raises(ConfigError, match="tool_name"):
        tool_output(TURNS, {})


def test_messages_are_picked() -> None:
    assert get_assistant_messages(TURNS) == [TURNS[0][1], TURNS[1][1], TURNS[1][2]]
    assert get_messages_by_type(TURNS, UserMessage) == [TURNS[0][0], TURNS[1][0]]
    assert get_last_turn_messages(TURNS) == get_last_turn_messages(TURNS, AssistantMessage) == TURNS[1][1:]
    assert get_last_turn_messages([]) == get_last_turn_messages([[]]) == []


def test_messages_of_other_classes_are_picked_too() -> None:
    turn = [{"message_type": "assistant_message", "content": "a"}, SimpleNamespace(message_type="user_message")]
    assert get_assistant_messages([turn]) == turn[:1]


def test_calls_are_paired_with_their_returns() -> None:
    first, second = TURNS[0][2:4]
    assert get_tool_calls(TURNS) == [(first, TURNS[0][4]), (second, TURNS[0][5]), (TURNS[0][6], TURNS[0][7])]


def test_a_call_without_an_id_is_paired_with_the_next_return() -> None:
    turn = [called("f", "{}", None), returned("1", None), called("f", "{}", None)]
    assert get_tool_calls([turn]) == [(turn[0], turn[1])]


def test_the_setup_gets_the_suite() -> None:
    suite = suite_spec(
        {"name": "s", "target": {"kind": "letta_agent"}, "graders": {"q": {"kind": "tool"}}, "tags": [], "num_runs": 3}
    )
    assert (suite.name, suite.target.kind, suite.graders["q"].kind, suite.num_runs) == ("s", "letta_agent", "tool", 3)
    assert (suite.description, suite.dataset, suite.setup_script, suite.sample_tags) == (None, None, None, None)
    assert suite.target == {"kind": "letta_agent"}
    with pytest.raises(AttributeError, match="no 'base_url' here; it has kind"):
        _ = suite.target.base_url
    with pytest.raises(AttributeError):
        suite.name = "other"
    assert SuiteSpec(name="s").num_runs == 1


def test_a_reward_is_composed() -> None:
    context = RewardContext(sample=Sample(0, "hi"), grades={"quality": GradeResult(0.5)})
    assert RewardOutput(score=context.grades["quality"].score) == RewardOutput(0.5, None)
    assert RewardOutput(score=True).score == 1.0
    with pytest.raises(ValueError, match=r"from 0\.0 to 1\.0, got 2"):
        RewardOutput(score=2, metadata={})
