"""Runs a coroutine synchronously from anywhere, including inside a running event loop."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Coroutine
from concurrent.futures import Future
from threading import Lock, Thread, current_thread
from typing import TypeVar

T = TypeVar("T")

_CLOSE_TIMEOUT_S = 2.0


class _LoopThread:
    """An event loop in its own thread, so that blocking callers share its connections."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # a daemon, so that a hanging call does not keep the process alive
        self.thread = Thread(target=self._loop.run_forever, name="gradeline-models", daemon=True)
        self.thread.start()
        self.pid = os.getpid()

    def submit(self, coroutine: Coroutine[object, object, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def end(self) -> None:
        """Close connections, which are held by async generators, then stop the loop."""
        if self.pid != os.getpid() or not self.thread.is_alive():
            return
        self.submit(self._loop.shutdown_asyncgens()).add_done_callback(
            lambda _: self._loop.call_soon_threadsafe(self._loop.stop)
        )
        self.thread.join(_CLOSE_TIMEOUT_S)
        if not self.thread.is_alive():
            self._loop.close()


_lock = Lock()
_running: _LoopThread | None = None


def run(coroutine: Coroutine[object, object, T]) -> T:
    """The result of the coroutine; interrupting the caller cancels it."""
    shared = _loop_thread()
    if current_thread() is shared.thread:
        # waiting there would block the loop that runs the coroutine
        return _run_in_new_thread(coroutine)
    return _result(shared.submit(coroutine))


def _loop_thread() -> _LoopThread:
    global _running
    with _lock:
        if _running is None or _running.pid != os.getpid():  # a forked process has no other threads
            _running = _LoopThread()
            atexit.register(_running.end)
        return _running


def _run_in_new_thread(coroutine: Coroutine[object, object, T]) -> T:
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
