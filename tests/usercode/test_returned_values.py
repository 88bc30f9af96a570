"""What a target's function may return."""

from __future__ import annotations

from typing import Any

import pytest

from gradeline.errors import AgentError
from gradeline.model import ErrorInfo, Fault, Message, Response, Sample, ToolCall, Trajectory, Usage
from gradeline.usercode.function_calls import Conversation, TargetFunction

CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
LOOK = ToolCall("look", '{"at":1}', "1")


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def response_to(*returned: Any, inputs: Any = "hi", of: Any = None) -> Response:
    """The response to a case whose calls return these, one after the other; ``of`` has the parameters."""
    values = iter(returned)
    talk = Conversation(TargetFunction(of or (lambda text: None), "agent.py:f"), Sample(1, inputs))
    while not talk.done:
        talk.call()
        talk.take(next(values), 1.0)
    assert next(values, None) is None, "it was called too seldom"
    return talk.response()


def refused(*returned: Any, inputs: Any = "hi", of: Any = None) -> str:
    with pytest.raises(AgentError) as caught:
        response_to(*returned, inputs=inputs, of=of)
    assert caught.value.type == "bad_response"
    return str(caught.value)


def of_sample(sample: Sample) -> None: ...


def of_sample_and_text(sample: Sample, text: str) -> None: ...


def turns(response: Response) -> list[list[str]]:
    return [[message.content for message in turn] for turn in response.steps.turns]


