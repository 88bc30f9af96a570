"""What a chat model is asked: templates that become the messages of a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from gradeline.errors import ConfigError, Problem
from gradeline.model import Config, Message, Sample, described
from gradeline.targets.template import Lookup, fill_text, placeholder_faults, placeholders

KNOWN = ("input", "id", "model", "metadata.")
"""The placeholders that a template may hold."""

_INPUT = "{{input}}"


class ChatMessage(Config, frozen=True):
    """A message that stands before the question, or is it."""

    role: Annotated[Literal["system", "user", "assistant"], described("Who says it.")]
    content: Annotated[str, described("What is said, with placeholders as in prompt.")]


class Prompt:
    """The templates of a conversation.

    A message of the user that holds ``{{input}}`` is the first turn's question, and its template that of the turns
    after it. Where no message does, ``prompt`` follows the messages.
    """

    def __init__(self, prompt: str | None, system: str | None, messages: Sequence[ChatMessage]) -> None:
        self._system = system
        self._messages = messages
        asking = _asking(messages)
        self._asks_itself = bool(asking)
        self._turn = prompt if prompt is not None else asking[-1] if asking else _INPUT
        texts = [system, self._turn, *(message.content for message in messages)]
        self.takes_any_sample = all(not name.startswith("metadata.") for _, name in placeholders(texts))
        """Whether nothing depends on what a sample may lack."""

    def system(self, lookup: Lookup) -> str | None:
        return None if self._system is None else fill_text(self._system, lookup)

    def first(self, lookup: Lookup) -> list[Message]:
        """The conversation up to the first question."""
        told = [Message(message.role, fill_text(message.content, lookup)) for message in self._messages]
        return told if self._asks_itself else [*told, self.next(lookup)]

    def next(self, lookup: Lookup) -> Message:
        """A further question."""
        return Message("user", fill_text(self._turn, lookup))


def prompt_faults(prompt: str | None, system: str | None, messages: Sequence[ChatMessage]) -> Iterator[Problem]:
    """What is wrong with the templates, each alone and together."""
    yield from placeholder_faults(prompt, "prompt", KNOWN)
    yield from placeholder_faults(system, "system", KNOWN)
    for index, message in enumerate(messages):
        yield from placeholder_faults(message.content, f"messages[{index}].content", KNOWN)
    texts = [prompt, system, *(message.content for message in messages)]
    if prompt is not None and _asking(messages):
        yield Problem("prompt", f"a message of the user holds {_INPUT} already, and is the question; leave one out")
    elif prompt is not None and not any(placeholders(texts)):
        yield Problem("prompt", f"every case would be asked the same; write {_INPUT} where its input goes")


def turns_of(sample: Sample) -> list[str]:
    """The questions of a sample; `ConfigError` where there is none."""
    turns = [sample.input] if isinstance(sample.input, str) else list(sample.input)
    if not turns:
        raise ConfigError(Problem("input", f"case {sample.case_key!r} has an empty list; write at least one turn"))
    return turns


def _asking(messages: Sequence[ChatMessage]) -> list[str]:
    """The templates among the messages that hold the question."""
    return [
        message.content
        for message in messages
        if message.role == "user" and any(name == "input" for _, name in placeholders(message.content))
    ]
