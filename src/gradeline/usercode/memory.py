"""How much memory user code may take, and what shows that it took too much."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
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
"""What `bytes_of` reads, as JSON Schema."""

_UNITS = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)


def bytes_of(value: object) -> int:
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
        raise ValueError(f"{value!r} is too small to start Python in; use at least {shown_size(LEAST)}, or none")
    return size


def shown_size(size: int) -> str:
    """A number of bytes as a person reads it."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{size / 1024**power:.4g} {unit}"
    return f"{size} B"


def target_memory(value: object) -> int:
    """The limit of a target as its options state it: none where they do not."""
    return NO_LIMIT if value is None else bytes_of(value)


class OomKills:
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
