"""Who sends a request."""

from __future__ import annotations

from typing import NamedTuple

from gradeline.service.access import Scope


class Caller(NamedTuple):
    """What the guard found out about a request."""

    key_id: str | None
    """None in local mode, where there are no keys."""
    scope: Scope
    request_id: str
