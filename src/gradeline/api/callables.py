"""People's functions in this process: they share its fate, and keep the outcomes that workers give."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import msgspec

from gradeline.api.threads import call_in_thread
from gradeline.errors import grade_policy
from gradeline.model import ErrorInfo, GradeContext, Grader
from gradeline.usercode.calling import as_response, call_target
from gradeline.usercode.loader import TARGET
from gradeline.usercode.messages import Job, Task, TaskResult
from gradeline.usercode.pool import WorkerPool
from gradeline.usercode.worker import checked, describe

Function = Callable[..., Any]

Given = Function | Grader
"""A function as its decorator wants it, or a grader that is an object."""


class CallablePool(WorkerPool):
    """Runs the functions it was given, and leaves everything else to the workers of another pool.

    A coroutine function runs on the loop of the run, any other in a thread. A call past its deadline is given up;
    a thread cannot be ended, so what it does goes on.
    """

    def __init__(self, functions: Mapping[tuple[str, str], Given], workers: WorkerPool) -> None:
        """``functions`` are found by role and reference."""
        super().__init__()
        self._functions = functions
        self._others = workers

    async def run(self, job: Job) -> list[TaskResult]:
        others = [index for index, task in enumerate(job.tasks) if not self._has(task)]
        found = dict(zip(others, await self._others.run(_part(job, others)), strict=True)) if others else {}
        for index, task in enumerate(job.tasks):
            if index in found:
                continue
            text = task.submission if task.extract is None else found[task.extract].text
            # where nothing was extracted, that error is the one that counts
            found[index] = TaskResult() if text is None else await self._call(job, task, text)
        return [found[index] for index in range(len(job.tasks))]

    def _has(self, task: Task) -> bool:
        return (task.role, task.reference) in self._functions

    async def _call(self, job: Job, task: Task, text: str) -> TaskResult:
        started = perf_counter()
        result = TaskResult()
        try:
            async with asyncio.timeout(task.timeout) as deadline:
                value = await self._value(job, task, text)
            if task.role == TARGET:
                result = TaskResult(response=as_response(value, task.reference))
            else:
                result = TaskResult(checked(value, task.reference))
        except (Exception, SystemExit) as error:
            late = isinstance(error, TimeoutError) and deadline.expired()
            result = TaskResult(error=_too_late(task) if late else describe(error))
        return msgspec.structs.replace(result, latency_ms=(perf_counter() - started) * 1000)

    async def _value(self, job: Job, task: Task, text: str) -> Any:
        given = self._functions[task.role, task.reference]
        function: Function = given.grade if isinstance(given, Grader) else given
        if task.role == TARGET:
            call = partial(call_target, function, job.sample, text, task.config.get("model"))
        elif isinstance(given, Grader):
            call = partial(function, GradeContext(job.sample, text, job.response))
        else:
            call = partial(function, job.sample, text)
        value = call() if _is_async(function) else await call_in_thread(call)
        return await value if inspect.isawaitable(value) else value


def _is_async(function: Function) -> bool:
    call = inspect.getattr_static(type(function), "__call__", None)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _part(job: Job, indices: list[int]) -> Job:
    """The job with these tasks alone. What a task of theirs reads from is among them."""
    places = {index: place for place, index in enumerate(indices)}
    tasks = (job.tasks[index] for index in indices)
    moved = (
        task if task.extract is None else msgspec.structs.replace(task, extract=places[task.extract]) for task in tasks
    )
    return Job(job.sample, tuple(moved), job.response)


def _too_late(task: Task) -> ErrorInfo:
    kind = "timeout"
    return ErrorInfo(kind, f"{task.reference} took longer than {task.timeout:g} s", grade_policy(kind).fault)
