"""An agent that is a Python function, called in a worker process or in this one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cached_property
from time import perf_counter
from types import CoroutineType
from typing import Annotated, Any, Literal

from msgspec.structs import replace

from gradeline.errors import AgentError, ConfigError, Problem
from gradeline.model import Response, Sample, described
from gradeline.model.fingerprint import fingerprint
from gradeline.targets.base import CodeOption, DeclaredTarget, TargetConfig
from gradeline.usercode.function_calls import Conversation, ParameterError, TargetFunction
from gradeline.usercode.loader import TARGET
from gradeline.usercode.output import OUTPUT_CAPTURE, captured_output
from gradeline.usercode.process_control import SIZE_SCHEMA, format_size, target_memory_limit
from gradeline.usercode.protocol import Job, Task
from gradeline.usercode.suite_files import user_folders


class PythonConfig(TargetConfig, frozen=True, kw_only=True):
    """Options of `PythonTarget`."""

    function: Annotated[str, described("Function, file.py:name or module:name, relative to the suite.")]
    isolation: Annotated[
        Literal["worker", "none"],
        described("worker (default): in a process that is killed at its deadline. none: in gradeline's process."),
    ] = "worker"
    timeout: Annotated[float, described("Maximum seconds for one call, in a worker.", gt=0)] = 30.0
    memory: Annotated[
        int | str | None, described("Maximum memory of its process, such as 512MB or 4GiB (default no limit).")
    ] = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        try:
            target_memory_limit(self.memory)
        except ValueError as error:
            yield Problem("memory", str(error))
        if self.isolation == "none" and self.memory is not None:
            yield Problem("memory", "has no effect with isolation: none; leave it out, or use isolation: worker")

    @classmethod
    def amend_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        memory = schema["properties"]["memory"]
        memory.update(SIZE_SCHEMA)
        return schema


class PythonTarget(DeclaredTarget[PythonConfig]):
    """Calls a Python function once per user turn; arguments are passed by the names of its parameters.

    ``input`` (or a parameter of any other name) is the turn's text, ``messages`` the conversation so far, ``session``
    a dict per case, ``sample`` the whole case, ``model`` the model. A function that only takes ``sample`` is called
    once and returns all turns. It returns a str, a dict, a `Response` or a list of messages.
    """

    kind = "python"
    name = "Python function"
    sees_expectation = True
    pacing = DeclaredTarget.pacing | {"memory"}
    user_code = CodeOption("function", TARGET)

    _agent: TargetFunction | None = None
    """The function, if it is called in this process, while the target is open."""

    @cached_property
    def fingerprint(self) -> str:
        own, code = super().fingerprint, self.context.code
        return fingerprint(own, code) if code else own

    async def open(self) -> None:
        function, folder = self.context.function, self.resources.folder
        if function is None:
            if self.context.pool is None:
                raise ConfigError(Problem("function", f"{self.options.function} was not loaded"), self.kind)
            return
        try:
            folders = () if folder is None else user_folders(folder)
            self._agent = TargetFunction(function, self.options.function, self.model, folders)
        except ParameterError as error:
            raise ConfigError(Problem("function", f"{self.options.function} {error}"), self.kind) from None
        OUTPUT_CAPTURE.install()

    async def close(self) -> None:
        if self._agent is not None:
            self._agent = None
            OUTPUT_CAPTURE.uninstall()

    async def call(self, sample: Sample) -> Response:
        if self._agent is not None:
            return await self._here(self._agent, sample)
        config = {} if self.model is None else {"model": self.model}
        options = self.options
        memory = target_memory_limit(options.memory)
        task = Task(TARGET, options.function, config=config, timeout=options.timeout, memory=memory)
        assert self.context.pool is not None  # noqa: S101 - checked by `open`
        (result,) = await self.context.pool.run(Job(sample, (task,)))
        response, error = result.response, result.error
        if error is not None:
            # workers have their own names for a target's errors
            kind = "bad_response" if error.type == "bad_reply" else error.type
            message = error.message
            if memory and kind == "memory" and "limit" not in message:
                message += f"; its limit is {format_size(memory)}, raise it with memory:"
            raise AgentError(kind, message, traceback=error.traceback, output=result.output)
        if response is None:
            raise AgentError("bad_response", f"{self.options.function} returned no response", output=result.output)
        return response if result.output is None else replace(response, output=self._without_values(result.output))

    async def _here(self, agent: TargetFunction, sample: Sample) -> Response:
        talk = Conversation(agent, sample)
        with captured_output(to_stderr=True, installed=True) as printed:
            try:
                while not talk.done:
                    started = perf_counter()
                    value = talk.call()
                    if isinstance(value, CoroutineType) or (not isinstance(value, str) and inspect.isawaitable(value)):
                        value = await value
                    talk.take(value, (perf_counter() - started) * 1000)
                response = talk.response()
            except (Exception, SystemExit) as error:
                failure = talk.failure(error)
                raise AgentError(
                    failure.type, failure.message, traceback=failure.traceback, output=printed.text()
                ) from error
        output = printed.text()
        return response if output is None else replace(response, output=self._without_values(output))
