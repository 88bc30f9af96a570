"""JMESPaths on the answers of agents.

Answers are read by plain functions, in the event loop. A path that may take too long there is searched by a worker
process, and the answer is read once more with what the worker found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from gradeline.errors import AgentError, NeedsIsolationError, UngradableError
from gradeline.parsing.jmes import JmesPath
from gradeline.targets.messages import bad_response
from gradeline.usercode import isolated

T = TypeVar("T")

MAX_SEARCHES = 20
"""How many searches of one answer workers are asked for: each event of a stream is searched by itself."""

_found: ContextVar[Iterator[Any]] = ContextVar("found_by_workers")
"""What workers found for the searches of this answer that need one, in their order."""


class _PendingSearchError(NeedsIsolationError):
    """The answer cannot be read before a worker has searched it."""

    def __init__(self, path: JmesPath, data: object) -> None:
        super().__init__(f"the JMESPath {path} needs a worker process")
        self.path = path
        self.data = data


def search(path: JmesPath | None, data: object) -> Any:
    """What the path finds, None for nothing; called within `with_workers`."""
    if path is None:
        return None
    try:
        return path.search(data)
    except UngradableError as error:
        raise bad_response(str(error)) from None
    except NeedsIsolationError:
        for value in _found.get(iter(())):
            return value
        raise _PendingSearchError(path, data) from None


async def with_workers(read: Callable[[], T]) -> T:
    """What a function reads from an answer, with workers for the searches that need one.

    `AgentError` of type ``too_large`` for a search that passes the limits of a worker.
    """
    try:
        return read()
    except _PendingSearchError as error:
        pending = error
    found: list[Any] = []
    while len(found) < MAX_SEARCHES:
        try:
            found.append(await isolated.search(str(pending.path), pending.data))
        except isolated.IsolatedError as error:
            reason = f"the JMESPath {pending.path} cannot be searched in this answer: {error} ({error.type})"
            raise AgentError("too_large", reason) from None
        token = _found.set(iter(found))
        try:
            return read()
        except _PendingSearchError as error:
            pending = error
        finally:
            _found.reset(token)
    raise AgentError("too_large", f"more than {MAX_SEARCHES} searches of this answer may each take too long")
