"""Which process owns a run, and whether it still does.

A run that is stored as ``running`` is running only while its owner lives. A process in the same PID namespace of this
host is asked for directly. Any other one is judged by its heartbeat, which it writes every `HEARTBEAT_S` seconds by the
clock of the database: after `LEASE_S` seconds without one it is gone. Readers derive the status ``interrupted`` from
that (`observed`); it is not stored.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from msgspec.structs import replace

from gradeline.model.record import from_json
from gradeline.model.run import Run

HEARTBEAT_S = 10.0
LEASE_S = 60.0

BEAT = """
    INSERT INTO run_heartbeats (run, at) SELECT id, CAST(CURRENT_TIMESTAMP AS TEXT) FROM runs WHERE id = ?
    ON CONFLICT (run) DO UPDATE SET at = excluded.at"""
_LATEST = "SELECT at, CAST(CURRENT_TIMESTAMP AS TEXT) FROM run_heartbeats WHERE run = ?"

Query: TypeAlias = Callable[..., list[tuple[Any, ...]]]
"""Runs a statement with ``?`` for its values: `Database.read`, or `Transaction.run`."""


def this_process() -> str:
    """``host:pid:start``; the start distinguishes a process from a later one with the same number."""
    return f"{_host()}:{os.getpid()}:{_start(os.getpid())}"


def is_alive(owner: str | None) -> bool | None:
    """Whether that process still runs; None where it is on another host or in another container."""
    if not owner:
        return False
    host, pid, start = (["", "", *owner.rsplit(":", 2)])[-3:]
    # owners of earlier versions have only the host's name
    if not pid.isdecimal() or host not in (_host(), socket.gethostname()):
        return None
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _start(int(pid)) == start


def observed(run: Run, query: Query | None) -> Run:
    """The run with its status as it is now: ``interrupted`` where its owner is gone. Without a query there are no
    heartbeats."""
    if run.status not in ("running", "pending") or (run.status == "pending" and run.owner is None):
        return run
    alive = is_alive(run.owner)
    if alive is None:
        silent = None if query is None else silence(query, run.id)
        alive = silent is None or silent < LEASE_S  # without any heartbeat nothing is known
    return run if alive else replace(run, status="interrupted")


def observed_run(text: str, query: Query | None) -> Run:
    """As `observed`, of a run as it is stored."""
    return observed(from_json(Run, text), query)


def write_heartbeat(execute: Query, run: str) -> None:
    """Write that the owner of the run lives."""
    execute(BEAT, run)


def silence(query: Query, run: str) -> float | None:
    """Seconds since the latest heartbeat of the run's owner, by the database's clock; None where there was none."""
    rows = query(_LATEST, run)
    if not rows:
        return None
    return seconds_between(*rows[0])


def seconds_between(at: str, now: str) -> float:
    """Seconds between two times that the database wrote."""
    return (_moment(now) - _moment(at)).total_seconds()


def _moment(text: str) -> datetime:
    """SQLite writes its time in UTC without a zone, PostgreSQL with the session's."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _host() -> str:
    """Where process numbers mean the same; containers may share a host's name and not its processes."""
    try:
        namespace = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()}/{namespace.strip('pid:[]')}"


def _start(pid: int) -> str:
    """When a process began, in the kernel's own count; empty where the system does not report it, and for a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
