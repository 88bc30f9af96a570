"""The synchronous form of a coroutine: it may be called anywhere, inside a running event loop too."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Coroutine
from concurrent.futures import Future
from threading import Lock, Thread, current_thread
from typing import TypeVar

T = TypeVar("T")

_FAREWELL_S = 2.0


class _LoopThread:
    """One event loop in a thread of its own, so that blocking callers share its connections."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: what hangs must not keep the process from ending.
        self.thread = Thread(target=self._loop.run_forever, name="gradeline-models", daemon=True)
        self.thread.start()
        self.pid = os.getpid()

    def submit(self, coroutine: Coroutine[object, object, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def end(self) -> None:
        """Lets connections be closed (they hang on asynchronous generators), then stops."""
        if self.pid != os.getpid() or not self.thread.is_alive():
            return
        self.submit(self._loop.shutdown_asyncgens()).add_done_callback(
            lambda _: self._loop.call_soon_threadsafe(self._loop.stop)
        )
        self.thread.join(_FAREWELL_S)
        if not self.thread.is_alive():
            self._loop.close()


_lock = Lock()
_running: _LoopThread | None = None


def run(coroutine: Coroutine[object, object, T]) -> T:
    """The value of the coroutine. A caller that is interrupted while it waits cancels it."""
    home = _home()
    if current_thread() is home.thread:
        # Waiting there would stop the very loop that is waited for.
        return _run_elsewhere(coroutine)
    return _result(home.submit(coroutine))


def _home() -> _LoopThread:
    global _running
    with _lock:
        if _running is None or _running.pid != os.getpid():  # a forked process has no threads but its first
            _running = _LoopThread()
            atexit.register(_running.end)
        return _running


def _run_elsewhere(coroutine: Coroutine[object, object, T]) -> T:
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            value = asyncio.run(coroutine)
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(value)

    Thread(target=work, name="gradeline-model", daemon=True).start()
    return _result(outcome)


def _result(outcome: Future[T]) -> T:
    try:
        return outcome.result()
    except BaseException:
        outcome.cancel()
        raise
