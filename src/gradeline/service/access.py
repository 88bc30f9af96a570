"""Who may call a route: each endpoint says so with a mark, and one without a mark is open to nobody."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

_MARK = "__gradeline_scope__"


class Scope(StrEnum):
    """What a key is good for: `RUN` and `LABEL` include `READ`, `ADMIN` includes all."""

    PUBLIC = "public"
    """Needs no key."""
    READ = "read"
    RUN = "run"
    LABEL = "label"
    ADMIN = "admin"

    def includes(self, wanted: Scope) -> bool:
        """Whether a key of this scope may call a route that wants that one."""
        if wanted is Scope.PUBLIC or self is wanted or self is Scope.ADMIN:
            return True
        return wanted is Scope.READ and self in (Scope.RUN, Scope.LABEL)


def requires(scope: Scope) -> Callable[[Endpoint], Endpoint]:
    """Marks an endpoint."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _MARK, scope)
        return endpoint

    return mark


def scope_of(endpoint: object) -> Scope | None:
    """The mark of an endpoint; None: it has none, and nobody may call it."""
    scope: Scope | None = getattr(endpoint, _MARK, None)
    return scope