class TestOneTurn:
    @pytest.mark.parametrize("key", ["text", "output", "content"])
    def test_a_dict_with_only_a_text_leaves_tool_calls_unknown(self, key: str) -> None:
        assert response_to({key: "a"}) == Response(text="a", latency_ms=1.0)

    def test_a_dict_with_tool_calls_makes_them_known(self) -> None:
        response = response_to({"text": "a", "tool_calls": []})
        assert response.trajectory == Trajectory.of_text("a")
        response = response_to({"text": "a", "tool_calls": [CALL]})
        assert response.trajectory == Trajectory(((Message("assistant", "a", (LOOK,)),),))
        assert response_to({"text": "a", "tool_calls": None}).trajectory is None

    def test_a_dict_reports_usage_latency_and_errors(self) -> None:
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "cost": 0.5, "total_tokens": 3}
        response = response_to({"text": "a", "usage": usage, "latency_ms": 5})
        assert (response.usage, response.latency_ms) == (Usage(1, 2, None, 0.5), 5.0)
        assert response_to({"text": "a", "stop_reason": "length"}).stop_reason == "length"
        with pytest.raises(AgentError, match=r"whose 'stop_reason' is 5; make it a str"):
            response_to({"text": "a", "stop_reason": 5})
        with pytest.raises(AgentError, match=r"agent\.py:f reported: no credit") as caught:
            response_to({"error": {"message": "no credit"}})
        assert caught.value.type == "agent_error"

    @pytest.mark.parametrize(
        "steps",
        [
            {"messages": [assistant("", tool_calls=[CALL]), assistant("a")]},
            {"trajectory": [[assistant("", tool_calls=[CALL]), assistant("a")]]},
            {"trajectory": {"turns": [[assistant("", tool_calls=[CALL]), assistant("a")]]}},
            {"text": "a", "messages": [assistant("", tool_calls=[CALL])]},
        ],
    )
    def test_a_dict_with_messages(self, steps: Any) -> None:
        expected = Trajectory(((Message("assistant", "", (LOOK,)), Message("assistant", "a")),))
        assert response_to(steps) == Response(text="a", trajectory=expected, latency_ms=1.0)

    @pytest.mark.parametrize(
        "steps",
        [
            {"turns": [[assistant("a")]], "memory": {"human": "Ada"}, "tools_known": False},
            Trajectory(((Message("assistant", "a"),),), {"human": "Ada"}, tools_known=False),
        ],
    )
    def test_a_dict_with_a_whole_trajectory_keeps_its_memory_and_tools_known(self, steps: Any) -> None:
        expected = Trajectory(((Message("assistant", "a"),),), {"human": "Ada"}, tools_known=False)
        assert response_to({"text": "a", "trajectory": steps}).trajectory == expected

    @pytest.mark.parametrize("memory", [["Ada"], {"human": 1}, {1: "Ada"}])
    def test_a_memory_that_is_not_made_of_strings_is_refused(self, memory: Any) -> None:
        assert "returned a memory that is not" in refused(
            {"trajectory": {"turns": [[assistant("a")]], "memory": memory}}
        )

    def test_several_answers_to_a_single_turn_are_refused_without_mention_of_later_turns(self) -> None:
        message = refused(["a", "b"], of=of_sample)
        assert message == "agent.py:f returned 2 answers for 1 user turn; return this turn's response"

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            ({"text": "a", "tool_call": []}, "unknown key 'tool_call'; did you mean 'tool_calls'?"),
            ({"reply": "a"}, "unknown key 'reply'; use one of text, output, content"),
            ({"text": "a", "output": "b"}, "both 'text' and 'output'; keep one"),
            ({"usage": {}}, "a dict without a response"),
            ({"text": 3}, "whose 'text' is 3; make it a str"),
            ({"text": "a", "messages": "b"}, "whose 'messages' is 'b'"),
            ({"text": "a", "tool_calls": "look"}, "tool calls that are not a list: 'look'"),
            ({"text": "a", "tool_calls": [{"arguments": {}}]}, "a tool call without a name"),
            ({"text": "a", "usage": {"cost": "much"}}, "a usage with a value that is not a number"),
            ({"text": "a", "latency_ms": -1}, "a latency_ms that is not a number of milliseconds: -1"),
            ([assistant("a"), 3], "returned a list with 3 (int)"),
            ([{"role": "asistant", "content": "a"}], "unknown role 'asistant'; did you mean 'assistant'?"),
            ([assistant("a", tool_call=[CALL])], "unknown key 'tool_call'; did you mean 'tool_calls'?"),
            (["a", "b"], "returned 2 answers for 1 user turn"),
            (Response(text=3), "a Response that cannot be stored"),  # type: ignore[arg-type]
            (b"a", "returned b'a' (bytes); return the response's text (str)"),
        ],
    )
    def test_an_unreadable_value_is_refused_with_the_remedy(self, value: Any, reason: str) -> None:
        message = refused(value)
        assert message.startswith("agent.py:f returned ")
        assert reason in message

    def test_messages_in_every_form(self) -> None:
        class Dumped:
            def model_dump(self, *, exclude_none: bool = False) -> dict[str, Any]:
                return {"role": "assistant", "content": "a", "refusal": None, "annotations": []}

        for value in (
            assistant("a"),
            [assistant("a")],
            Message("assistant", "a"),
            [Message("assistant", "a")],
            Dumped(),
        ):
            assert response_to(value) == Response(text="a", trajectory=Trajectory.of_text("a"), latency_ms=1.0)
        parts = assistant("", content=[{"type": "text", "text": "a"}, {"type": "tool_use", "name": "look", "input": {"at": 1}, "id": "1"}])  # fmt: skip
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "seen"}]}
        assert response_to([parts, result, assistant("b")]).steps.turns == (
            (
                Message("assistant", "a", (LOOK,)),
                Message("tool", "seen", tool_call_id="1"),
                Message("assistant", "b"),
            ),
        )

    @pytest.mark.parametrize(
        "steps",
        [
            [assistant("", tool_calls=[{"name": "look"}])],
            [{"role": "assistant", "content": [{"type": "server_tool_use", "name": "look", "input": {}}]}],
            [{"role": "assistant", "content": [{"type": "tool-call", "toolName": "look", "input": {}}]}],
            [{"type": "function_call", "name": "look", "arguments": "{}", "call_id": "1"}],
            [{"type": "custom_tool_call", "name": "look", "input": "{}"}],
            [{"type": "look_call", "id": "1", "status": "completed"}],
        ],
    )
    def test_a_tool_call_is_found_whatever_its_type_name(self, steps: list[Any]) -> None:
        response = response_to([*steps, assistant("a")])
        assert [call.name for call in response.tool_use().tool_calls()] == ["look"]

    @pytest.mark.parametrize(
        "result",
        [
            {"role": "tool", "content": "3", "tool_call_id": "1"},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "3"}]},
            {"role": "user", "content": [{"type": "web_search_tool_result", "tool_use_id": "1", "content": "3"}]},
            {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "1", "output": "3"}]},
            {"type": "function_call_output", "call_id": "1", "output": "3"},
        ],
    )
    def test_a_tool_result_is_found_whatever_its_type_name(self, result: dict[str, Any]) -> None:
        response = response_to([assistant("", tool_calls=[CALL]), result, assistant("a")])
        assert list(response.steps.messages("tool")) == [Message("tool", "3", (), "1")]

    def test_a_message_whose_parts_are_not_read_is_refused(self) -> None:
        message = refused([{"role": "assistant", "parts": [{"functionCall": {"name": "look"}}]}, assistant("a")])
        assert "returned a message with parts and no content" in message

    @pytest.mark.parametrize("cost", [float("nan"), float("inf"), -0.1])
    def test_a_negative_or_infinite_usage_is_refused(self, cost: float) -> None:
        assert "usage.cost" in refused({"text": "a", "usage": {"cost": cost}})
        assert "usage.cost" in refused(Response(text="a", usage=Usage(cost=cost)))

    def test_a_string_among_messages_leaves_tool_calls_unknown(self) -> None:
        response = response_to([assistant("", tool_calls=[CALL]), "a"])
        assert (response.text, response.steps.tools_known) == ("a", False)
        assert list(response.steps.tool_calls()) == [LOOK]

    def test_text_that_cannot_be_stored_is_replaced(self) -> None:
        assert response_to("a\0") == Response(text="a\u2400", latency_ms=1.0, cleaned=True)
        message = Message("assistant", "a\0")
        response = response_to(Response(text="a\0", trajectory=Trajectory(((message,),))))
        assert response.cleaned
        assert turns(response) == [["a\u2400"]]


