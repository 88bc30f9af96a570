"""Memory limits for processes that run users' code, and killing them with everything they started."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any

GRADER_MEMORY = 2 * 1024**3
"""The default memory limit of a worker for graders, in bytes; targets have none."""
NO_LIMIT = 0
MIN_MEMORY = 64 * 1024**2
"""With a smaller limit, the interpreter ends before any code is loaded."""

SIZE_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        {"type": "integer", "minimum": MIN_MEMORY},
        {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*([KkMmGgTt][Ii]?[Bb]|[Bb])?\s*$"},
        {"const": "none"},
        {"type": "null"},
    ]
}
"""The JSON Schema of the sizes that `parse_size` reads."""

_UNITS = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def parse_size(value: object) -> int:
    """Read a size of a suite: a number of bytes, or a number with a unit; else `ValueError`."""
    remedy = "write a size such as 512MB or 2GiB, or none"
    if value == "none":
        return NO_LIMIT
    size = value if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        unit = None if match is None else _UNITS.get(match[2].lower())
        size = None if match is None or unit is None else int(float(match[1]) * unit)
    if size is None:
        raise ValueError(f"invalid size {value!r}: {remedy}")
    if size < MIN_MEMORY:
        raise ValueError(f"{value!r} is too small to start Python in; use at least {format_size(MIN_MEMORY)}, or none")
    return size


def format_size(size: int) -> str:
    """A number of bytes in a readable unit."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{size / 1024**power:.4g} {unit}"
    return f"{size} B"


def target_memory_limit(value: object) -> int:
    """The memory limit in a target's options; by default none."""
    return NO_LIMIT if value is None else parse_size(value)


class OomKillCounter:
    """Counts the processes of this control group that the kernel killed for lack of memory; reports each kill once."""

    def __init__(self) -> None:
        self._file = _events_file()
        self._seen = self._count()

    def new_kill(self) -> bool:
        """True if there was a kill that was not reported yet."""
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
    """The file that counts kills, of control groups version 1 or 2; None where the system has none."""
    try:
        lines = [line.split(":", 2) for line in proc.read_text().splitlines()]
    except OSError:
        return None
    for _, controllers, path in (line for line in lines if len(line) == 3):
        own = path.lstrip("/")
        if controllers == "":
            candidates = [mount / own / "memory.events", mount / "memory.events"]
        elif "memory" in controllers.split(","):
            candidates = [mount / "memory" / own / "memory.oom_control", mount / "memory" / "memory.oom_control"]
        else:
            continue
        found = next((file for file in candidates if file.is_file()), None)
        if found is not None:
            return found
    return None


def limit_worker(memory: int, engine: int) -> None:
    """Called in a worker: limit its memory, make it the subreaper of its descendants, and end it with the engine."""
    import resource

    with contextlib.suppress(OSError, ValueError):  # not every system has every limit
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    faulthandler.enable(file=2)
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal, set_child_subreaper = 1, 36
        prctl = ctypes.CDLL(None).prctl
        prctl(set_child_subreaper, 1, 0, 0, 0)
        prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != engine:  # the engine ended before the signal was set
            os._exit(0)


TOKEN_VARIABLE = "GRADELINE_WORKER"  # noqa: S105 - the name of an environment variable
"""The environment variable whose value identifies a worker and all processes that it started."""

_PROC = Path("/proc")
_KILL_SECONDS = 5.0


def kill_tree(pid: int) -> None:
    """Kill a process with all its descendants, also those that left its session.

    The process is stopped first. On Linux a worker is the subreaper of its descendants: none of them can leave its
    subtree while it is stopped. On other systems only the process group is killed.
    """
    _send(pid, signal.SIGSTOP)
    if _PROC.is_dir():
        _until_empty(lambda: set(_descendants(pid)))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _send(pid, signal.SIGKILL)


def kill_by_token(token: str) -> None:
    """Kill the processes that a worker left behind when it ended by itself; they have its token in the environment."""
    if _PROC.is_dir():
        _until_empty(lambda: set(pids_with_token(token)))


def pids_with_token(token: str) -> Iterator[int]:
    """The live processes that have the token in their environment."""
    needle = f"{TOKEN_VARIABLE}={token}".encode()
    for pid in _all_pids():
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        if needle in environment.split(b"\0") and pid != os.getpid() and _alive(pid):
            yield pid


def _until_empty(find: Callable[[], set[int]]) -> None:
    deadline = monotonic() + _KILL_SECONDS
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
    """The child processes of all its threads; none where it has ended."""
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
    """How a process ended, such as ``exit code 3`` or ``SIGKILL``."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


_ALLOCATION_FAILED = (
    "MemoryError",
    "std::bad_alloc",
    "OutOfMemoryError",
    "Cannot allocate memory",
    "Out of memory",
    "out of memory",
    "memory allocation of",
)
"""What native code and interpreters print before they end a process that could not get memory."""


def allocation_failure(output: str) -> str | None:
    """The sign in the output of a process that it could not get memory; None if there is none."""
    return next((sign for sign in _ALLOCATION_FAILED if sign in output), None)
