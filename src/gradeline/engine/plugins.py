"""Plugins under the run's egress policy.

Built-in graders and targets connect through ``resources.transport()`` only. A plugin can do the same, and may also
bring an HTTP client of its own: while its code runs under a policy, its sockets are held to it (see
`gradeline.transport.socket_guard`, which lists what that cannot cover).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeVar

from gradeline.errors import AgentError
from gradeline.graders.registry import ALIASES as GRADER_ALIASES
from gradeline.graders.registry import registry as graders
from gradeline.model.resources import EgressPolicy
from gradeline.targets.base import DeclaredTarget
from gradeline.targets.registry import ALIASES as TARGET_ALIASES
from gradeline.targets.registry import registry as targets

T = TypeVar("T")


def is_plugin_target(kind: str) -> bool:
    return not targets.is_builtin(TARGET_ALIASES.get(kind, kind))


def is_plugin_grader(kind: str) -> bool:
    return not graders.is_builtin(GRADER_ALIASES.get(kind, kind))


def plugin_code(policy: EgressPolicy | None, plugin: bool) -> AbstractContextManager[None]:
    """Around code of a plugin that runs once, such as the import of its module."""
    if policy is None or not plugin:
        return nullcontext()
    from gradeline.transport.socket_guard import guarded_sockets  # loads aiohttp

    return guarded_sockets(policy)


def guard_target(target: DeclaredTarget[Any], policy: EgressPolicy | None) -> None:
    """Hold the sockets of a plugin's target to the policy; a refused connection is a failed call of type connect."""
    if policy is None or not is_plugin_target(target.kind):
        return
    for name in ("open", "close", "call"):
        setattr(target, name, _guarded_async(getattr(target, name), policy))
    for name in ("problems_with", "cache_key"):
        setattr(target, name, _guarded(getattr(target, name), policy))


def guard_grader(grader: object, policy: EgressPolicy | None, kind: str) -> None:
    """Hold the sockets of a plugin's grader to the policy; a refused connection is an error of that grade."""
    if policy is None or not is_plugin_grader(kind):
        return
    setattr(grader, "grade", _guarded(grader.grade, policy))  # type: ignore[attr-defined]  # noqa: B010
    if hasattr(grader, "agrade"):
        setattr(grader, "agrade", _guarded_async(grader.agrade, policy))  # noqa: B010


def _guarded(method: Callable[..., Any], policy: EgressPolicy) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with plugin_code(policy, plugin=True):
            return method(*args, **kwargs)

    return call


def _guarded_async(method: Callable[..., Any], policy: EgressPolicy) -> Callable[..., Any]:
    @wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with plugin_code(policy, plugin=True), _refusals_reported():
            return await method(*args, **kwargs)

    return call


@contextmanager
def _refusals_reported() -> Iterator[None]:
    """Clients wrap the error of a refused connection in their own; the reason must reach the record."""
    from gradeline.transport.faults import EgressRefusedError

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
