"""Worker pools by the memory that their code may take.

A limit holds for a process and all code in it: a target that loads a model of ten gigabytes must not share a process
with graders that may take two. So functions with the same limit share a pool, and others have pools of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from msgspec.structs import replace

from gradeline.errors import ConfigError
from gradeline.usercode.loader import CodeSpec, LoadError, Manifest, Wanted
from gradeline.usercode.memory import GRADER_MEMORY
from gradeline.usercode.messages import Job, TaskResult
from gradeline.usercode.pool import Limits, WorkerPool


class CodeRunner(Protocol):
    """Runs user code: worker processes, or functions of this process."""

    async def run(self, job: Job) -> list[TaskResult]:
        """The results of a job's tasks, in their order."""
        ...


class WorkerPools:
    """Runs each task in a pool with the task's memory limit. Use it with ``async with``; `start` loads the code."""

    def __init__(
        self, spec: CodeSpec | None = None, *, most: int | None = None, on_death: Callable[[str], None] | None = None
    ) -> None:
        """``most`` is the largest number of workers of each pool; ``on_death`` as for `WorkerPool`."""
        self._most = most
        self._pools: dict[int, WorkerPool] = {}
        groups: dict[int, list[Wanted]] = {}
        for wanted in spec.wanted if spec is not None else ():
            groups.setdefault(wanted.memory, []).append(wanted)
        for memory, own in (groups or {GRADER_MEMORY: []}).items():
            part = None if spec is None else replace(spec, wanted=tuple(own))
            if part is not None and self._pools:
                part = replace(part, reserved=())  # one report of them is enough
            self._pools[memory] = WorkerPool(part, most=most, limits=Limits(memory=memory), on_death=on_death)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> Manifest:
        """Load the code; `ConfigError` names everything that is wrong with it, whichever pool it is of."""
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
        """Call the setup function, once, in one worker; gives what it printed. `ConfigError` where it fails."""
        return await next(iter(self._pools.values())).set_up(suite)

    async def run(self, job: Job) -> list[TaskResult]:
        """The results of a job's tasks, in their order. A task runs where the one that it reads from does."""
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
        """End every worker and whatever they started."""
        for pool in self._pools.values():
            await pool.close()

    @property
    def pids(self) -> list[int]:
        """The worker processes that live."""
        return [pid for pool in self._pools.values() for pid in pool.pids]

    def _pool(self, memory: int) -> WorkerPool:
        if memory not in self._pools:  # for graders of ours, which need no code to be loaded
            self._pools[memory] = WorkerPool(most=self._most, limits=Limits(memory=memory))
        return self._pools[memory]


def _joined(errors: list[ConfigError]) -> ConfigError:
    if len(errors) == 1:
        return errors[0]
    loading = [error for error in errors if isinstance(error, LoadError)]
    if len(loading) == len(errors):
        return LoadError(dict.fromkeys(fault for error in loading for fault in error.faults))
    return ConfigError(dict.fromkeys(problem for error in errors for problem in error.problems))
