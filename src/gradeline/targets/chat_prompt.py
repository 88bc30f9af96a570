"""Prompts of chat models: templates of the messages and tools of a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from gradeline.adapters.chat import NO_PARAMETERS, Tool
from gradeline.errors import Problem
from gradeline.graders.tool_schemas import SCHEMA_KEYS, bare_tool, parameters_of
from gradeline.model import Config, Message, ToolCall, described, quote
from gradeline.targets.template import Lookup, fill_text, placeholder_faults, placeholders

PROMPT_NAMES = ("input", "id", "model", "metadata.")
"""The placeholders that a template may contain."""

_INPUT = "{{input}}"


class ChatMessage(Config, frozen=True):
    """A message before the question, or the question itself."""

    role: Annotated[Literal["system", "user", "assistant"], described("Role of the message.")]
    content: Annotated[str, described("Text of the message, with placeholders as in prompt.")]


class ChatPrompt:
    """The templates of a conversation.

    A user message with ``{{input}}`` is the question of the first turn, and the template of later turns. If there is
    none, ``prompt`` follows the messages.
    """

    def __init__(self, prompt: str | None, system: str | None, messages: Sequence[ChatMessage]) -> None:
        self._system = system
        self._messages = messages
        questions = _questions(messages)
        self._has_question = bool(questions)
        self._turn = prompt if prompt is not None else questions[-1] if questions else _INPUT
        texts = [system, self._turn, *(message.content for message in messages)]
        self.takes_any_sample = all(not name.startswith("metadata.") for _, name in placeholders(texts))
        """Whether no placeholder depends on optional fields of a sample."""

    def system(self, lookup: Lookup) -> str | None:
        return None if self._system is None else fill_text(self._system, lookup)

    def first(self, lookup: Lookup) -> list[Message]:
        """The conversation up to the first question."""
        messages = [Message(message.role, fill_text(message.content, lookup)) for message in self._messages]
        return messages if self._has_question else [*messages, self.next(lookup)]

    def next(self, lookup: Lookup) -> Message:
        """The question of a later turn."""
        return Message("user", fill_text(self._turn, lookup))


def prompt_faults(prompt: str | None, system: str | None, messages: Sequence[ChatMessage]) -> Iterator[Problem]:
    """Problems of the templates, individually and in combination."""
    yield from placeholder_faults(prompt, "prompt", PROMPT_NAMES)
    yield from placeholder_faults(system, "system", PROMPT_NAMES)
    for index, message in enumerate(messages):
        yield from placeholder_faults(message.content, f"messages[{index}].content", PROMPT_NAMES)
    texts = [prompt, system, *(message.content for message in messages)]
    if prompt is not None and _questions(messages):
        yield Problem(
            "prompt", f"conflicts with the user message that contains {_INPUT} and so is the question; keep one of them"
        )
    elif prompt is not None and not any(placeholders(texts)):
        yield Problem("prompt", f"every case would get the same question; write {_INPUT} where its input goes")


def _questions(messages: Sequence[ChatMessage]) -> list[str]:
    """The templates of the messages that contain the question."""
    return [
        message.content
        for message in messages
        if message.role == "user" and any(name == "input" for _, name in placeholders(message.content))
    ]


NOT_RUN = "This tool is not run here."
"""Result sent for each tool call when the conversation continues: providers require one per call."""

_KEYS = frozenset({"name", "description", "strict", "type", *SCHEMA_KEYS})


def read_tools(tools: Iterable[Mapping[str, Any]]) -> Iterator[Tool]:
    """The tools; definitions in a provider's own format are accepted too."""
    for tool in map(bare_tool, tools):
        yield Tool(tool["name"], tool.get("description") or "", parameters_of(tool) or NO_PARAMETERS)


def tool_faults(tools: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Problems of tool definitions."""
    names: set[str] = set()
    for index, definition in enumerate(tools):
        path, tool = f"tools[{index}]", bare_tool(definition)
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            yield Problem(f"{path}.name", f"a tool needs a name, got {quote(name)}")
        elif name in names:
            yield Problem(f"{path}.name", f"there are two tools named {name!r}")
        else:
            names.add(name)
        if not isinstance(tool.get("description", ""), str | None):
            yield Problem(f"{path}.description", f"expected a string, got {quote(tool['description'])}")
        for key in SCHEMA_KEYS:
            if not isinstance(tool.get(key, {}), Mapping):
                yield Problem(f"{path}.{key}", f"expected a JSON Schema, got {quote(tool[key])}")
        unknown = sorted(map(str, tool.keys() - _KEYS))
        if unknown:
            yield Problem(f"{path}.{unknown[0]}", "unknown key; a tool has name, description and parameters")


def results_of(calls: Sequence[ToolCall]) -> tuple[Message, ...]:
    """The results sent for a model's tool calls before the next user message."""
    return tuple(Message("tool", NOT_RUN, tool_call_id=call.id, name=call.name) for call in calls)
