"""A real Ray cluster of several nodes on this machine, each node's processes in a session of their own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

RAY = str(Path(sys.executable).with_name("ray"))
_PATIENCE = 400.0
"""Seconds for a node to start: on a busy machine, minutes."""
_GUARD = 'while read session; do all="$all $session"; done; for one in $all; do pkill -9 -s "$one"; done'


class RayCluster:
    """A head and further nodes, one processor each; `stop` ends all of them."""

    def __init__(self) -> None:
        # not under pytest's own folder: the path of a socket has about a hundred characters at most
        self.folder = Path(tempfile.mkdtemp(prefix="gl-rayc-"))
        self.token = secrets.token_hex(20)
        self.address = f"127.0.0.1:{_free_port()}"
        self._nodes: list[subprocess.Popen[bytes]] = []
        # ends the nodes when this process is gone, however it went
        self._guard = subprocess.Popen(["sh", "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True)
        try:
            self._add("--head", f"--port={self.address.rpartition(':')[2]}", "--include-dashboard=false")
        except BaseException:
            self.stop()
            raise

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs to join."""
        joining = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "RAY_USAGE_STATS_ENABLED": "0"}
        joining["RAY_raylet_start_wait_time_s"] = f"{_PATIENCE:g}"
        return {**os.environ, **joining, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}

    def add_node(self) -> int:
        """One more node; its number."""
        self._add(f"--address={self.address}")
        return len(self._nodes) - 1

    def kill_node(self, number: int) -> None:
        """As if its machine lost power."""
        _kill_session(self._nodes[number].pid)
        self._nodes[number].wait()

    def workers(self) -> list[int]:
        """The processes in which chunks are worked on, of all nodes."""
        return [pid for node in self._nodes for pid in _session(node.pid) if "ray::ChunkWorker" in _command(pid)]

    def stop(self) -> None:
        for node in self._nodes:
            _kill_session(node.pid)
            node.wait()
        self._guard.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _add(self, *options: str) -> None:
        log = self.folder / f"node-{len(self._nodes)}.log"
        with log.open("wb") as output:
            node = subprocess.Popen(
                [
                    *(
                        RAY,
                        "start",
                        "--block",
                        "--num-cpus=1",
                        "--node-ip-address=127.0.0.1",
                        "--object-store-memory=100000000",
                    ),
                    *(f"--temp-dir={self.folder}", *options),
                ],
                env={**self.environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._nodes.append(node)
        assert self._guard.stdin is not None
        self._guard.stdin.write(f"{node.pid}\n".encode())
        self._guard.stdin.flush()
        deadline = monotonic() + _PATIENCE
        while b"Ray runtime started" not in log.read_bytes():
            assert node.poll() is None, log.read_text(errors="replace")
            assert monotonic() < deadline, log.read_text(errors="replace")
            sleep(0.1)


def _free_port() -> int:
    """A port outside the range from which the system picks ports for connections: nothing takes it before Ray does."""
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", 20_000 + secrets.randbelow(10_000))) as server:
            port: int = server.getsockname()[1]
            return port


def _kill_session(session: int) -> None:
    for pid in _session(session):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _session(session: int) -> list[int]:
    """The processes of a session that live; Ray gives its workers groups of their own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
