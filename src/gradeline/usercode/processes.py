"""Ending a process with everything it started."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep

TOKEN = "GRADELINE_WORKER"  # noqa: S105 - the name of an environment variable
"""The environment variable that marks a worker and all it starts."""

_PROC = Path("/proc")
_PATIENCE = 5.0


def end_tree(pid: int) -> None:
    """Kill a worker with its subtree until it is empty, children that left its session too.

    The worker is stopped first. On Linux it is the subreaper of its descendants, so that none of
    them can leave its subtree while it is stopped. Elsewhere the process group is all that is known.
    """
    _send(pid, signal.SIGSTOP)
    if _PROC.is_dir():
        _until_empty(lambda: set(_descendants(pid)))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _send(pid, signal.SIGKILL)


def end_marked(token: str) -> None:
    """Kill what a worker that ended by itself left behind: it carries the token, wherever it was moved to."""
    if _PROC.is_dir():
        _until_empty(lambda: set(marked(token)))


def marked(token: str) -> Iterator[int]:
    """The living processes that carry the token."""
    needle = f"{TOKEN}={token}".encode()
    for pid in _all_pids():
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        if needle in environment.split(b"\0") and pid != os.getpid() and _alive(pid):
            yield pid


def _until_empty(find: Callable[[], set[int]]) -> None:
    deadline = monotonic() + _PATIENCE
    while monotonic() < deadline:
        found = find()
        if not found:
            return
        for pid in found:
            _send(pid, signal.SIGSTOP)  # so that it starts nothing while the others are killed
        for pid in found:
            _send(pid, signal.SIGKILL)
        sleep(0.001)


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        if _alive(child):
            yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    """Of all its threads; none where it has ended, which it may at any moment."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def _alive(pid: int) -> bool:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _all_pids() -> Iterator[int]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _send(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def signal_name(returncode: int) -> str:
    """How a process ended, in words."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"
