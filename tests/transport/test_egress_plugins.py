from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest

from gradeline.engine import lifecycle
from gradeline.transport import PublicOnly
from gradeline.transport import egress as socket_guard
from gradeline.transport.egress import guarded_sockets
from gradeline.transport.errors import EgressRefusedError


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def connect(port: int, host: str = "127.0.0.1") -> None:
    socket.create_connection((host, port), 5).close()


def test_an_address_outside_the_policy_is_refused_with_the_reason(port: int) -> None:
    with guarded_sockets(PublicOnly()), pytest.raises(EgressRefusedError) as caught:
        connect(port)
    assert isinstance(caught.value, OSError)
    assert str(caught.value) == (
        "refused by the egress policy: 127.0.0.1 is a loopback address; the operator can allow it by network or host:port"
    )
    connect(port)  # after the block as before


@pytest.mark.parametrize("allowed", ["127.0.0.0/8", "127.0.0.1:{port}", "localhost:{port}"])
def test_allowed_networks_and_hosts_are_reached(port: int, allowed: str) -> None:
    with guarded_sockets(PublicOnly([allowed.format(port=port)])):
        connect(port, "localhost")


def test_a_host_is_allowed_on_its_port_only(port: int) -> None:
    with guarded_sockets(PublicOnly(["localhost:1"])), pytest.raises(EgressRefusedError):
        connect(port, "localhost")


def test_a_name_in_place_of_an_address_is_refused(port: int) -> None:
    """The system has resolved it by then, and its address is not to be seen."""
    policy = PublicOnly([f"localhost:{port}"])
    refused = pytest.raises(EgressRefusedError, match="'localhost' is a name")
    with guarded_sockets(policy), socket.socket() as made, refused:
        made.connect(("localhost", port))


def test_local_sockets_and_datagrams_are_under_the_policy_too(tmp_path: Path) -> None:
    with guarded_sockets(PublicOnly()):
        with socket.socket(socket.AF_UNIX) as local, pytest.raises(EgressRefusedError, match="not an internet address"):
            local.connect(str(tmp_path / "socket"))
        with socket.socket(type=socket.SOCK_DGRAM) as datagrams, pytest.raises(EgressRefusedError):
            datagrams.sendto(b"x", ("127.0.0.1", 9))


def test_threads_that_guarded_code_starts_are_guarded(port: int) -> None:
    refused: list[Exception] = []

    def attempt() -> None:
        try:
            connect(port)
        except EgressRefusedError as error:
            refused.append(error)

    with guarded_sockets(PublicOnly()):
        outer = Thread(target=lambda: _started(Thread(target=attempt)).join())
        for thread in (_started(Thread(target=attempt)), _started(outer)):
            thread.join()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(attempt).result()
    _started(Thread(target=attempt)).join()
    assert len(refused) == 3


def _started(thread: Thread) -> Thread:
    thread.start()
    return thread


def test_the_executors_of_a_runs_event_loop_are_guarded(port: int) -> None:
    async def calls() -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, connect, port)  # its thread is started outside
        with guarded_sockets(PublicOnly()):
            with pytest.raises(EgressRefusedError):
                await loop.run_in_executor(None, connect, port)
            with pytest.raises(EgressRefusedError):
                await asyncio.to_thread(connect, port)
        await loop.run_in_executor(None, connect, port)

    lifecycle.run_event_loop(calls())


def test_a_connection_while_the_interpreter_ends_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # by then the names of the module are None, and the hook is still called
    monkeypatch.setattr(socket_guard, "_CONNECTIONS", None)
    monkeypatch.setattr(socket_guard, "_active_policy", None)
    socket_guard._audit("socket.connect", (None, ("127.0.0.1", 9)))
