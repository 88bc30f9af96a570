"""What a rater sees of a result: input, expected value and answer, and nothing of what any grader decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gradeline.engine.definition import RunDefinition
from gradeline.errors import GradelineError
from gradeline.judges.prompts import shipped_rubric
from gradeline.model import Record, Run
from gradeline.model.sample import join_turns
from gradeline.model.trajectory import Message
from gradeline.suite.document import read_document


class ShownText(NamedTuple):
    """A titled text of a result, untrusted."""

    title: str
    text: str


def shown_texts(record: Record) -> list[ShownText]:
    """The texts of a result in the order of reading. A conversation shows its turns, with tool calls and results."""
    sample = record.sample
    if _is_plain(record):
        texts = [ShownText("input", join_turns(sample.input))]
    else:
        texts = []
    if sample.ground_truth is not None:
        texts.append(ShownText("expected", join_turns(sample.ground_truth)))
    if _is_plain(record):
        texts.append(ShownText("answer", record.response.text or ""))
    else:
        texts.append(ShownText("conversation", "\n\n".join(_conversation(record))))
    return texts


def answer_text(record: Record) -> str:
    """The answer, or the whole conversation, as one text."""
    return (record.response.text or "") if _is_plain(record) else "\n\n".join(_conversation(record))


def _is_plain(record: Record) -> bool:
    """Whether a result is one question with one answer, without tool calls."""
    if not isinstance(record.sample.input, str):
        return False
    messages = list(record.response.steps.messages())
    return len(messages) <= 1 and not any(message.tool_calls for message in messages)


def _conversation(record: Record) -> Iterator[str]:
    inputs = [record.sample.input] if isinstance(record.sample.input, str) else record.sample.input
    turns = record.response.steps.turns
    for number in range(max(len(inputs), len(turns))):
        if number < len(inputs):
            yield f"user: {inputs[number]}"
        for message in turns[number] if number < len(turns) else ():
            yield from _lines(message)


def _lines(message: Message) -> Iterator[str]:
    if message.role in ("system", "user"):
        return
    if message.role == "tool":
        yield f"{'error of' if message.is_error else 'result of'} {message.name or 'the tool'}: {message.content}"
        return
    if message.content:
        yield f"{message.role}: {message.content}"
    for call in message.tool_calls:
        yield f"call of {call.name}: {call.arguments}"


def rubric_text(run: Run, question: str, *, read_files: bool = True) -> str | None:
    """The rubric of the judge that answers the question, as the run's suite has it; None if it is not found.

    Without ``read_files`` only what the store has: the sender of a run must not choose which file others read.
    """
    config = _grader_config(run, question, read_files=read_files)
    if config is None:
        return None
    prompt, name, path = (config.get(key) for key in ("prompt", "rubric", "prompt_path"))
    try:
        if isinstance(prompt, str):
            return prompt
        if isinstance(name, str):
            return shipped_rubric(name).text
        if isinstance(path, str) and read_files:
            return (RunDefinition.of(run).suite_file.parent / path).read_text(encoding="utf-8")
    except (GradelineError, OSError, ValueError):
        return None
    return None


def _grader_config(run: Run, question: str, *, read_files: bool) -> Mapping[str, Any] | None:
    try:
        definition = RunDefinition.of(run)
        document = definition.document or (read_document(definition.suite_file).data if read_files else {})
    except (GradelineError, OSError, ValueError):
        return None
    graders = document.get("graders")
    config = graders.get(question) if isinstance(graders, dict) else None
    return config if isinstance(config, dict) else None
