"""Ends a run whose agent cannot be reached, instead of failing every case that is left."""

from __future__ import annotations

from gradeline.model import ErrorInfo

DEFAULT_LIMIT = 20
"""Connection failures in a row after which a run ends."""

_UNREACHED = frozenset({"connect", "dns", "tls", "reset"})
"""Types of failed calls to which the agent gave no answer at all."""


class ConnectionBreaker:
    """Counts connection failures in a row. Any other end of a call shows that the agent is there, and starts anew.

    Calls that were in flight when the first of them failed are not counted, however many they are: an agent that is
    restarted fails all of them at once.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        """0: never end."""
        self._begun = 0
        self._failed = 0
        self._counted_from = 0

    def begin(self) -> int:
        """A number for a call that begins, which `end` takes."""
        self._begun += 1
        return self._begun

    def end(self, call: int, error: ErrorInfo | None) -> str | None:
        """Count how a call ended; why the run must end, where it must."""
        if error is None or error.type not in _UNREACHED:
            self._failed = 0
            return None
        if self._failed == 0:
            self._counted_from = self._begun + 1
            self._failed = 1
        elif call >= self._counted_from:
            self._failed += 1
        if not self._limit or self._failed < self._limit:
            return None
        return (
            f"the agent cannot be reached: {self._failed} calls in a row failed, the last one with {error.type}:"
            f" {error.message}; check that the agent is running and that its address is right"
        )