class TestConversations:
    def test_none_and_empty_strings_are_turns(self) -> None:
        response = response_to(None, "", "c", inputs=["x", "y", "z"])
        assert (response.text, turns(response)) == ("c", [[], [], ["c"]])

    def test_tool_calls_are_known_if_every_turn_reports_them(self) -> None:
        stated = {"text": "a", "tool_calls": [CALL]}
        assert response_to(stated, stated, inputs=["x", "y"]).steps.tools_known
        mixed = response_to(stated, "b", inputs=["x", "y"]).steps
        assert not mixed.tools_known
        assert list(mixed.tool_calls()) == [LOOK]

    def test_the_text_of_a_response_is_the_answer_of_its_turn(self) -> None:
        calls = Trajectory(((Message("assistant", "", (LOOK,)),),))
        response = response_to(
            Response(text="a", trajectory=calls), Response(text="b", trajectory=Trajectory()), inputs=["x", "y"]
        )
        assert turns(response) == [["", "a"], ["b"]]
        assert response.steps.tools_known

    @pytest.mark.parametrize(
        "whole",
        [
            ["a", "b"],
            [[assistant("a")], [assistant("b")]],
            [{"role": "user", "content": "x"}, assistant("a"), {"role": "user", "content": "y"}, assistant("b")],
            Response(text="b", trajectory=Trajectory(((Message("assistant", "a"),), (Message("assistant", "b"),)))),
            {"trajectory": [[assistant("a")], [assistant("b")]]},
        ],
    )
    @pytest.mark.parametrize("of", [None, of_sample, of_sample_and_text])
    def test_a_first_call_that_returns_all_turns_is_the_only_call(self, whole: Any, of: Any) -> None:
        assert turns(response_to(whole, inputs=["x", "y"], of=of)) == [["a"], ["b"]]

    def test_a_flat_list_is_all_turns_if_the_function_is_called_once(self) -> None:
        whole = [assistant("", tool_calls=[CALL]), {"role": "tool", "content": "seen"}, assistant("a"), assistant("b")]
        assert turns(response_to(whole, inputs=["x", "y"], of=of_sample)) == [["", "seen", "a"], ["b"]]

    def test_an_ambiguous_flat_list_is_refused(self) -> None:
        answers = [assistant("wait"), assistant("a")]
        message = refused(answers, inputs=["x", "y"], of=of_sample_and_text)
        assert "returned 2 responses in one list at turn 1 of 2, which may be this turn or all turns" in message
        one = response_to([answers], [[assistant("b")]], inputs=["x", "y"], of=of_sample_and_text)
        assert turns(one) == [["wait", "a"], ["b"]]
        assert turns(response_to(answers, "b", "c", inputs=["x", "y", "z"], of=of_sample_and_text))[0] == ["wait", "a"]

    def test_a_flat_list_is_one_turn_if_the_function_cannot_see_the_later_ones(self) -> None:
        assert turns(response_to([assistant("wait"), assistant("a")], "b", inputs=["x", "y"])) == [["wait", "a"], ["b"]]

    @pytest.mark.parametrize("count", [1, 2, 4])
    def test_a_function_of_the_sample_must_return_every_turn(self, count: int) -> None:
        one_per_turn = f"returned {count} answer{'s' if count > 1 else ''} for 3 user turns"
        assert one_per_turn in refused(["a"] * count, inputs=["x", "y", "z"], of=of_sample)
        whole = Trajectory(((Message("assistant", "a"),),) * count)
        assert f"returned {count} turn" in refused(
            Response(text="a", trajectory=whole), inputs=["x", "y", "z"], of=of_sample
        )

    @pytest.mark.parametrize("value", ["a", None, "", {"text": "a"}, Response(text="a")])
    def test_one_string_is_not_a_conversation(self, value: Any) -> None:
        message = refused(value, inputs=["x", "y"], of=of_sample)
        assert "returned 1 answer for 2 user turns" in message
        assert message.endswith("add a parameter named messages or input")

    def test_turns_that_were_not_requested_are_refused(self) -> None:
        three = Trajectory(((Message("assistant", "a"),),) * 3)
        assert refused(Response(text="a", trajectory=three), inputs=["x", "y"]) == (
            "agent.py:f returned 3 turns at turn 1 of 2; return this turn's response, or all 2 turns at the first call"
        )
        assert "returned 2 answers at turn 2 of 2" in refused("a", ["b", "c"], inputs=["x", "y"])

    def test_an_earlier_turn_that_changed_is_refused(self) -> None:
        two = Trajectory(((Message("assistant", "other"),), (Message("assistant", "b"),)))
        message = refused("a", Response(text="b", trajectory=two), "c", inputs=["x", "y", "z"])
        assert "whose earlier turns differ from those it returned before" in message

    def test_messages_after_a_rewritten_question_are_the_turn(self) -> None:
        first = [{"role": "user", "content": "Context: …\nx"}, assistant("a")]
        second = [*first, {"role": "user", "content": "Context: …\ny"}, assistant("b")]
        assert turns(response_to(first, second, inputs=["x", "y"])) == [["a"], ["b"]]

    def test_a_history_without_the_current_input_is_refused(self) -> None:
        strange = [{"role": "user", "content": "1"}, {"role": "user", "content": "2"}, assistant("a")]
        assert "none of which is this turn's 'x'" in refused(strange, inputs=["x", "y"])

    def test_a_response_with_an_error_fails_the_case(self) -> None:
        failed = Response(status="error", error=ErrorInfo("quota", "no money", Fault.AGENT))
        with pytest.raises(AgentError, match="no money") as caught:
            response_to("a", failed, inputs=["x", "y"])
        assert caught.value.type == "quota"
