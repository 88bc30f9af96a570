"""The trajectory extractor."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import MissingDataError
from gradeline.extractors import create, extract
from gradeline.model import Message, Response, ToolCall, Trajectory, from_json


def test_returns_turns_of_messages_and_the_memory_as_compact_json() -> None:
    steps = Trajectory(
        (
            (Message("user", "Weather?"),),
            (
                Message("assistant", "", (ToolCall("weather", '{"city": "Paris"}', "1"),)),
                Message("tool", "12 °C", tool_call_id="1", name="weather"),
                Message("assistant", "12 °C."),
            ),
        ),
        {"human": "in Paris"},
    )
    assert create("full_trajectory").extract(Response(trajectory=steps)) == (
        '{"turns":[[{"role":"user","content":"Weather?"}],['
        '{"role":"assistant","tool_calls":[{"name":"weather","arguments":"{\\"city\\": \\"Paris\\"}","id":"1"}]},'
        '{"role":"tool","content":"12 °C","tool_call_id":"1","name":"weather"},'
        '{"role":"assistant","content":"12 °C."}]],'
        '"memory":{"human":"in Paris"}}'
    )


def test_an_answer_without_tool_calls_is_one_turn_of_one_message() -> None:
    response = Response(text="Paris", trajectory=Trajectory.of_text("Paris"))
    expected = '{"turns":[[{"role":"assistant","content":"Paris"}]],"memory":null}'
    assert create("full_trajectory").extract(response) == expected


def test_an_unknown_trajectory_is_missing() -> None:
    with pytest.raises(MissingDataError, match="tool calls are unknown"):
        extract("full_trajectory", "Paris")


@pytest.mark.parametrize("steps", [Trajectory(), Trajectory(((), ())), Trajectory((), {"human": "in Paris"})])
def test_a_trajectory_without_messages_is_not_found(steps: Trajectory) -> None:
    assert create("full_trajectory").extract(Response(trajectory=steps)) == ""


def test_lone_surrogates_and_nul_are_returned_as_stored() -> None:
    response = Response(text="", trajectory=Trajectory.of_text("a\ud800\0"))
    found = json.loads(create("full_trajectory").extract(response))
    assert found["turns"] == [[{"role": "assistant", "content": "a\ufffd\0"}]]


def test_a_huge_trajectory_is_returned() -> None:
    steps = Trajectory(tuple((Message("assistant", "x" * 1_000),) for _ in range(10_000)))
    assert from_json(Trajectory, create("full_trajectory").extract(Response(trajectory=steps))) == steps


_messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool", "reasoning", "event"]),
    st.text(),
    st.lists(st.builds(ToolCall, st.text(), st.text(), st.none() | st.text()), max_size=2).map(tuple),
    st.none() | st.text(),
    st.none() | st.text(),
    st.booleans(),
)
_turns = st.lists(st.lists(_messages, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)


@given(st.builds(Trajectory, _turns, st.none() | st.dictionaries(st.text(), st.text(), max_size=3)))
def test_the_output_reads_back_as_the_same_trajectory(steps: Trajectory) -> None:
    assert from_json(Trajectory, create("full_trajectory").extract(Response(trajectory=steps))) == steps
