"""Functions and graders that a suite in Python holds as objects: they run in this process, without isolation."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from types import CodeType, FunctionType, MethodType
from typing import Any

import msgspec

from gradeline.engine.lifecycle import call_in_thread
from gradeline.errors import AgentError, DataError, grade_policy
from gradeline.model import ErrorInfo, GradeContext, GraderProtocol, clean_data, fingerprint
from gradeline.model.context import copy_context, is_own_class
from gradeline.model.grade import grader_error, is_field_error
from gradeline.model.secrets import is_secret_name
from gradeline.usercode.function_calls import (
    Conversation,
    TargetFunction,
    call_with_context,
    validated_grade,
    with_grader_location,
)
from gradeline.usercode.loader import TARGET
from gradeline.usercode.output import captured_output
from gradeline.usercode.pools import CodeRunner
from gradeline.usercode.protocol import Job, Task, TaskResult

Function = Callable[..., Any]


class InProcessFunctions:
    """The functions and graders of a suite, by role and reference; see `gradeline.engine.components.InProcessCode`."""

    def __init__(self, functions: Mapping[tuple[str, str], Function | GraderProtocol]) -> None:
        self._functions = functions

    def __contains__(self, code: tuple[str, str]) -> bool:
        return code in self._functions

    def fingerprint(self, role: str, reference: str) -> str:
        code = self._functions[role, reference]
        return code.fingerprint if isinstance(code, GraderProtocol) else code_fingerprint(role, reference, code)

    def runner(self, workers: CodeRunner) -> CodeRunner:
        return CallablePool(self._functions, workers)


class CallablePool:
    """Runs these functions in this process, and all other code in worker processes.

    A coroutine function runs on the loop of the run, any other in a thread. A call past its deadline is abandoned, but
    its thread cannot be ended.
    """

    def __init__(self, functions: Mapping[tuple[str, str], Function | GraderProtocol], workers: CodeRunner) -> None:
        """``functions`` are found by role and reference."""
        self._functions = functions
        self._workers = workers
        self._folders = (str(Path.cwd()),)

    async def run(self, job: Job) -> list[TaskResult]:
        others = [index for index, task in enumerate(job.tasks) if not self._has(task)]
        found = dict(zip(others, await self._workers.run(job.part(others)), strict=True)) if others else {}
        for index, task in enumerate(job.tasks):
            if index in found:
                continue
            text = task.submission if task.extract is None else found[task.extract].text
            # if nothing was extracted, that error is reported
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
        """The response of the function to the case; the timeout holds for each turn."""
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
        code = self._functions[task.role, task.reference]
        function = self._function(task)
        ctx = GradeContext(job.sample, text, job.response)
        if not isinstance(code, GraderProtocol):
            call = partial(call_with_context, function, copy_context(ctx))
        else:
            call = partial(function, ctx if is_own_class(type(code)) else copy_context(ctx))
        try:
            return TaskResult(validated_grade(await self._in_time(task, function, call), task.reference))
        except _TooLateError as late:
            kind = "timeout"
            return TaskResult(error=ErrorInfo(kind, str(late), grade_policy(kind).fault))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if _cancelled(error):
                raise
            if isinstance(error, ValueError) and is_field_error(error):
                error = with_grader_location(error, code, task.reference)
            return TaskResult(error=grader_error(error))

    def _function(self, task: Task) -> Function:
        code = self._functions[task.role, task.reference]
        return code.grade if isinstance(code, GraderProtocol) else code

    async def _in_time(self, task: Task, function: Function, call: Callable[[], Any]) -> Any:
        """The value of a call; `_TooLateError` after its timeout."""
        try:
            async with asyncio.timeout(task.timeout) as deadline:
                value = call() if _is_async(function) else await call_in_thread(call)
                return await value if inspect.isawaitable(value) else value
        except TimeoutError:
            if not deadline.expired():
                raise
            raise _TooLateError(f"{task.reference} took longer than {task.timeout:g} s") from None


class _TooLateError(Exception):
    """A call was abandoned at its timeout."""


def _cancelled(error: BaseException) -> bool:
    """True if the run is being cancelled, as opposed to a function that raises `CancelledError` itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)


def _is_async(function: Function) -> bool:
    call = inspect.getattr_static(type(function), "__call__", None)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


_MAX_DEPTH = 8


def code_fingerprint(role: str, name: str, function: Function) -> str:
    """A digest of the file that defines a function, or of its source if there is no file, and of the values it holds.

    These are default values, closures, the arguments of a `functools.partial` and the attributes of a callable object,
    without those that are secret by their name.
    """
    return fingerprint("given", role, name, _parts(function, 0))


def shown_name(function: object) -> str:
    """The name of a function or of the class of a callable object."""
    if isinstance(function, partial):
        return shown_name(function.func)
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def _parts(value: object, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, partial):
        return ["partial", *(_parts(part, depth + 1) for part in (value.func, list(value.args), value.keywords))]
    if isinstance(value, MethodType):
        return ["method", _parts(value.__func__, depth + 1), _parts(value.__self__, depth + 1)]
    if isinstance(value, FunctionType):
        return ["function", value.__qualname__, _source(value), _stored_values(value, depth)]
    wrapped = inspect.getattr_static(value, "__wrapped__", None)
    if isinstance(wrapped, FunctionType):
        return ["wrapped", type(value).__qualname__, _parts(wrapped, depth + 1)]
    if isinstance(value, list | tuple):
        return [_parts(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {
            str(key): _parts(item, depth + 1)
            for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))
            if not is_secret_name(str(key))
        }
    try:
        return clean_data(value)
    except DataError:
        return _object(value, depth)


def _object(value: object, depth: int) -> Any:
    """The class and the attributes of a callable object; only the class of any other."""
    kind = value if isinstance(value, type) else type(value)
    named = [kind.__module__, kind.__qualname__]
    call = vars(kind).get("__call__") if callable(value) else None
    if not isinstance(call, FunctionType):
        return named
    return [*named, _source(call), _parts(getattr(value, "__dict__", {}), depth + 1)]


def _stored_values(function: FunctionType, depth: int) -> Any:
    names = function.__code__.co_freevars
    cells = {name: _content(cell) for name, cell in zip(names, function.__closure__ or (), strict=True)}
    inner = getattr(function, "__wrapped__", None)
    values = {"closure": cells, "defaults": function.__defaults__ or (), "keywords": function.__kwdefaults__ or {}}
    return _parts({**values, "wrapped": inner}, depth + 1)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # a function that is still being defined
        return None


def _source(function: FunctionType) -> str:
    """The file that defines it; in a notebook its source; if there is neither, its byte code."""
    file = Path(function.__code__.co_filename)
    try:
        content = file.read_bytes()
    except (OSError, ValueError):
        try:
            content = inspect.getsource(function).encode()
        except (OSError, TypeError):
            content = repr(_compiled(function.__code__)).encode()
    return sha256(content).hexdigest()


def _compiled(code: CodeType) -> list[Any]:
    constants = [_compiled(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return [code.co_code.hex(), code.co_names, code.co_varnames, constants]


def _constant(value: object) -> object:
    """Sets have no order."""
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value
