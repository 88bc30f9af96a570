"""People's functions in this process: they share its fate, and keep the outcomes that workers give."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from gradeline.api.threads import call_in_thread
from gradeline.errors import AgentError, grade_policy
from gradeline.model import ErrorInfo, GradeContext, GraderProtocol
from gradeline.model.context import copy_context, copy_sample, is_own_class
from gradeline.model.grade import is_field_error
from gradeline.usercode.function_calls import TargetFunction, Conversation
from gradeline.usercode.loader import TARGET
from gradeline.usercode.protocol import Job, Task, TaskResult
from gradeline.usercode.output import captured_output
from gradeline.usercode.pools import CodeRunner
from gradeline.usercode.function_calls import checked, named
from gradeline.usercode.worker import describe

Function = Callable[..., Any]

Given = Function | GraderProtocol
"""A function as its decorator wants it, or a grader that is an object."""


class CallablePool:
    """Runs the functions it was given, and leaves everything else to the workers of another pool.

    A coroutine function runs on the loop of the run, any other in a thread. A call past its deadline is given up;
    a thread cannot be ended, so what it does goes on.
    """

    def __init__(self, functions: Mapping[tuple[str, str], Given], workers: CodeRunner) -> None:
        """``functions`` are found by role and reference."""
        self._functions = functions
        self._others = workers
        self._folders = (str(Path.cwd()),)

    async def run(self, job: Job) -> list[TaskResult]:
        others = [index for index, task in enumerate(job.tasks) if not self._has(task)]
        found = dict(zip(others, await self._others.run(job.part(others)), strict=True)) if others else {}
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
        with captured_output() as printed:
            result = await (self._answer(job, task) if task.role == TARGET else self._grade(job, task, text))
        latency_ms = (perf_counter() - started) * 1000
        return msgspec.structs.replace(result, latency_ms=latency_ms, output=printed.text())

    async def _answer(self, job: Job, task: Task) -> TaskResult:
        """The response of the function to the case; each turn has the task's time for itself."""
        function = self._function(task)
        talk = Conversation(
            TargetFunction(function, task.reference, task.config.get("model"), self._folders), job.sample
        )
        try:
            while not talk.done:
                began = perf_counter()
                value = await self._in_time(task, function, talk.call)
                talk.take(value, (perf_counter() - began) * 1000)
            return TaskResult(response=talk.response())
        except _TooLateError as late:
            return TaskResult(error=talk.failure(AgentError("timeout", str(late))))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if _cancelled(error):
                raise
            return TaskResult(error=talk.failure(error))

    async def _grade(self, job: Job, task: Task, text: str) -> TaskResult:
        given = self._functions[task.role, task.reference]
        function = self._function(task)
        if isinstance(given, GraderProtocol):
            ctx = GradeContext(job.sample, text, job.response)
            call = partial(function, ctx if is_own_class(type(given)) else copy_context(ctx))
        else:
            call = partial(function, copy_sample(job.sample), text)
        try:
            return TaskResult(checked(await self._in_time(task, function, call), task.reference))
        except _TooLateError as late:
            kind = "timeout"
            return TaskResult(error=ErrorInfo(kind, str(late), grade_policy(kind).fault))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if _cancelled(error):
                raise
            if isinstance(error, ValueError) and is_field_error(error):
                error = named(error, given, task.reference)
            return TaskResult(error=describe(error))

    def _function(self, task: Task) -> Function:
        given = self._functions[task.role, task.reference]
        return given.grade if isinstance(given, GraderProtocol) else given

    async def _in_time(self, task: Task, function: Function, call: Callable[[], Any]) -> Any:
        """The value of a call; `_TooLateError` past its deadline."""
        try:
            async with asyncio.timeout(task.timeout) as deadline:
                value = call() if _is_async(function) else await call_in_thread(call)
                return await value if inspect.isawaitable(value) else value
        except TimeoutError:
            if not deadline.expired():
                raise
            raise _TooLateError(f"{task.reference} took longer than {task.timeout:g} s") from None


class _TooLateError(Exception):
    """A call was given up at its deadline."""


def _cancelled(error: BaseException) -> bool:
    """Whether the run is being cancelled, and the function did not raise this by itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)


def _is_async(function: Function) -> bool:
    call = inspect.getattr_static(type(function), "__call__", None)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
