"""Every extractor by name, and the ways to make and use one."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from gradeline.errors import NeedsIsolationError
from gradeline.extractors.base import DeclaredExtractor
from gradeline.model import Extractor, Response
from gradeline.model.registry import Registry

BUILTINS = {
    "last_assistant": "gradeline.extractors.assistant:LastAssistantExtractor",
    "first_assistant": "gradeline.extractors.assistant:FirstAssistantExtractor",
    "all_assistant": "gradeline.extractors.assistant:AllAssistantExtractor",
    "last_turn": "gradeline.extractors.assistant:LastTurnExtractor",
    "pattern": "gradeline.extractors.text:PatternExtractor",
    "after_marker": "gradeline.extractors.text:AfterMarkerExtractor",
    "tool_arguments": "gradeline.extractors.tools:ToolArgumentsExtractor",
    "tool_output": "gradeline.extractors.tools:ToolOutputExtractor",
    "memory_block": "gradeline.extractors.memory:MemoryBlockExtractor",
    "json": "gradeline.extractors.json_value:JsonExtractor",
    "tool_calls": "gradeline.extractors.tools:ToolCallsExtractor",
    "full_trajectory": "gradeline.extractors.trajectory:FullTrajectoryExtractor",
}

GROUP = "gradeline.extractors"

registry: Registry[DeclaredExtractor[Any]] = Registry(
    "extractor", DeclaredExtractor, BUILTINS, GROUP, lambda _, declaration: declaration.describe()
)


def create(kind: str, config: Mapping[str, Any] | None = None) -> Extractor:
    """An extractor of that kind, ready to extract.

    Raises `ConfigError`, a `ValueError`, that names every fault in the config by its path.
    """
    return registry.get(kind)(config)


def extract(kind: str, response: Response | str, config: Mapping[str, Any] | None = None) -> str:
    """The submission in a response, or in the text of an agent that only answered; empty where nothing was found.

    What could take too long in this process is extracted by a worker process, and waited for.
    """
    if isinstance(response, str):
        response = Response(text=response)
    try:
        return create(kind, config).extract(response)
    except NeedsIsolationError:
        isolated: Any = import_module("gradeline.usercode.isolated")  # a higher layer, which starts processes
        found: str = isolated.extract(kind, config or {}, response)
        return found
