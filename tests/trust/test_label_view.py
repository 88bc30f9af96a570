"""What a rater sees of a result."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gradeline.engine.definition import RunDefinition, RunOptions
from gradeline.judges.prompts import shipped_rubric
from gradeline.model import Grade, Message, Outcome, Record, Response, Run, Sample, ToolCall, Trajectory
from gradeline.trust.label_view import ShownText, answer_text, rubric_text, shown_texts


def record(sample: Sample, response: Response) -> Record:
    grade = Grade("model_judge", "f", Outcome.FAIL, 0.0, False, "secret reason", {"secret": 1})
    return Record("r", sample.case_key, 0, sample, response, {"quality": "secret submission"}, {"quality": grade})


def test_a_question_and_its_answer() -> None:
    found = record(Sample("a", "Capital of Peru?", "Lima"), Response(text="Cuzco"))
    assert shown_texts(found) == [
        ShownText("input", "Capital of Peru?"),
        ShownText("expected", "Lima"),
        ShownText("answer", "Cuzco"),
    ]
    assert answer_text(found) == "Cuzco"


def test_a_case_without_an_expected_value_shows_none() -> None:
    found = record(Sample("a", "Hello?"), Response(text=""))
    assert shown_texts(found) == [ShownText("input", "Hello?"), ShownText("answer", "")]


def test_a_conversation_has_its_turns_tool_calls_and_errors() -> None:
    turns = (
        (
            Message("system", "hidden"),
            Message("reasoning", "hm"),
            Message("assistant", "One moment.", (ToolCall("find", '{"q": 1}', "1"),)),
            Message("tool", "not found", tool_call_id="1", name="find", is_error=True),
            Message("assistant", "I do not know."),
        ),
        (Message("user", "Thanks"), Message("assistant", "Bye.")),
    )
    response = Response(text="Bye.", trajectory=Trajectory(turns))
    found = record(Sample("a", ["Where?", "Thanks"], ["there", "bye"]), response)
    expected, conversation = shown_texts(found)
    assert expected == ShownText("expected", "there\n\nbye")
    assert conversation.text.split("\n\n") == [
        "user: Where?",
        "reasoning: hm",
        "assistant: One moment.",
        'call of find: {"q": 1}',
        "error of find: not found",
        "assistant: I do not know.",
        "user: Thanks",
        "assistant: Bye.",
    ]
    assert answer_text(found) == conversation.text


def test_nothing_of_a_grade_is_shown() -> None:
    found = record(Sample("a", "q", "y"), Response(text="x"))
    assert "secret" not in repr(shown_texts(found))


def run_of(suite: Path) -> Run:
    definition = msgspec.json.encode(RunDefinition(str(suite), RunOptions())).decode()
    return Run(id="r", name="r", suite="s", definition=definition)


def test_the_rubric_of_a_judge_is_that_of_the_suite(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    (tmp_path / "rubric.md").write_text("Is it right?")
    suite.write_text(
        "graders:\n"
        "  one: {kind: model_judge, prompt: Is it polite?}\n"
        "  two: {kind: model_judge, rubric: factuality}\n"
        "  three: {kind: model_judge, prompt_path: rubric.md}\n"
        "  four: {kind: contains}\n"
        "  five: {kind: model_judge, prompt_path: missing.md}\n"
    )
    run = run_of(suite)
    names = ("one", "two", "three", "four", "five", "six")
    assert [rubric_text(run, name) for name in names] == [
        *("Is it polite?", shipped_rubric("factuality").text, "Is it right?", None, None, None)
    ]


def test_a_suite_that_is_gone_or_broken_has_no_rubric(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    assert rubric_text(run_of(suite), "one") is None
    suite.write_text("graders: [")
    assert rubric_text(run_of(suite), "one") is None
    assert rubric_text(Run(id="r", name="r", suite="s"), "one") is None
