"""An agent that is a Python function: in a worker process, or in this one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from time import perf_counter
from types import CoroutineType
from typing import Annotated, Any, Literal

from gradeline.errors import AgentError, ConfigError, Problem
from gradeline.model import Response, Sample, Trajectory, described
from gradeline.model.fingerprint import fingerprint
from gradeline.model.response import total_usage
from gradeline.model.text import is_clean
from gradeline.targets.base import DeclaredTarget, TargetConfig
from gradeline.usercode.calling import as_response, call_target
from gradeline.usercode.messages import Job, Task
from gradeline.usercode.pool import WorkerPool


class PythonConfig(TargetConfig, frozen=True, kw_only=True):
    """Options of `PythonTarget`."""

    function: Annotated[str, described("file.py:name or module:name, beside the suite.")]
    isolation: Annotated[
        Literal["worker", "none"],
        described("worker: in a process that is killed at its deadline. none: in this one, at its own risk."),
    ] = "worker"
    timeout: Annotated[float, described("Seconds one call may take, in a worker.", gt=0)] = 30.0


class PythonTarget(DeclaredTarget[PythonConfig]):
    """Calls a Python function with the input; a parameter named ``sample`` gets the whole sample, one named
    ``model`` the model.

    It gives back the answer's text, or a `Response`. A list of inputs is one call a turn.
    """

    kind = "python"
    name = "Python function"
    sees_expectation = True

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        secrets: Collection[str] = (),
        *,
        pool: WorkerPool | None = None,
        function: Callable[..., Any] | None = None,
        code: str = "",
    ) -> None:
        """``pool`` has loaded the function; ``function`` is it, for ``isolation: none``.

        ``code`` is the fingerprint of its code, which decides the answers as much as the options do.
        """
        super().__init__(config, secrets)
        self._code = code
        self._pool = pool
        self._function = function

    @cached_property
    def fingerprint(self) -> str:
        own = super().fingerprint
        return fingerprint(own, self._code) if self._code else own

    async def open(self) -> None:
        if self._pool is None and self._function is None:
            raise ConfigError(Problem("function", f"{self.options.function} was not loaded"), self.kind)

    async def call(self, sample: Sample) -> Response:
        if not isinstance(sample.input, list):
            here = self._function
            return await (self._turn(sample, sample.input) if here is None else self._here(here, sample, sample.input))
        answers = [await self._turn(sample, turn) for turn in sample.input]
        steps = tuple(tuple(answer.steps.messages()) for answer in answers)
        usage = total_usage(answer.usage for answer in answers)
        return Response(text=answers[-1].text if answers else "", trajectory=Trajectory(steps), usage=usage)

    async def _turn(self, sample: Sample, text: str) -> Response:
        if self._function is not None:
            return await self._here(self._function, sample, text)
        config = {} if self.model is None else {"model": self.model}
        task = Task("target", self.options.function, text, config=config, timeout=self.options.timeout)
        assert self._pool is not None  # noqa: S101 - `open` saw to it
        (result,) = await self._pool.run(Job(sample, (task,)))
        if result.response is not None:
            return result.response
        error = result.error
        kind = "timeout" if error is not None and error.type == "timeout" else "bad_response"
        raise AgentError(kind, f"{error.type}: {error.message}" if error is not None else "no answer")

    async def _here(self, function: Callable[..., Any], sample: Sample, text: str) -> Response:
        began = perf_counter()
        try:
            value = call_target(function, sample, text, self.model)
            if isinstance(value, CoroutineType) or (not isinstance(value, str) and inspect.isawaitable(value)):
                value = await value
            if isinstance(value, str) and is_clean(value):
                return Response(text=value, latency_ms=(perf_counter() - began) * 1000)
            return as_response(value, self.options.function)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise AgentError("bad_response", f"{type(error).__name__}: {error}") from error
