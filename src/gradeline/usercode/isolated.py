"""Worker processes for built-ins that an input could make hang or take all memory.

A run has pools of its own. This one is for everything else in the process: graders that are called directly,
previews, answers of agents. It starts with the first job, in a thread with an event loop, and ends with the process.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from typing import Any

import msgspec

from gradeline.errors import ConfigError, Fault, GraderError, NeedsIsolationError
from gradeline.model import ErrorInfo, GradeContext, GradeResult, Response, Sample
from gradeline.usercode.messages import Job, Task, TaskResult
from gradeline.usercode.pool import WorkerPool

DEADLINE_S = 5.0
"""How long one evaluation may take, without the time that it waits for a worker."""
_MOST_WORKERS = 4
_CLOSING_S = 5.0
_NOTHING = Sample(id="isolated", input="")


class IsolatedError(GraderError):
    """What a worker reports instead of a result: its type is ``timeout``, ``memory`` or that of the built-in."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.type = info.type


def grade(kind: str, config: Mapping[str, Any], ctx: GradeContext) -> GradeResult:
    """The result of a built-in grader; waits for it. Raises `IsolatedError`."""
    task = Task("builtin-grader", kind, ctx.submission, config=dict(config), timeout=DEADLINE_S)
    result = _checked(submit(Job(ctx.sample, (task,), ctx.response)).result()[0])
    if result.result is None:
        raise TypeError(f"the worker gave no result of {kind}")
    return result.result


def extract(kind: str, config: Mapping[str, Any], response: Response) -> str:
    """What a built-in extractor finds; waits for it. Raises `IsolatedError`."""
    task = Task("builtin-extractor", kind, config=dict(config), timeout=DEADLINE_S)
    return _checked(submit(Job(_NOTHING, (task,), response)).result()[0]).text or ""


async def search(path: str, data: object) -> Any:
    """What a JMESPath finds in data, None for nothing. Raises `IsolatedError`."""
    task = Task("builtin-search", path, config={"data": data}, timeout=DEADLINE_S)
    (result,) = await run(Job(_NOTHING, (task,)))
    return msgspec.json.decode(_checked(result).text or "null")


async def run(job: Job) -> list[TaskResult]:
    """The results of a job of built-ins, in the order of its tasks."""
    return await asyncio.wrap_future(submit(job))


def submit(job: Job) -> Future[list[TaskResult]]:
    """A job of built-ins for the workers of this process."""
    if sys.platform == "win32":
        raise NeedsIsolationError("this may take too long, and worker processes need Linux or macOS; use WSL")
    return asyncio.run_coroutine_threadsafe(_pool().run(job), _pool().loop)


def _checked(result: TaskResult) -> TaskResult:
    if result.error is not None:
        raise IsolatedError(result.error)
    return result


class _Pool:
    """A worker pool with a thread for its event loop."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._pool: WorkerPool | None = None
        # the workers end when the thread that started them does, which is when this process does
        Thread(target=self.loop.run_forever, name="gradeline-isolated", daemon=True).start()

    async def run(self, job: Job) -> list[TaskResult]:
        if self._pool is None:
            self._pool = WorkerPool(size=1, most=min(_MOST_WORKERS, os.cpu_count() or 1))
        pool = self._pool
        try:
            return await pool.run(job)
        except (ConfigError, OSError, RuntimeError) as error:  # the next job may find more memory, or more processes
            if self._pool is pool:
                self._pool = None
                await pool.close()
            failed = ErrorInfo("crashed", f"no worker process could be started: {error}", Fault.INFRASTRUCTURE)
            return [TaskResult(error=failed)] * len(job.tasks)

    def close(self) -> None:
        if self._pool is not None and self.pid == os.getpid():
            closing = asyncio.run_coroutine_threadsafe(self._pool.close(), self.loop)
            with suppress(TimeoutError):
                closing.result(_CLOSING_S)


_lock = Lock()
_pools: list[_Pool] = []


def _pool() -> _Pool:
    """The pool of this process; a fork gets one of its own."""
    with _lock:
        if not _pools or _pools[-1].pid != os.getpid():
            _pools[:] = [_Pool()]
            atexit.register(_pools[0].close)
        return _pools[0]
