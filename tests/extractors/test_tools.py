"""Extractors for the arguments, output and list of tool calls."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import ConfigError, MissingDataError, Problem
from gradeline.extractors import create, extract
from gradeline.model import Message, Response, ToolCall, Trajectory


def did(*messages: Message) -> Response:
    return Response(trajectory=Trajectory((messages[:1], messages[1:])))


RUN = did(
    Message("user", "Weather in Paris and Rome?"),
    Message("assistant", "", (ToolCall("locate", '{"of": 1}', "c0"), ToolCall("weather", '{"city": "Paris"}', "c1"))),
    Message("assistant", "One more.", (ToolCall("weather", '{"city": "Rome"}', "c2"),)),
    Message("tool", "here", tool_call_id="c0"),
    Message("tool", "18 °C", tool_call_id="c2"),
    Message("tool", "12 °C", tool_call_id="c1"),
    Message("assistant", "12 and 18."),
)


class TestToolArguments:
    def test_takes_the_arguments_of_the_first_call_of_the_tool(self) -> None:
        assert create("tool_arguments", {"tool_name": "weather"}).extract(RUN) == '{"city": "Paris"}'

    def test_takes_broken_arguments_as_they_were_sent(self) -> None:
        response = did(Message("assistant", "", (ToolCall("weather", '{"city": '),)))
        assert create("tool_arguments", {"tool_name": "weather"}).extract(response) == '{"city": '

    def test_returns_an_empty_object_if_the_tool_was_never_called(self) -> None:
        assert create("tool_arguments", {"tool_name": "search"}).extract(RUN) == "{}"

    def test_the_name_must_match_exactly(self) -> None:
        assert create("tool_arguments", {"tool_name": "Weather"}).extract(RUN) == "{}"


class TestToolOutput:
    def test_takes_the_return_of_the_first_call_by_its_id(self) -> None:
        assert create("tool_output", {"tool_name": "weather"}).extract(RUN) == "12 °C"

    def test_takes_the_return_of_a_call_that_failed(self) -> None:
        response = did(
            Message("assistant", "", (ToolCall("weather", "{}", "1"),)),
            Message("tool", "no such city", tool_call_id="1", is_error=True),
        )
        assert create("tool_output", {"tool_name": "weather"}).extract(response) == "no such city"

    def test_a_later_call_does_not_replace_the_first(self) -> None:
        response = did(
            Message("assistant", "", (ToolCall("weather", "{}", "1"), ToolCall("weather", "{}", "2"))),
            Message("tool", "18 °C", tool_call_id="2"),
        )
        assert create("tool_output", {"tool_name": "weather"}).extract(response) == ""

    def test_a_reused_id_means_the_return_after_the_call(self) -> None:
        response = did(
            Message("assistant", "", (ToolCall("locate", "{}", "call_0"),)),
            Message("tool", "here", tool_call_id="call_0"),
            Message("assistant", "", (ToolCall("weather", "{}", "call_0"),)),
            Message("tool", "12 °C", tool_call_id="call_0"),
        )
        assert create("tool_output", {"tool_name": "weather"}).extract(response) == "12 °C"

    def test_without_ids_the_name_of_the_tool_decides(self) -> None:
        response = did(
            Message("assistant", "", (ToolCall("locate"), ToolCall("weather"))),
            Message("tool", "nobody's"),
            Message("tool", "here", name="locate"),
            Message("tool", "12 °C", name="weather"),
        )
        assert create("tool_output", {"tool_name": "weather"}).extract(response) == "12 °C"

    @pytest.mark.parametrize("role", ["assistant", "user"])
    def test_only_tool_messages_are_returns(self, role: str) -> None:
        response = did(
            Message("assistant", "", (ToolCall("weather", "{}", "1"),)),
            Message("assistant" if role == "assistant" else "user", "12 °C", tool_call_id="1"),
            Message("tool", "here", tool_call_id="2"),
        )
        assert create("tool_output", {"tool_name": "weather"}).extract(response) == ""

    def test_calls_without_any_results_leave_the_return_unknown(self) -> None:
        response = did(Message("assistant", "", (ToolCall("weather", "{}", "1"),)), Message("assistant", "12 °C"))
        with pytest.raises(MissingDataError, match="reports tool calls without their results"):
            create("tool_output", {"tool_name": "weather"}).extract(response)
        assert create("tool_output", {"tool_name": "search"}).extract(response) == "", "it was not called"

    def test_without_a_call_or_a_return_nothing_is_found(self) -> None:
        assert create("tool_output", {"tool_name": "search"}).extract(RUN) == ""


@pytest.mark.parametrize("kind", ["tool_arguments", "tool_output", "tool_calls"])
@pytest.mark.parametrize("trajectory", [None, Trajectory(((Message("assistant", "No tools."),),), tools_known=False)])
def test_a_response_that_does_not_report_tool_calls_is_missing_them(kind: str, trajectory: Trajectory | None) -> None:
    response = Response(text="No tools.", trajectory=trajectory)
    config = {} if kind == "tool_calls" else {"tool_name": "search"}
    with pytest.raises(MissingDataError, match="tool calls are unknown"):
        extract(kind, response, config)


@pytest.mark.parametrize("kind", ["tool_arguments", "tool_output"])
def test_the_name_of_the_tool_is_required(kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create(kind)
    assert caught.value.problems == (Problem("config.tool_name", "is required"),)


class TestToolCalls:
    def test_lists_all_calls_in_order(self) -> None:
        assert create("tool_calls").extract(RUN) == (
            '[{"name":"locate","arguments":{"of":1}},'
            '{"name":"weather","arguments":{"city":"Paris"}},'
            '{"name":"weather","arguments":{"city":"Rome"}}]'
        )

    @pytest.mark.parametrize("arguments", ["", "{", "[1]", '"x"', "null", "{}{}", '{"a": NaN}'])
    def test_arguments_that_are_not_an_object_are_unchanged(self, arguments: str) -> None:
        response = did(Message("assistant", "", (ToolCall("f", arguments),)))
        assert json.loads(create("tool_calls").extract(response)) == [{"name": "f", "arguments": arguments}]

    def test_an_agent_that_called_nothing_can_be_graded_on_it(self) -> None:
        assert create("tool_calls").extract(Response(trajectory=Trajectory())) == "[]"

    def test_lone_surrogates_are_returned_as_stored(self) -> None:
        response = did(Message("assistant", "", (ToolCall("f\ud800", '{"a": "\ud800"}'),)))
        assert json.loads(create("tool_calls").extract(response)) == [
            {"name": "f\ufffd", "arguments": '{"a": "\ufffd"}'}
        ]

    @pytest.mark.parametrize("depth", [*range(850, 1_001, 10), 100_000])
    def test_very_deep_arguments_are_included_in_some_form(self, depth: int) -> None:
        arguments = '{"a":' * depth + "1" + "}" * depth
        found = create("tool_calls").extract(did(Message("assistant", "", (ToolCall("f", arguments),))))
        assert found in (
            f'[{{"name":"f","arguments":{arguments}}}]',
            f'[{{"name":"f","arguments":{json.dumps(arguments)}}}]',
        )

    def test_thousands_of_calls_are_listed(self) -> None:
        calls = tuple(ToolCall("f", json.dumps({"n": n, "text": "x" * 100})) for n in range(50_000))
        found = json.loads(create("tool_calls").extract(did(Message("assistant", "", calls))))
        assert [call["arguments"]["n"] for call in found] == list(range(50_000))

    @given(
        st.lists(
            st.tuples(st.text(), st.text() | st.dictionaries(st.text(), st.integers() | st.text()).map(json.dumps))
        )
    )
    def test_any_calls_are_returned_as_json(self, calls: list[tuple[str, str]]) -> None:
        made = tuple(ToolCall(name, arguments) for name, arguments in calls)
        found = json.loads(create("tool_calls").extract(did(Message("assistant", "", made))))
        assert [call["name"] for call in found] == [name for name, _ in calls]
