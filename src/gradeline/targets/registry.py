"""Registry of targets, and creation by kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any

from gradeline.errors import AgentError
from gradeline.model.registry import Registry
from gradeline.model.resources import EgressPolicy
from gradeline.targets.base import DeclaredTarget, TargetContext

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
    "letta_agent": "gradeline.letta.targets:LettaAgentTarget",
    "letta_code": "gradeline.letta.targets:LettaCodeTarget",
}

MODELS = frozenset({"openai", "anthropic", "gemini", "ollama", "vllm"})
"""The kinds that are bare models."""

GROUP = "gradeline.targets"

registry: Registry[DeclaredTarget[Any]] = Registry(
    "target", DeclaredTarget, BUILTINS, GROUP, lambda _, declaration: declaration.describe()
)


def is_plugin(kind: str) -> bool:
    """Whether targets of that kind come from an installed package, not from gradeline."""
    return not registry.is_builtin(kind)


def create(
    kind: str,
    config: Mapping[str, Any] | None = None,
    secrets: Collection[str] = (),
    context: TargetContext | None = None,
) -> DeclaredTarget[Any]:
    """Create a target, bound to its context; open it with ``async with`` before you call it.

    ``secrets`` are values in the config that must not be shown. A plugin's sockets are under the egress policy of the
    context, from the import of its module on. Raises `ConfigError` with the path of every problem in the config.
    """
    context = context or TargetContext()
    policy = context.resources.policy if is_plugin(kind) else None
    with guarded_code(policy):
        target = registry.get(kind)(config, secrets).bind(context)
    if policy is not None:
        guard_methods(target, policy, ("problems_with", "cache_key"), ("open", "close", "call"))
    return target


def guarded_code(policy: EgressPolicy | None) -> AbstractContextManager[None]:
    """Context in which sockets of a plugin's code are under the policy, if there is one."""
    if policy is None:
        return nullcontext()
    from gradeline.transport.egress import guarded_sockets  # loads aiohttp

    return guarded_sockets(policy)


def guard_methods(plugin: object, policy: EgressPolicy, plain: Collection[str], awaited: Collection[str]) -> None:
    """Wrap these methods of a plugin's target or grader so that they run under the policy."""
    for name in plain:
        setattr(plugin, name, _guarded(getattr(plugin, name), policy))
    for name in awaited:
        setattr(plugin, name, _guarded_async(getattr(plugin, name), policy))


def _guarded(method: Callable[..., Any], policy: EgressPolicy) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with guarded_code(policy):
            return method(*args, **kwargs)

    return call


def _guarded_async(method: Callable[..., Any], policy: EgressPolicy) -> Callable[..., Any]:
    @wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with guarded_code(policy), _refusals_reported():
            return await method(*args, **kwargs)

    return call


@contextmanager
def _refusals_reported() -> Iterator[None]:
    """Report a refused connection even if the plugin's HTTP client wrapped the error in its own."""
    from gradeline.transport.errors import EgressRefusedError

    try:
        yield
    except AgentError:
        raise
    except Exception as error:
        for cause in _causes(error):
            if isinstance(cause, EgressRefusedError):
                raise AgentError("connect", f"refused by the egress policy: {cause.reason}") from error
        raise


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    pending = [error]
    while pending:
        one = pending.pop()
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            # urllib has the cause as `reason`, aiohttp as `os_error`
            pending += [one.__cause__, one.__context__, getattr(one, "reason", None), getattr(one, "os_error", None)]
            pending += getattr(one, "exceptions", ())
