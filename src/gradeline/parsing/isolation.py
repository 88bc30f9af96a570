"""How much work on untrusted data this process may do itself.

The time of JSON Schema, JMESPath, patterns and text distances depends on data that anyone may have written. Before
each evaluation an upper bound of its time is estimated. Up to `MOST_NS` it runs here; beyond that only a worker
process may run it, which is killed at a deadline and has a memory limit.
"""

from __future__ import annotations

from gradeline.errors import NeedsIsolationError

MOST_NS = 50_000_000
"""Nanoseconds that one evaluation may take, at worst, in a process that serves others as well."""


class _Process:
    """What is known of the process this runs in."""

    killable = False


_process = _Process()


def trust_process() -> None:
    """Declare this process a worker, which is killed when it takes too long: everything may run here."""
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
