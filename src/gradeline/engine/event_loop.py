"""The event loop of a run: it takes up a few answers at a time.

asyncio takes all that is ready into one turn, and all of it goes through each step together: where a hundred answers
come at once, the first is stored and its place asked again only when the last has been read. The agent waits for that,
and as the next hundred are asked together, it does so again and again. A few at a time are read, stored and asked
again while the others wait in their sockets, and soon the answers come one after the other. The sockets are looked at
only when that is done: each step takes a turn of the loop, and more answers in between would only make it longer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import os
import selectors
import sys
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")

AT_ONCE = 6
UNLOOKED = 8
"""Turns that may pass without a look at the sockets, while there is something to do."""


class RunLoop(asyncio.SelectorEventLoop):
    """Passes context variables on to threads, as `asyncio.to_thread` does: what a plugin runs there stays guarded."""

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        if executor is None or isinstance(executor, concurrent.futures.ThreadPoolExecutor):
            return super().run_in_executor(executor, copy_context().run, func, *args)
        return super().run_in_executor(executor, func, *args)


if sys.platform == "linux":
    import select

    class FewAtOnce(selectors.EpollSelector):
        """Tells of a few sockets that are ready; the kernel goes round them, so that each has its turn.

        Where the loop does not wait (``timeout`` is 0: something is to be done) most turns pass without a look.
        """

        def __init__(self) -> None:
            super().__init__()
            self._few = select.epoll.fromfd(os.dup(self.fileno()))
            self._unlooked = 0

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout == 0 and self._unlooked < UNLOOKED:
                self._unlooked += 1
                return []
            self._unlooked = 0
            # as its base: whole milliseconds, rounded up, so that nothing wakes before its time
            seconds = -1.0 if timeout is None else math.ceil(max(timeout, 0.0) * 1e3) * 1e-3
            try:
                found = self._few.poll(seconds, AT_ONCE)
            except InterruptedError:
                return []
            keys = self.get_map()
            ready = []
            for descriptor, event in found:
                key = keys.get(descriptor)
                if key is not None:
                    write = selectors.EVENT_WRITE if event & ~select.EPOLLIN else 0
                    read = selectors.EVENT_READ if event & ~select.EPOLLOUT else 0
                    ready.append((key, (read | write) & key.events))
            return ready

        def close(self) -> None:
            self._few.close()
            super().close()

    def new_event_loop() -> asyncio.AbstractEventLoop:
        """An event loop for runs."""
        return RunLoop(FewAtOnce())

else:

    def new_event_loop() -> asyncio.AbstractEventLoop:
        """An event loop for runs."""
        return RunLoop()


INTERRUPTED_TASKS_S = 2.0
"""How long tasks may take to clean up after Ctrl-C."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, but Ctrl-C prints no traceback of the task that it happened to interrupt, nor waits for one
    that cannot end."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
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
