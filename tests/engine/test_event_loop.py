"""The event loop of a run: a few sockets at a time, none forgotten, and all else as ever."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from asyncio.base_subprocess import BaseSubprocessTransport
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from selectors import EVENT_READ, EVENT_WRITE
from threading import Thread
from time import monotonic

import pytest

from gradeline.engine import event_loop
from gradeline.engine.event_loop import AT_ONCE, UNLOOKED, new_event_loop, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have asyncio's own event loop")

if sys.platform == "linux":
    from gradeline.engine.event_loop import FewAtOnce


SOON = 0.001
"""For who waits: with 0 a loop says that it has something else to do."""


@contextmanager
def ready_sockets(number: int) -> Iterator[list[socket.socket]]:
    """So many sockets that each have a byte to be read."""
    with ExitStack() as stack:
        readers = []
        for _ in range(number):
            reader, writer = (stack.enter_context(end) for end in socket.socketpair())
            writer.send(b"x")
            readers.append(reader)
        yield readers


def test_it_tells_of_a_few_at_a_time() -> None:
    with ready_sockets(10) as sockets, FewAtOnce() as selector:
        for one in sockets:
            selector.register(one, EVENT_READ)
        assert len(selector.select(SOON)) == AT_ONCE


def test_each_has_its_turn_though_others_are_always_ready() -> None:
    with ready_sockets(10) as sockets, FewAtOnce() as selector:
        for one in sockets:
            selector.register(one, EVENT_READ)
        seen = Counter(key.fileobj for _ in range(50) for key, _ in selector.select(SOON))
    assert set(seen) == set(sockets)
    assert max(seen.values()) - min(seen.values()) <= 1


def test_a_loop_with_something_to_do_looks_now_and_then() -> None:
    with ready_sockets(1) as (one,), FewAtOnce() as selector:
        selector.register(one, EVENT_READ)
        looked = [bool(selector.select(0)) for _ in range(3 * (UNLOOKED + 1))]
        assert looked == 3 * [*[False] * UNLOOKED, True]
        selector.select(0)
        assert selector.select(SOON)
        assert [bool(selector.select(0)) for _ in range(UNLOOKED + 1)] == [*[False] * UNLOOKED, True]


def test_what_is_busy_lets_others_in() -> None:
    """A task that never waits keeps no socket waiting, and no signal."""

    async def busy() -> None:
        while True:
            await asyncio.sleep(0)

    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(busy())
        signalled = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, signalled.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        one, other = socket.socketpair()
        with one, other:
            one.setblocking(False)
            loop.call_later(0.01, other.send, b"said")
            said = await asyncio.wait_for(loop.sock_recv(one, 10), 5)
        await asyncio.wait_for(signalled.wait(), 5)
        loop.remove_signal_handler(signal.SIGUSR1)
        task.cancel()
        return said

    assert run(main()) == b"said"


def test_it_tells_what_a_socket_is_ready_for() -> None:
    with ready_sockets(1) as (one,), FewAtOnce() as selector:
        for wanted in (EVENT_READ, EVENT_WRITE, EVENT_READ | EVENT_WRITE):
            selector.register(one, wanted)
            ((key, events),) = selector.select(SOON)
            assert (key.fileobj, events) == (one, wanted)
            selector.unregister(one)
        assert selector.select(SOON) == []


def test_a_socket_that_was_closed_at_the_other_end_is_told() -> None:
    with FewAtOnce() as selector:
        one, other = socket.socketpair()
        with one:
            other.close()
            selector.register(one, EVENT_READ)
            assert [events for _, events in selector.select(SOON)] == [EVENT_READ]


def test_it_wakes_in_time_and_not_before() -> None:
    with FewAtOnce() as selector:
        for seconds in (0.0, 0.0101, 0.03):
            began = monotonic()
            assert selector.select(seconds) == []
            assert monotonic() - began >= seconds


def test_all_descriptors_are_closed_with_it() -> None:
    selector = FewAtOnce()
    own, doubled = selector.fileno(), selector._few.fileno()
    assert own != doubled
    selector.close()
    assert selector._few.closed


def test_what_asyncio_does_is_done() -> None:
    async def main() -> tuple[bytes, str, int]:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[str] = loop.create_future()
        Thread(target=lambda: loop.call_soon_threadsafe(woken.set_result, "woken")).start()
        process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
        said, _ = await process.communicate(b"said")
        return said, await asyncio.wait_for(woken, 5), await asyncio.to_thread(lambda: 7)

    assert run(main()) == (b"said", "woken", 7)


def test_many_callers_are_all_answered() -> None:
    """More connections than are told of in one turn, all with something to say at the same time."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def ask(port: int, number: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{number}\n".encode())
        said = int(await reader.readline())
        writer.close()
        return said

    async def main() -> list[int]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0, backlog=200) as server:
            port = server.sockets[0].getsockname()[1]
            return await asyncio.wait_for(asyncio.gather(*(ask(port, number) for number in range(100))), 30)

    assert run(main()) == list(range(100))


def test_an_event_loop_can_be_made_and_left_without_a_run() -> None:
    new_event_loop().close()


class TestInterruptedTasks:
    """Ctrl-C is raised in whatever runs at that moment, which may be a task that nobody waits for."""

    @staticmethod
    def run_with_a_task_that(raises: BaseException) -> None:
        async def fails() -> None:
            raise raises

        async def main() -> None:
            task = asyncio.ensure_future(fails())
            await asyncio.sleep(0.01)
            del task

        run(main())

    def test_ends_the_run_without_a_traceback(self, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.run_with_a_task_that(KeyboardInterrupt())
        gc.collect()
        assert caplog.text == ""

    def test_other_errors_of_such_a_task_are_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        self.run_with_a_task_that(ValueError("a number was expected"))
        gc.collect()
        assert "a number was expected" in caplog.text

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pipes that asyncio forgot
    def test_a_program_that_was_just_started_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its transport never learns of its pipes, and so never of its end."""

        async def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        async def main() -> None:
            await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)

        monkeypatch.setattr(event_loop, "INTERRUPTED_TASKS_S", 0.1)
        monkeypatch.setattr(BaseSubprocessTransport, "_connect_pipes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(main())
        gc.collect()
