"""Coroutines from code that is not asynchronous, and plain functions from code that is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import NamedTuple, TypeVar

from gradeline.engine import event_loop
from gradeline.engine.execute import Stop
from gradeline.engine.orchestrate import INTERRUPTED_REASON

_log = logging.getLogger("gradeline")

T = TypeVar("T")


class _Running(NamedTuple):
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[object]
    stop: Stop

    def finish(self) -> None:
        self.loop.call_soon_threadsafe(self.stop.set, INTERRUPTED_REASON)
        _log.warning("interrupted: what is in flight is finished; interrupt again to end at once")

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.task.cancel)


def wait_for(work: Callable[[Stop], Coroutine[object, object, T]]) -> T:
    """The value of a coroutine, which runs in a thread with an event loop of its own: so it may be called anywhere.

    The first `KeyboardInterrupt` sets the stop, the second cancels the coroutine; it is raised when that has ended.
    """
    outcome: Future[T] = Future()
    started: Future[_Running] = Future()

    async def main() -> T:
        stop = Stop()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs is in a task
        started.set_result(_Running(asyncio.get_running_loop(), task, stop))
        return await work(stop)

    def run() -> None:
        try:
            value = event_loop.run(main())
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(value)

    _start(run)
    try:
        wait([outcome])
    except KeyboardInterrupt:
        running = started.result()
        for way_out in (running.finish, running.end):
            with suppress(KeyboardInterrupt):
                with suppress(RuntimeError):  # it has ended meanwhile
                    way_out()
                wait([outcome])
                break
        raise
    return outcome.result()


async def call_in_thread(function: Callable[[], T]) -> T:
    """The value of a function that may block. A cancelled call is not waited for: its thread ends with the process."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            value = function()
        except BaseException as error:
            # neither can be the exception of a future: a coroutine takes both for an order to end
            ends = isinstance(error, StopIteration | GeneratorExit)
            fault = RuntimeError(f"{type(error).__name__}: {error}") if ends else error
            tell(lambda: outcome.set_exception(fault))
        else:
            tell(lambda: outcome.set_result(value))

    def tell(settle: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if outcome.done() else settle())

    _start(run)
    return await outcome


def _start(run: Callable[[], None]) -> None:
    """A daemon: what hangs must not keep the process from ending."""
    Thread(target=copy_context().run, args=(run,), name="gradeline", daemon=True).start()
