"""Every target by name, and the way to make one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gradeline.model.registry import Registry
from gradeline.targets.base import DeclaredTarget

BUILTINS = {
    "http": "gradeline.targets.http:HttpTarget",
    "openai": "gradeline.targets.chat:OpenAITarget",
    "anthropic": "gradeline.targets.chat:AnthropicTarget",
    "gemini": "gradeline.targets.chat:GeminiTarget",
    "ollama": "gradeline.targets.chat:OllamaTarget",
    "vllm": "gradeline.targets.chat:VllmTarget",
    "python": "gradeline.targets.python:PythonTarget",
    "command": "gradeline.targets.command:CommandTarget",
    "replay": "gradeline.targets.replay:ReplayTarget",
    "letta_agent": "gradeline.targets.letta_agent:LettaAgentTarget",
    "letta_code": "gradeline.targets.letta_code:LettaCodeTarget",
}

MODELS = frozenset({"openai", "anthropic", "gemini", "ollama", "vllm"})
"""The kinds that are a model and nothing else."""

ALIASES = {"agent": "letta_agent"}
"""Names that letta's older releases have for a kind."""

GROUP = "gradeline.targets"

registry: Registry[DeclaredTarget[Any]] = Registry(
    "target", DeclaredTarget, BUILTINS, GROUP, lambda _, declaration: declaration.describe()
)


def create(
    kind: str, config: Mapping[str, Any] | None = None, secrets: Collection[str] = (), **given: Any
) -> DeclaredTarget[Any]:
    """A target of that kind; open it with ``async with`` before it is asked.

    ``secrets`` are the values in the config that nothing may show. ``given`` is what a kind takes beside its
    config: ``transport`` for http, ``environment`` for models and letta, ``pool`` or ``function`` for python,
    ``responses`` for replay, ``folder``, ``pool`` and ``cleanup`` for letta. Raises `ConfigError`, which names every
    fault in the config by its path.
    """
    return registry.get(ALIASES.get(kind, kind))(config, secrets, **given)
