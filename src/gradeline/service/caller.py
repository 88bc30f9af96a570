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
    address: str | None = None
    """Of the client, as a trusted proxy reports it; None for the command line."""
    session: str | None = None
    """The id of the session that the request was sent in; None where it carried a key itself."""


LOCAL = Caller(None, Scope.ADMIN, "")
"""A person on this machine, where there are no keys."""
