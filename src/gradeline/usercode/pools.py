"""Worker pools by memory limit for a run, and one pool for everything else in this process."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec
from msgspec.structs import replace

from gradeline.errors import ConfigError, Fault, GraderError, NeedsIsolationError
from gradeline.model import ErrorInfo, GradeContext, GradeResult, Response, Sample
from gradeline.usercode.loader import CodeRequest, CodeSpec, LoadError, Manifest
from gradeline.usercode.pool import WorkerLimits, WorkerPool
from gradeline.usercode.process_control import GRADER_MEMORY
from gradeline.usercode.protocol import Job, Task, TaskResult


class CodeRunner(Protocol):
    """Runs user code, in worker processes or in this process."""

    async def run(self, job: Job) -> list[TaskResult]:
        """The results of a job's tasks, in their order."""
        ...


class WorkerPools:
    """Runs each task in a pool with the task's memory limit. Use it with ``async with``; `start` loads the code.

    The limit holds for a process and all code in it: a target that loads a model of ten gigabytes must not share a
    process with graders that are limited to two. Functions with the same limit share a pool.
    """

    def __init__(
        self,
        spec: CodeSpec | None = None,
        *,
        max_size: int | None = None,
        on_death: Callable[[str], None] | None = None,
    ) -> None:
        """``max_size`` (for each pool) and ``on_death`` are those of `WorkerPool`."""
        self._max_size = max_size
        self._pools: dict[int, WorkerPool] = {}
        groups: dict[int, list[CodeRequest]] = {}
        for request in spec.requests if spec is not None else ():
            groups.setdefault(request.memory, []).append(request)
        for memory, own in (groups or {GRADER_MEMORY: []}).items():
            part = None if spec is None else replace(spec, requests=tuple(own))
            if part is not None and self._pools:
                part = replace(part, reserved=())  # one pool reports them
            self._pools[memory] = WorkerPool(
                part, max_size=max_size, limits=WorkerLimits(memory=memory), on_death=on_death
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> Manifest:
        """Load the code; `ConfigError` names all faults of all pools."""
        starting = [pool.start() for pool in self._pools.values()]
        manifests: list[Manifest] = []
        errors: list[ConfigError] = []
        for started in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(started, ConfigError):
                errors.append(started)
            elif isinstance(started, BaseException):
                raise started
            else:
                manifests.append(started)
        if errors:
            raise _joined(errors)
        entries = {(entry.role, entry.reference): entry for one in manifests for entry in one.entries}
        return Manifest(tuple(entries.values()), ())

    async def set_up(self, suite: dict[str, Any]) -> str | None:
        """Call the setup function once, in one worker; returns its output. `ConfigError` where it fails."""
        return await next(iter(self._pools.values())).set_up(suite)

    async def run(self, job: Job) -> list[TaskResult]:
        """The results of a job's tasks, in their order. A task runs in the pool of the task that it reads from."""
        tasks = job.tasks
        limits = [task.memory if task.extract is None else tasks[task.extract].memory for task in tasks]
        if len(set(limits)) <= 1:
            return await self._pool(limits[0]).run(job) if tasks else []
        parts = {limit: [index for index, own in enumerate(limits) if own == limit] for limit in set(limits)}
        answers = await asyncio.gather(*(self._pool(limit).run(job.part(own)) for limit, own in parts.items()))
        found = {
            index: result
            for own, results in zip(parts.values(), answers, strict=True)
            for index, result in zip(own, results, strict=True)
        }
        return [found[index] for index in range(len(tasks))]

    async def close(self) -> None:
        """Kill every worker with its child processes."""
        for pool in self._pools.values():
            await pool.close()

    @property
    def pids(self) -> list[int]:
        """The process ids of all workers."""
        return [pid for pool in self._pools.values() for pid in pool.pids]

    def _pool(self, memory: int) -> WorkerPool:
        if memory not in self._pools:  # for built-in graders, which need no code to be loaded
            self._pools[memory] = WorkerPool(max_size=self._max_size, limits=WorkerLimits(memory=memory))
        return self._pools[memory]


def _joined(errors: list[ConfigError]) -> ConfigError:
    if len(errors) == 1:
        return errors[0]
    loading = [error for error in errors if isinstance(error, LoadError)]
    if len(loading) == len(errors):
        return LoadError(dict.fromkeys(fault for error in loading for fault in error.faults))
    return ConfigError(dict.fromkeys(problem for error in errors for problem in error.problems))


DEADLINE_S = 5.0
"""Seconds that one evaluation of a built-in may take, without the time that it waits for a worker."""
_MAX_WORKERS = 4
_CLOSING_S = 5.0
_NO_SAMPLE = Sample(id="isolated", input="")


class IsolatedError(GraderError):
    """What a worker reports instead of a result: its type is ``timeout``, ``memory`` or that of the built-in."""

    def __init__(self, info: ErrorInfo) -> None:
        super().__init__(info.message)
        self.type = info.type


class IsolatedRunner:
    """Runs jobs of built-ins that an input could make hang or exhaust the memory, outside of any run.

    Graders that are called directly, previews and the answers of agents use it. It starts with the first job, in a
    thread with an event loop, and ends with the process; a forked process gets workers of its own.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._shared: _SharedPool | None = None

    async def run(self, job: Job) -> list[TaskResult]:
        """The results of the job's tasks, in their order."""
        return await asyncio.wrap_future(self._submit(job))

    def grade(self, kind: str, config: Mapping[str, Any], ctx: GradeContext) -> GradeResult:
        """The result of a built-in grader; blocks. Raises `IsolatedError`."""
        task = Task("builtin-grader", kind, ctx.submission, config=dict(config), timeout=DEADLINE_S)
        result = _checked(self._submit(Job(ctx.sample, (task,), ctx.response)).result()[0])
        if result.result is None:
            raise TypeError(f"the worker returned no result for the grader {kind}")
        return result.result

    def extract(self, kind: str, config: Mapping[str, Any], response: Response) -> str:
        """The text that a built-in extractor finds; blocks. Raises `IsolatedError`."""
        task = Task("builtin-extractor", kind, config=dict(config), timeout=DEADLINE_S)
        return _checked(self._submit(Job(_NO_SAMPLE, (task,), response)).result()[0]).text or ""

    async def search(self, path: str, data: object) -> Any:
        """What a JMESPath finds in the data; None for nothing. Raises `IsolatedError`."""
        task = Task("builtin-search", path, config={"data": data}, timeout=DEADLINE_S)
        (result,) = await self.run(Job(_NO_SAMPLE, (task,)))
        return msgspec.json.decode(_checked(result).text or "null")

    def _submit(self, job: Job) -> Future[list[TaskResult]]:
        if sys.platform == "win32":
            raise NeedsIsolationError("this may take too long, and worker processes need Linux or macOS; use WSL")
        with self._lock:
            if self._shared is None or self._shared.pid != os.getpid():
                self._shared = _SharedPool()
                atexit.register(self._shared.close)
            shared = self._shared
        return asyncio.run_coroutine_threadsafe(shared.run(job), shared.loop)


ISOLATED = IsolatedRunner()


def _checked(result: TaskResult) -> TaskResult:
    if result.error is not None:
        raise IsolatedError(result.error)
    return result


class _SharedPool:
    """A worker pool with a thread for its event loop."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._pool: WorkerPool | None = None
        # the workers end when the thread that started them does, which is when this process does
        Thread(target=self.loop.run_forever, name="gradeline-isolated", daemon=True).start()

    async def run(self, job: Job) -> list[TaskResult]:
        if self._pool is None:
            self._pool = WorkerPool(size=1, max_size=min(_MAX_WORKERS, os.cpu_count() or 1))
        pool = self._pool
        try:
            return await pool.run(job)
        except (ConfigError, OSError, RuntimeError) as error:  # the next job may find more memory, or more processes
            if self._pool is pool:
                self._pool = None
                await pool.close()
            failed = ErrorInfo("crashed", f"could not start a worker process: {error}", Fault.INFRASTRUCTURE)
            return [TaskResult(error=failed)] * len(job.tasks)

    def close(self) -> None:
        if self._pool is not None and self.pid == os.getpid():
            closing = asyncio.run_coroutine_threadsafe(self._pool.close(), self.loop)
            with suppress(TimeoutError):
                closing.result(_CLOSING_S)
