"""Times as the service tells them: ISO 8601, UTC, with a ``Z``."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(seconds: float) -> str:
    """A time since the epoch as text; such texts sort as their times do."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
