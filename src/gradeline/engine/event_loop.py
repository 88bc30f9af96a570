"""The event loop of a run, and calls between code with and without an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from gradeline.engine.execute import INTERRUPTED_REASON, Stop

_log = logging.getLogger("gradeline")

T = TypeVar("T")


class RunLoop(asyncio.SelectorEventLoop):
    """Passes context variables on to threads, as `asyncio.to_thread` does: what a plugin runs there stays guarded."""

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        if executor is None or isinstance(executor, concurrent.futures.ThreadPoolExecutor):
            return super().run_in_executor(executor, copy_context().run, func, *args)
        return super().run_in_executor(executor, func, *args)


INTERRUPTED_TASKS_S = 2.0
"""Seconds that tasks may take to clean up after Ctrl-C."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, but Ctrl-C prints no traceback of the task that it interrupts, and does not wait for a task
    that cannot end."""
    with asyncio.Runner(loop_factory=RunLoop) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(_report)
        try:
            return runner.run(main)
        except KeyboardInterrupt:
            # an interrupt within asyncio may leave behind what a task then awaits for ever while it is cancelled: the
            # runner cancels such a task a second time, and does not wait before that
            if tasks := asyncio.all_tasks(loop):
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(tasks, timeout=INTERRUPTED_TASKS_S))
            raise


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An interrupt in a task also ends the loop, which raises it in the caller: the task need not report it."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


class _Running(NamedTuple):
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[object]
    stop: Stop

    def finish(self) -> None:
        self.loop.call_soon_threadsafe(self.stop.set, INTERRUPTED_REASON)
        _log.warning("interrupted: calls in flight are finished; interrupt again to stop now")

    def cancel(self) -> None:
        self.loop.call_soon_threadsafe(self.task.cancel)


def wait_for(work: Callable[[Stop], Coroutine[object, object, T]]) -> T:
    """The value of a coroutine, which runs in a thread with its own event loop, so that any code can call this.

    The first `KeyboardInterrupt` sets the stop, the second cancels the coroutine; it is raised when that has ended.
    """
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
    started: concurrent.futures.Future[_Running] = concurrent.futures.Future()

    async def main() -> T:
        stop = Stop()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs is in a task
        started.set_result(_Running(asyncio.get_running_loop(), task, stop))
        return await work(stop)

    def run_main() -> None:
        try:
            value = run(main())
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(value)

    _start_thread(run_main)
    try:
        concurrent.futures.wait([outcome])
    except KeyboardInterrupt:
        running = started.result()
        for interrupt in (running.finish, running.cancel):
            with suppress(KeyboardInterrupt):
                with suppress(RuntimeError):  # it has ended meanwhile
                    interrupt()
                concurrent.futures.wait([outcome])
                break
        raise
    return outcome.result()


async def call_in_thread(function: Callable[[], T]) -> T:
    """The value of a function that may block. A cancelled call is not waited for: its thread ends with the process."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def call() -> None:
        try:
            value = function()
        except BaseException as error:
            # neither can be the exception of a future: a coroutine takes both for an order to end
            ends = isinstance(error, StopIteration | GeneratorExit)
            reported = RuntimeError(f"{type(error).__name__}: {error}") if ends else error
            settle(lambda: outcome.set_exception(reported))
        else:
            settle(lambda: outcome.set_result(value))

    def settle(set_outcome: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(lambda: None if outcome.done() else set_outcome())

    _start_thread(call)
    return await outcome


def _start_thread(function: Callable[[], None]) -> None:
    """A daemon thread: a function that hangs must not keep the process from ending."""
    Thread(target=copy_context().run, args=(function,), name="gradeline", daemon=True).start()
