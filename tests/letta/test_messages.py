"""Conversion between letta's messages and our trajectories."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gradeline.errors import DataError
from gradeline.letta.messages import (
    AgentState,
    AssistantMessage,
    BaseTool,
    CreateBlockParam,
    EventMessage,
    LettaMessageUnion,
    ReasoningMessage,
    TextContent,
    ToolCallMessage,
    ToolReturnMessage,
    UserMessage,
    flatten_content,
    from_letta,
    letta_data,
    letta_state,
    memory_of,
    to_letta,
)
from gradeline.letta.messages import LettaToolCall as LettaCall
from gradeline.model import Message, ToolCall, Trajectory

text = st.text(max_size=8)
name = st.none() | text
calls = st.builds(ToolCall, name=text, arguments=text, id=st.none() | text)
messages = (
    st.builds(Message, role=st.sampled_from(["system", "user", "reasoning", "event"]), content=text, name=name)
    | st.builds(
        Message,
        role=st.just("assistant"),
        content=text,
        tool_calls=st.lists(calls, max_size=3).map(tuple),
        name=name,
    )
    | st.builds(
        Message,
        role=st.just("tool"),
        content=text,
        tool_call_id=st.none() | text,
        name=name,
        is_error=st.booleans(),
    )
)
trajectories = st.builds(
    Trajectory,
    turns=st.lists(st.lists(messages, max_size=4).map(tuple), max_size=3).map(tuple),
    memory=st.none() | st.dictionaries(text, text, max_size=2),
)


def state_of(trajectory: Trajectory) -> AgentState | None:
    return None if trajectory.memory is None else AgentState.of(trajectory.memory)


@given(trajectories)
def test_a_trajectory_round_trips(trajectory: Trajectory) -> None:
    assert from_letta(to_letta(trajectory), state_of(trajectory)) == trajectory


@given(trajectories)
def test_a_trajectory_round_trips_through_plain_data(trajectory: Trajectory) -> None:
    state = state_of(trajectory)
    dumped = [[message.model_dump(mode="json") for message in turn] for turn in to_letta(trajectory)]
    assert from_letta(dumped, state and state.model_dump()) == trajectory


@given(trajectories)
def test_a_trajectory_round_trips_through_files_of_letta(trajectory: Trajectory) -> None:
    def known_call(message: Message) -> Message:
        unknown = message.role == "tool" and message.tool_call_id is None
        return replace(message, tool_call_id="") if unknown else message

    stored = msgspec.json.decode(msgspec.json.encode(letta_data(trajectory)))
    state = None if trajectory.memory is None else letta_state(trajectory.memory)
    expected = tuple(tuple(map(known_call, turn)) for turn in trajectory.turns)
    assert from_letta(stored, state) == Trajectory(expected, trajectory.memory)


def test_files_contain_what_the_real_client_requires() -> None:
    calls = (ToolCall("search", "{}", "c1"), ToolCall("note", "{}"))
    turn = (Message("assistant", "", calls), Message("tool", "3"), Message("event", "compacted"))
    common = {"date": "1970-01-01T00:00:00+00:00"}
    search = {"name": "search", "arguments": "{}", "tool_call_id": "c1"}
    calling = {"id": "message-0", **common, "message_type": "tool_call_message"}
    assert letta_data(Trajectory((turn,))) == [
        [
            {**calling, "tool_call": search, "tool_calls": [search]},
            {**calling, "tool_call": {"name": "note", "arguments": "{}"}},
            {
                "id": "message-1",
                **common,
                "message_type": "tool_return_message",
                "tool_return": "3",
                "tool_call_id": "",
                "status": "success",
            },
            {
                "id": "message-2",
                **common,
                "message_type": "event_message",
                "event_type": "compaction",
                "event_data": {"content": "compacted"},
            },
        ]
    ]


def test_each_role_has_its_class() -> None:
    call = ToolCall("search", '{"q": 1}', "c1")
    turn = (
        Message("user", "Find it."),
        Message("reasoning", "I must search."),
        Message("assistant", "Searching.", (call, ToolCall("note", "{}", "c2"))),
        Message("tool", "broken", tool_call_id="c1", name="search", is_error=True),
        Message("event", "compacted"),
    )
    made = LettaCall(name="search", arguments='{"q": 1}', tool_call_id="c1")
    other = LettaCall(name="note", arguments="{}", tool_call_id="c2")
    assert to_letta(Trajectory((turn,))) == [
        [
            UserMessage(id="message-0", content="Find it."),
            ReasoningMessage(id="message-1", reasoning="I must search."),
            AssistantMessage(id="message-2", content="Searching."),
            ToolCallMessage(id="message-2", tool_call=made, tool_calls=[made]),
            ToolCallMessage(id="message-2", tool_call=other, tool_calls=[other]),
            ToolReturnMessage(id="message-3", tool_return="broken", tool_call_id="c1", status="error", name="search"),
            EventMessage(id="message-4", event_data={"content": "compacted"}),
        ]
    ]


def test_messages_of_other_classes_are_read() -> None:
    turn: list[Any] = [
        SimpleNamespace(message_type="user_message", id="a", content=[SimpleNamespace(text="Two"), {"text": "parts"}]),
        {"message_type": "reasoning_message", "reasoning": "hm"},
        {"message_type": "hidden_reasoning_message", "state": "omitted"},
        {"message_type": "tool_call_message", "tool_call": {"name": "f", "arguments": {"x": 1}, "tool_call_id": "c"}},
        {"message_type": "approval_request_message", "tool_calls": [{"name": "g"}]},
        {"message_type": "tool_return_message", "tool_return": "3", "tool_call_id": "c", "status": "success"},
        {"message_type": "summary_message", "summary": "so far"},
        {"message_type": "event_message", "event_type": "compaction", "event_data": {"tokens": 7}},
        {"message_type": "stop_reason"},
    ]
    assert from_letta([turn]).turns[0] == (
        Message("user", "Two parts"),
        Message("reasoning", "hm"),
        Message("reasoning", ""),
        Message("assistant", tool_calls=(ToolCall("f", '{"x": 1}', "c"),)),
        Message("assistant", tool_calls=(ToolCall("g", "{}"),)),
        Message("tool", "3", tool_call_id="c"),
        Message("event", "so far"),
        Message("event", '{"tokens": 7}'),
        Message("event", ""),
    )


def test_parallel_tool_calls_have_separate_returns() -> None:
    returns = [
        {"tool_return": "3", "tool_call_id": "c1", "status": "success"},
        {"tool_return": [{"type": "text", "text": "no"}], "tool_call_id": "c2", "status": "error"},
    ]
    reason = {"message_type": "tool_return_message", **returns[0]}
    first, second = Message("tool", "3", tool_call_id="c1"), Message("tool", "no", tool_call_id="c2", is_error=True)
    assert from_letta([[{**reason, "tool_returns": returns}]]) == Trajectory(((first, second),))
    assert from_letta([[{**reason, "tool_returns": returns[:1]}]]) == Trajectory(((first,),))


def test_the_type_comes_from_the_class_if_the_message_has_none() -> None:
    class AssistantMessage:
        message_type = None
        content = "hi"

    assert from_letta([[AssistantMessage()]]) == Trajectory.of_text("hi")


def test_an_invalid_message_is_refused_with_its_position() -> None:
    with pytest.raises(DataError, match=r"^\$\[1\]\[0\]: 'hi' is not a letta message"):
        from_letta([[], ["hi"]])


def test_messages_are_built_and_dumped_like_the_client_s() -> None:
    date = datetime(2026, 1, 1, tzinfo=UTC)
    assistant = AssistantMessage(id="m", date=date, content=[{"type": "text", "text": "hi"}], role="assistant")
    assert assistant.content == [TextContent(text="hi")]
    assert assistant.message_type == "assistant_message"
    assert assistant.model_dump(mode="json", exclude_none=True) == {
        "id": "m",
        "date": "2026-01-01T00:00:00+00:00",
        "message_type": "assistant_message",
        "content": [{"text": "hi", "type": "text"}],
        "role": "assistant",
    }
    assert assistant.model_dump()["date"] == date
    assert not hasattr(assistant, "tool_calls")
    assert isinstance(assistant, LettaMessageUnion)


def test_a_call_is_found_in_both_fields() -> None:
    assert ToolCallMessage(tool_calls=[{"name": "f"}]).tool_call == LettaCall(name="f")
    assert ToolCallMessage(tool_call={"name": "f"}).tool_call == LettaCall(name="f")


def test_memory_is_found_in_both_fields() -> None:
    state = AgentState.of({"human": "likes figs"})
    assert [(block.label, block.value) for block in state.memory.blocks] == [("human", "likes figs")]
    assert state.blocks == state.memory.blocks
    old = SimpleNamespace(memory=SimpleNamespace(blocks=[SimpleNamespace(label="human", value="likes figs")]))
    assert memory_of(old) == memory_of(state) == {"human": "likes figs"}
    assert memory_of(None) is None


def test_content_is_flattened_as_letta_does() -> None:
    assert flatten_content("as it is") == "as it is"
    assert flatten_content([TextContent(text="a"), {"text": "b"}, {"image": "c"}]) == "a b"
    with pytest.raises(ValueError, match="got 3"):
        flatten_content(3)


def test_tools_and_parameters_of_agent_factories_can_be_created() -> None:
    class Tool(BaseTool):
        name: str = "f"

        def run(self, x: int) -> int:
            return x + 1

    assert (Tool().name, Tool().run(1)) == ("f", 2)
    assert CreateBlockParam(label="human", value="") == {"label": "human", "value": ""}
    with pytest.raises(NotImplementedError, match="BaseTool must override run"):
        BaseTool().run()


class TestRealClient:
    @pytest.fixture
    def client(self, tmp_path: Path) -> Iterator[None]:
        """A package with the paths of the real one, and pydantic's construction without validation."""
        agents = tmp_path / "letta_client" / "types" / "agents"
        agents.mkdir(parents=True)
        (tmp_path / "letta_client" / "__init__.py").touch()
        model = (
            "class {0}:\n"
            "    def __init__(self): raise TypeError('checked')\n"
            "    @classmethod\n"
            "    def model_construct(cls, **fields):\n"
            "        made = cls.__new__(cls); made.__dict__.update(fields); return made\n"
        )
        (agents.parent / "__init__.py").write_text(model.format("ToolReturnMessage"))
        (agents / "__init__.py").write_text(
            "".join(map(model.format, ["AssistantMessage", "UserMessage", "ToolCallMessage", "ToolCall"]))
        )
        sys.path.insert(0, str(tmp_path))
        yield
        sys.path.remove(str(tmp_path))
        for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == "letta_client"]:
            del sys.modules[loaded]

    @pytest.mark.usefixtures("client")
    def test_classes_of_the_real_client_are_used_for_isinstance(self) -> None:
        from letta_client.types import ToolReturnMessage
        from letta_client.types.agents import AssistantMessage, ToolCall, ToolCallMessage

        from gradeline.model import ToolCall as Call

        trajectory = Trajectory(
            ((Message("assistant", "hi", (Call("f", "{}", "c"),)), Message("tool", "3", tool_call_id="c")),)
        )
        turns = to_letta(trajectory)
        assert [type(message) for message in turns[0]] == [AssistantMessage, ToolCallMessage, ToolReturnMessage]
        assert type(turns[0][1].tool_call) is ToolCall
        assert from_letta(turns) == trajectory
