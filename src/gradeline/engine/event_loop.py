"""The event loop of a run: it takes up a few answers at a time.

asyncio takes all that is ready into one turn, and all of it goes through each step together: where a hundred answers
come at once, the first is stored and its place asked again only when the last has been read. The agent waits for that,
and as the next hundred are asked together, it does so again and again. A few at a time are read, stored and asked
again while the others wait in their sockets, and soon the answers come one after the other. The sockets are looked at
only when that is done: each step takes a turn of the loop, and more answers in between would only make it longer.
"""

from __future__ import annotations

import asyncio
import math
import os
import selectors
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

AT_ONCE = 6
UNLOOKED = 8
"""Turns that may pass without a look at the sockets, while there is something to do."""

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
        return asyncio.SelectorEventLoop(FewAtOnce())

else:
    new_event_loop = asyncio.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
