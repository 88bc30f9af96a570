from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request

import pytest

from gradeline.testing.fault_server import FAULTS, FaultServer


async def raw(server: FaultServer, path: str, size: int = 4096) -> bytes:
    """The first bytes of a response."""
    port = int(server.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return await reader.read(size)
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def test_it_counts_and_records_requests() -> None:
    async def run() -> None:
        async with FaultServer() as server:
            await raw(server, "/ok?a=1")
            await raw(server, "/ok?a=2")
            await raw(server, "/status/418")
            assert server.hits == {"/ok": 2, "/status/418": 1}
            assert server.connections == 3
            assert [request.query for request in server.received] == [{"a": "1"}, {"a": "2"}, {}]

    asyncio.run(run())


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"hang", "reset"}))
def test_every_fault_sends_something(name: str) -> None:
    async def run() -> None:
        rest = {"status": "/500", "redirect-chain": "/1", "encoded": "/gzip", "retry-after": "/date"}
        async with FaultServer() as server:
            start = await raw(server, f"/{name}{rest.get(name, '')}")
            assert start.startswith(b"HTTP/1.1 ") or name == "garbage"

    asyncio.run(run())


def test_a_reset_is_a_reset() -> None:
    async def run() -> None:
        async with FaultServer() as server:
            with pytest.raises(ConnectionResetError):
                await raw(server, "/reset")

    asyncio.run(run())


def test_an_unknown_fault_gets_a_list_of_the_known_ones() -> None:
    async def run() -> None:
        async with FaultServer() as server:
            answer = await raw(server, "/nonsense")
            assert answer.startswith(b"HTTP/1.1 404")
            assert b"/gzip-bomb" in answer

    asyncio.run(run())


def test_it_stops_cleanly_during_faults() -> None:
    async def run() -> None:
        async with FaultServer() as server:
            calls = [asyncio.create_task(raw(server, path)) for path in ("/hang", "/slow?ms=60000")]
            while server.hits.total() < 2:
                await asyncio.sleep(0.005)
        assert await asyncio.gather(*calls, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_it_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "gradeline.testing.fault_server", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with urllib.request.urlopen(f"{url}/ok", timeout=10) as answer:
                assert answer.read() == b'{"response": "ok"}'
        finally:
            process.terminate()
