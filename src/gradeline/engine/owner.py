"""Who runs a run: a process that can be told to live or to be gone."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """``host:pid:start``; the start tells a process from a later one with its number."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start(os.getpid())}"


def is_alive(owner: str | None) -> bool:
    """Whether that process still runs. One on another host cannot be asked, and counts as alive."""
    if not owner:
        return False
    host, pid, start = owner.rsplit(":", 2)
    if host != socket.gethostname():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _start(int(pid)) == start


def _start(pid: int) -> str:
    """When a process began, in the kernel's own count; empty where that is not told, and of one that only waits to
    be buried."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
