"""What a chat model is asked: templates that become the messages of a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from gradeline.adapters.chat import NO_PARAMETERS, Tool
from gradeline.errors import ConfigError, Problem
from gradeline.model import Config, Message, Sample, ToolCall, described, quote
from gradeline.targets.template import Lookup, fill_text, placeholder_faults, placeholders

PROMPT_NAMES = ("input", "id", "model", "metadata.")
"""The placeholders that a template may hold."""

_INPUT = "{{input}}"


class ChatMessage(Config, frozen=True):
    """A message that stands before the question, or is it."""

    role: Annotated[Literal["system", "user", "assistant"], described("Who says it.")]
    content: Annotated[str, described("What is said, with placeholders as in prompt.")]


class ChatPrompt:
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
    yield from placeholder_faults(prompt, "prompt", PROMPT_NAMES)
    yield from placeholder_faults(system, "system", PROMPT_NAMES)
    for index, message in enumerate(messages):
        yield from placeholder_faults(message.content, f"messages[{index}].content", PROMPT_NAMES)
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


NOT_RUN = "This tool is not run here."
"""What a model is told where the conversation goes on after its call: every format wants an answer to each."""

_SCHEMAS = ("parameters", "input_schema", "parametersJsonSchema")
_KEYS = frozenset({"name", "description", "strict", "type", *_SCHEMAS})


def read_tools(tools: Iterable[Mapping[str, Any]]) -> Iterator[Tool]:
    """The tools, also where they are written as a provider's own format has them."""
    for tool in map(_bare, tools):
        schema = next((tool[name] for name in _SCHEMAS if tool.get(name) is not None), NO_PARAMETERS)
        yield Tool(tool["name"], tool.get("description") or "", schema)


def tool_faults(tools: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """What keeps a tool from being told to a model."""
    names: set[str] = set()
    for index, given in enumerate(tools):
        path, tool = f"tools[{index}]", _bare(given)
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            yield Problem(f"{path}.name", f"a tool has a name, got {quote(name)}")
        elif name in names:
            yield Problem(f"{path}.name", f"there are two tools named {name!r}")
        else:
            names.add(name)
        if not isinstance(tool.get("description", ""), str | None):
            yield Problem(f"{path}.description", f"expected a text, got {quote(tool['description'])}")
        for key in _SCHEMAS:
            if not isinstance(tool.get(key, {}), Mapping):
                yield Problem(f"{path}.{key}", f"expected a JSON Schema, got {quote(tool[key])}")
        unknown = sorted(map(str, tool.keys() - _KEYS))
        if unknown:
            yield Problem(f"{path}.{unknown[0]}", "unknown key; a tool has name, description and parameters")


def results_of(calls: Sequence[ToolCall]) -> tuple[Message, ...]:
    """What stands between a model's calls and the user's next message."""
    return tuple(Message("tool", NOT_RUN, tool_call_id=call.id, name=call.name) for call in calls)


def _bare(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool without the wrapping that OpenAI's chat completions have."""
    inner = tool.get("function")
    return inner if isinstance(inner, Mapping) and tool.get("type") == "function" else tool
