"""The cluster that a run starts is only for itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

from .conftest import Project

LISTENING = "0A"


def _addresses_of(pids: set[int]) -> set[str]:
    """Where these processes listen, as the kernel writes it."""
    sockets = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(str(entry.readlink()))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in sockets:
                found.add(fields[1])
    return found


def _session(leader: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader:
                found.add(int(entry.name))
    return found


def _entered(port: str, environment: dict[str, str]) -> str:
    """The error of the cluster's head for a caller."""
    asking = (
        f"import ray; client = ray._raylet.GcsClient(address='127.0.0.1:{port}');"
        " client.internal_kv_keys(b'', namespace=b'cluster', timeout=5)"
    )
    done = subprocess.run(
        [sys.executable, "-c", asking],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return "" if done.returncode == 0 else done.stderr


def test_it_only_listens_on_loopback_and_refuses_a_wrong_token(project: Project) -> None:
    project.write(2_000, concurrency=4)
    driver = project.begin("run", "suite.yaml", "--engine", "ray", "--ray-workers", "2")
    deadline = monotonic() + 120
    while project.call_count < 10:
        assert driver.poll() is None, driver.communicate()
        assert monotonic() < deadline
        sleep(0.1)
    processes = _session(driver.pid)
    addresses = _addresses_of(processes)
    assert len(addresses) > 3
    local = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert {address.partition(":")[0] for address in addresses} <= local

    (gcs,) = [pid for pid in processes if "gcs_server" in Path(f"/proc/{pid}/cmdline").read_text()]
    (port,) = [
        word.partition("=")[2]
        for word in Path(f"/proc/{gcs}/cmdline").read_text().split("\0")
        if word.startswith("--gcs_server_port=") and word != "--gcs_server_port=0"
    ] or [str(int(address.partition(":")[2], 16)) for address in _addresses_of({gcs})]
    environment = Path(f"/proc/{gcs}/environ").read_text().split("\0")
    (token,) = [word.partition("=")[2] for word in environment if word.startswith("RAY_AUTH_TOKEN=")]
    assert len(token) == 64
    assert _entered(port, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}) == ""
    for other in ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"}):
        assert "InvalidAuthToken" in _entered(port, other)

    driver.terminate()
    driver.communicate(timeout=60)
    assert not _session(driver.pid)
