"""Memory limits for processes that run users' code, and killing them with everything they started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any

GRADER_MEMORY = 2 * 1024**3
"""Bytes a worker of graders may take where nothing else is set; targets have no limit."""
NO_LIMIT = 0
LEAST = 64 * 1024**2
"""A smaller limit ends the interpreter before any code is loaded."""

SIZE_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        {"type": "integer", "minimum": LEAST},
        {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*([KkMmGgTt][Ii]?[Bb]|[Bb])?\s*$"},
        {"const": "none"},
        {"type": "null"},
    ]
}
"""What `parse_size` reads, as JSON Schema."""

_UNITS = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def parse_size(value: object) -> int:
    """A size as a suite writes it: bytes, or a number with a unit; `ValueError` names what is wrong."""
    known = "write a size such as 512MB or 2GiB, or none"
    if value == "none":
        return NO_LIMIT
    size = value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        unit = None if match is None else _UNITS.get(match[2].lower())
        size = None if match is None or unit is None else int(float(match[1]) * unit)
    if size is None:
        raise ValueError(f"invalid size {value!r}: {known}")
    if size < LEAST:
        raise ValueError(f"{value!r} is too small to start Python in; use at least {format_size(LEAST)}, or none")
    return size


def format_size(size: int) -> str:
    """A number of bytes as a person reads it."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{size / 1024**power:.4g} {unit}"
    return f"{size} B"


def target_memory_limit(value: object) -> int:
    """The limit of a target as its options state it: none where they do not."""
    return NO_LIMIT if value is None else parse_size(value)


class OomKillCounter:
    """How often the kernel has killed a process of this control group for memory. Each kill is counted once."""

    def __init__(self) -> None:
        self._file = _events_file()
        self._seen = self._count()

    def one_more(self) -> bool:
        """Whether there was a kill that was not counted yet."""
        if self._count() <= self._seen:
            return False
        self._seen += 1
        return True

    def _count(self) -> int:
        if self._file is None:
            return 0
        try:
            pairs = (line.split() for line in self._file.read_text().splitlines())
            return int(next((pair[1] for pair in pairs if pair[:1] == ["oom_kill"]), "0"))
        except (OSError, ValueError):
            return 0


def _events_file(proc: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> Path | None:
    """The file that counts them, of either version of control groups; None where the system has none."""
    try:
        lines = [line.split(":", 2) for line in proc.read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in (line for line in lines if len(line) == 3):
        own = path.lstrip("/")
        if controllers == "":
            places = [mount / own / "memory.events", mount / "memory.events"]
        elif "memory" in controllers.split(","):
            places = [mount / "memory" / own / "memory.oom_control", mount / "memory" / "memory.oom_control"]
        else:
            continue
        found = next((place for place in places if place.is_file()), None)
        if found is not None:
            return found
    return None


TOKEN = "GRADELINE_WORKER"  # noqa: S105 - the name of an environment variable
"""The environment variable that marks a worker and all it starts."""

_PROC = Path("/proc")
_PATIENCE = 5.0


def kill_tree(pid: int) -> None:
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


def kill_by_token(token: str) -> None:
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


def exit_description(returncode: int) -> str:
    """How a process ended, in words."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"
