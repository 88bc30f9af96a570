"""Definitions of tools in the formats of providers, and calls validated against the schemas of their arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gradeline.errors import MissingDataError, UngradableError
from gradeline.model import quote
from gradeline.parsing.json_schema import Schema, SchemaError, compile_schema

SCHEMA_KEYS = ("parameters", "input_schema", "parametersJsonSchema")
"""The keys under which OpenAI, Anthropic and Gemini have the schema of a tool's arguments."""
_METADATA_KEYS = ("tools", "functions")
_NO_TOOLS = (
    "the tools are unknown: write tools: $target.tools for those of the target, write a list of definitions, or give "
    "the case metadata.tools"
)


def bare_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool definition without the wrapper of OpenAI's chat completions."""
    inner = tool.get("function")
    return inner if isinstance(inner, Mapping) and tool.get("type") == "function" else tool


def parameters_of(tool: Mapping[str, Any]) -> Any:
    """The JSON Schema of a bare tool's arguments, if it has one."""
    return next((tool[key] for key in SCHEMA_KEYS if tool.get(key) is not None), None)


def tools_of(metadata: Mapping[str, Any]) -> Any:
    """The tool definitions of a case."""
    found = next((metadata[key] for key in _METADATA_KEYS if metadata.get(key) is not None), None)
    if found is None:
        raise MissingDataError(_NO_TOOLS)
    return found


class ToolSchemas:
    """The schemas of tools, by name; `UngradableError` for a faulty definition."""

    def __init__(self, definitions: object, path: str) -> None:
        self._schemas: dict[str, Schema] = {}
        listed: Iterable[object] = definitions if isinstance(definitions, list) else [definitions]
        for index, definition in enumerate(listed):
            place = f"{path}[{index}]" if isinstance(definitions, list) else path
            tool = bare_tool(definition) if isinstance(definition, Mapping) else {}
            if not isinstance(tool.get("name"), str):
                raise UngradableError(f"{place} must be a tool with a name, got {quote(definition)}")
            schema = parameters_of(tool)
            try:
                self._schemas[tool["name"]] = compile_schema({"type": "object"} if schema is None else schema)
            except SchemaError as error:
                raise UngradableError(f"{place}: the schema of {quote(tool['name'])}: {error}") from None

    def fault(self, name: str, arguments: Mapping[str, Any] | None, sent: object, chars: int) -> str | None:
        """Why a call is invalid, if it is."""
        schema = self._schemas.get(name)
        if schema is None:
            known = ", ".join(map(quote, list(self._schemas)[:5])) or "none"
            return f"there is no tool {quote(name, 80)}; the tools are {known}"
        if arguments is None:
            return f"the arguments are not a JSON object but {quote(sent, 80)}"
        try:
            if schema.is_valid(arguments, chars):
                return None
        except SchemaError as error:
            raise UngradableError(f"the schema of {quote(name)}: {error}") from None
        return "; ".join(schema.errors(arguments, most=2))
