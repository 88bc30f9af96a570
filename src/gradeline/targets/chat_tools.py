"""Tools that a chat model is told of. None is run: what the model asks for is what is graded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gradeline.adapters.chat import NO_PARAMETERS, Tool
from gradeline.errors import Problem
from gradeline.model import Message, ToolCall, quote

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
