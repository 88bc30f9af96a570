"""The assistant's messages: the last, the first, all of them, or those of the last turn."""

from __future__ import annotations

import pytest

from gradeline.extractors import create, extract
from gradeline.model import Message, Response, ToolCall, Trajectory
from gradeline.model.trajectory import Turn

CONVERSATION = Response(
    text="Rome.",
    trajectory=Trajectory(
        (
            (
                Message("system", "Be brief."),
                Message("user", "Capital of France?"),
                Message("reasoning", "Easy."),
                Message("assistant", "Let me look."),
                Message("assistant", "", (ToolCall("search", '{"q": "France"}', "1"),)),
                Message("tool", "Paris", tool_call_id="1"),
                Message("assistant", "Paris."),
            ),
            (Message("user", "And Italy?"), Message("assistant", "Hm."), Message("assistant", "Rome.")),
        )
    ),
)
SILENT_LAST_TURN = Response(
    trajectory=Trajectory(((Message("assistant", "Hello."),), (Message("user", "?"), Message("reasoning", "…"))))
)


def test_last_assistant_takes_the_last_message_over_all_turns() -> None:
    assert create("last_assistant").extract(CONVERSATION) == "Rome."
    assert create("last_assistant").extract(SILENT_LAST_TURN) == "Hello."


def test_first_assistant_takes_the_first_message_over_all_turns() -> None:
    assert create("first_assistant").extract(CONVERSATION) == "Let me look."


def test_all_assistant_joins_every_message_by_a_newline() -> None:
    assert create("all_assistant").extract(CONVERSATION) == "Let me look.\nParis.\nHm.\nRome."


def test_all_assistant_joins_by_another_separator() -> None:
    assert create("all_assistant", {"separator": " | "}).extract(CONVERSATION) == "Let me look. | Paris. | Hm. | Rome."


def test_last_turn_joins_the_messages_of_the_last_turn_by_a_newline() -> None:
    assert create("last_turn").extract(CONVERSATION) == "Hm.\nRome."


def test_last_turn_joins_by_another_separator() -> None:
    assert create("last_turn", {"separator": ""}).extract(CONVERSATION) == "Hm.Rome."


def test_last_turn_does_not_look_into_earlier_turns() -> None:
    assert create("last_turn").extract(SILENT_LAST_TURN) == ""


def test_a_message_with_only_tool_calls_is_not_an_assistant_message() -> None:
    called = Message("assistant", "", (ToolCall("search"),))
    response = Response(trajectory=Trajectory(((called, Message("assistant", "Paris."), called),)))
    assert [create(kind).extract(response) for kind in KINDS] == ["Paris."] * 4


def test_a_message_with_text_and_tool_calls_is_an_assistant_message() -> None:
    response = Response(trajectory=Trajectory(((Message("assistant", "Searching.", (ToolCall("search"),)),),)))
    assert [create(kind).extract(response) for kind in KINDS] == ["Searching."] * 4


def test_whitespace_is_unchanged() -> None:
    assert [extract(kind, " Paris \n") for kind in KINDS] == [" Paris \n"] * 4


@pytest.mark.parametrize(
    "response",
    [
        Response(text=""),
        Response(trajectory=Trajectory()),
        Response(trajectory=Trajectory(((), ()))),
        Response(text="", trajectory=Trajectory(((Message("user", "Hi"),),))),
    ],
    ids=["empty text", "no turns", "empty turns", "no assistant message"],
)
def test_without_an_assistant_message_nothing_is_found(response: Response) -> None:
    assert [create(kind).extract(response) for kind in KINDS] == [""] * 4


def test_thousands_of_messages_are_read() -> None:
    response = Response(trajectory=Trajectory(tuple((Message("assistant", str(n)),) for n in range(20_000))))
    assert [len(create(kind).extract(response)) for kind in KINDS] == [5, 1, 108_889, 5]


KINDS = ("last_assistant", "first_assistant", "all_assistant", "last_turn")


SEARCHED = (Message("assistant", "Let me look.", (ToolCall("search"),)), Message("tool", "Paris"))


@pytest.mark.parametrize("turns", [(), ((),), (SEARCHED,), ((Message("assistant", "Hello."),), SEARCHED)])
@pytest.mark.parametrize("kind", ["last_assistant", "last_turn", "all_assistant"])
def test_an_answer_missing_from_the_messages_is_the_last_one(kind: str, turns: tuple[Turn, ...]) -> None:
    response = Response(text="Paris.", trajectory=Trajectory(turns))
    assert create(kind).extract(response).splitlines()[-1] == "Paris."
    assert response.steps.turns[:-1] == turns[:-1]
    assert response.tool_use() == response.steps
    assert extract("full_trajectory", response).count("Paris.") == 1


def test_an_answer_that_differs_in_whitespace_is_the_message() -> None:
    response = Response(text="Paris.", trajectory=Trajectory(((Message("assistant", "Paris.\n"),),)))
    assert response.steps == response.trajectory
