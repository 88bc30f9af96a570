"""Leases of runs: which process owns a run, and whether it is still alive.

A run stored as ``running`` is running only while its owner lives. A process in the same PID namespace of this host is
checked directly. Any other process is judged by its heartbeat, which it writes every `HEARTBEAT_S` seconds by the
clock of the database: after `LEASE_S` seconds without one it is considered dead. Readers derive the status
``interrupted`` from that (`observed`); it is not stored.
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
    """Whether that process still runs; None if it is on another host or in another container."""
    if not owner:
        return False
    host, pid, start = (["", "", *owner.rsplit(":", 2)])[-3:]
    # earlier versions stored only the host name
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
    """The run with its current status: ``interrupted`` if its owner is dead. Without ``query`` heartbeats are not
    checked."""
    if run.status not in ("running", "pending") or (run.status == "pending" and run.owner is None):
        return run
    alive = is_alive(run.owner)
    if alive is None:
        silent = None if query is None else silence(query, run.id)
        alive = silent is None or silent < LEASE_S  # without any heartbeat the state is unknown
    return run if alive else replace(run, status="interrupted")


def observed_run(text: str, query: Query | None) -> Run:
    """As `observed`, for a run in its stored form."""
    return observed(from_json(Run, text), query)


def write_heartbeat(execute: Query, run: str) -> None:
    """Write a heartbeat of the run's owner."""
    execute(BEAT, run)


def silence(query: Query, run: str) -> float | None:
    """Seconds since the last heartbeat of the run's owner, by the database's clock; None without heartbeats."""
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
    """The scope of process numbers; containers may share a host name but not a PID namespace."""
    try:
        namespace = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()}/{namespace.strip('pid:[]')}"


def _start(pid: int) -> str:
    """The start time of a process in the kernel's units; empty if unknown, and for a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
