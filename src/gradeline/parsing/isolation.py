"""Decides which work on untrusted data must run in a worker process.

The time of JSON Schema, JMESPath, patterns and string distances depends on untrusted data. Before each evaluation its
time is estimated by an upper bound. Up to `MOST_NS` it runs in this process; beyond that only in a worker process,
which has a deadline and a memory limit.
"""

from __future__ import annotations

from gradeline.errors import NeedsIsolationError

MOST_NS = 50_000_000
"""Maximum nanoseconds of one evaluation in a process that is not a worker."""


class _Process:
    killable = False


_process = _Process()


def trust_process() -> None:
    """Declare this process a worker, which has a deadline: everything may run here."""
    _process.killable = True


def is_killable() -> bool:
    """Whether this process is a worker."""
    return _process.killable


def too_costly(nanoseconds: float) -> bool:
    """Whether an evaluation with this upper bound must not run in this process."""
    return not (nanoseconds <= MOST_NS or _process.killable)


def needs_worker(what: str) -> NeedsIsolationError:
    """The error to raise for an evaluation that is `too_costly`."""
    return NeedsIsolationError(
        f"{what} may take longer than {MOST_NS // 1_000_000} ms on this data; only a worker process may run it"
    )
