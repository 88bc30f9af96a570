"""A worker process: runs user code, one task after the other, and answers in frames.

It is started with the descriptors of its pipes. Standard output and error belong to the user's code: they are real
descriptors of a file, from which each call's output is taken.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Raw

from gradeline.errors import BadReplyError, Fault, GraderError, grade_policy
from gradeline.model import (
    ErrorInfo,
    GradeContext,
    GradeResult,
    Response,
    canonical_json,
    clean_text,
    quote,
)
from gradeline.model.context import copy_response, copy_sample
from gradeline.model.text import user_traceback
from gradeline.parsing.isolation import trust_process
from gradeline.usercode import protocol
from gradeline.usercode.function_calls import Conversation, TargetFunction, checked, checked_call
from gradeline.usercode.loader import TARGET, CodeSpec, LoadedFunctions, Manifest, load
from gradeline.usercode.output import Output
from gradeline.usercode.protocol import (
    CodeLoaded,
    EncodedBatchResults,
    Job,
    Loading,
    Position,
    Progress,
    RunBatch,
    SetupDone,
    Task,
    TaskResult,
)
from gradeline.usercode.suite_files import user_folders

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

MAX_RESULT = 8 * 1024 * 1024
"""The largest result a call may give back."""
_FLUSH_AFTER = 0.005
"""Results are told at the end of a batch, or after so many seconds."""


class Worker:
    """Loads a suite's code and runs tasks with it."""

    def __init__(self, progress: Progress, reply: Callable[[object], None]) -> None:
        self._progress = progress
        self._reply = reply
        self._pid = os.getpid()
        self._output = Output(os.dup(1), progress)  # the user's code may close or replace its own
        self._streams = (sys.stdout, sys.stderr)
        self._loaded: LoadedFunctions | None = None
        self._folders: tuple[str, ...] = ()
        self._loop: AbstractEventLoop | None = None
        self._builtins: dict[bytes, Any] = {}
        self._agents: dict[tuple[str, str | None], TargetFunction] = {}
        for stream in self._streams:
            if isinstance(stream, io.TextIOWrapper):
                # whole lines are written at once, so that a crash loses none
                stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)

    def boot(self, spec: CodeSpec | None) -> None:
        if spec is None:
            self._reply(CodeLoaded(Manifest((), ())))
            return
        from gradeline import compat

        compat.install()
        # by its second and size alone Python would take an edited file for the one it has compiled
        sys.dont_write_bytecode = True
        with _exits_noted(self._progress):
            self._loaded = load(spec, self._progress.write_loading)
        self._folders = user_folders(spec.folder)
        self._stay_alone()
        self._printed()
        self._reply(CodeLoaded(self._loaded.manifest))

    def set_up(self, suite: dict[str, Any]) -> None:
        error = None
        self._progress.write(0, 0, 0, monotonic())
        try:
            if self._loaded is not None and self._loaded.setup is not None:
                self._finish(_call_setup(self._loaded.setup, suite))
        except BaseException as fault:
            error = describe(fault)
        self._stay_alone()
        self._progress.write(-1, -1, -1, 0.0)
        self._reply(SetupDone(error, self._printed()))

    def run(self, batch: RunBatch) -> None:
        done: list[list[Raw]] = []
        flushed = perf_counter()
        for index, job in enumerate(batch.jobs):
            done.append(self._run_job(batch.id, index, job))
            if perf_counter() - flushed > _FLUSH_AFTER:
                self._reply(EncodedBatchResults(batch.id, done))
                done, flushed = [], perf_counter()
        self._progress.write(-1, -1, -1, 0.0)
        if done or not batch.jobs:
            self._reply(EncodedBatchResults(batch.id, done))

    def _run_job(self, batch: int, index: int, job: Job) -> list[Raw]:
        encoded: list[Raw] = []
        texts: list[str | None] = []
        for number, task in enumerate(job.tasks):
            self._progress.write(batch, index, number, monotonic())
            if task.role == TARGET:
                result = self._answer(job, task, Position(batch, index, number, 0.0))
            else:
                result = self._run_task(job if len(job.tasks) == 1 else _own_copy(job), task, texts)
            texts.append(result.text)
            try:
                body = protocol.encode(result)
            except Exception as fault:  # an integer past 64 bits: the pipe's format has no place for it
                error = describe(BadReplyError(f"{task.reference} returned what cannot be sent: {fault}"))
                body = protocol.encode(TaskResult(error=error))
            if len(body) > MAX_RESULT:
                message = f"{task.reference} gave back {len(body):,} bytes; at most {MAX_RESULT:,} are kept"
                body = protocol.encode(TaskResult(error=ErrorInfo("too_large", message, Fault.GRADER)))
            encoded.append(Raw(body))
        return encoded

    def _answer(self, job: Job, task: Task, position: Position) -> TaskResult:
        """The response of a target to a case, all turns; each turn has the task's time for itself."""
        error: ErrorInfo | None = None
        response: Response | None = None
        talk: Conversation | None = None
        began = perf_counter()
        try:
            talk = Conversation(self._agent(task), job.sample)
            while not talk.done:
                if talk.turn:
                    self._progress.write(*position[:3], monotonic(), talk.turn)
                started = perf_counter()
                value = self._finish(talk.call())
                talk.take(value, (perf_counter() - started) * 1000)
            response = talk.response()
        except BaseException as fault:
            error = describe(fault) if talk is None else talk.failure(fault)
        self._stay_alone()
        latency_ms = (perf_counter() - began) * 1000
        return TaskResult(None, None, error, self._printed(), latency_ms, response)

    def _run_task(self, job: Job, task: Task, texts: list[str | None]) -> TaskResult:
        started = perf_counter()
        result: GradeResult | None = None
        text: str | None = None
        error: ErrorInfo | None = None
        try:
            if task.role == "extractor":
                text = self._extract(task, job.response)
            elif task.role == "reward_composer":
                result = self._reward(task, job)
            elif task.role == "agent_factory":
                text = self._make_agent(task, job)
            elif task.role == "builtin-extractor":
                text = self._builtin(task).extract(job.response or Response(text=""))
            elif task.role == "builtin-search":
                text = _search(task)
            else:
                submission = task.submission if task.extract is None else texts[task.extract]
                if submission is None:
                    raise LookupError(f"the extractor of {task.reference} failed, so there is nothing to grade")
                result = self._grade(task, job, submission)
        except BaseException as fault:
            error = describe(fault)
            if isinstance(fault, MemoryError) and task.role.startswith("builtin-"):
                error = ErrorInfo("memory", f"{task.reference} ran out of memory", Fault.GRADER)
        self._stay_alone()
        latency_ms = (perf_counter() - started) * 1000
        return TaskResult(result, text, error, self._printed(), latency_ms)

    def _grade(self, task: Task, job: Job, submission: str) -> GradeResult:
        if task.role == "builtin-grader":
            result: GradeResult = self._builtin(task).grade(GradeContext(job.sample, submission, job.response))
            return result
        function = self._function(task)
        return checked_call(lambda: self._finish(function(job.sample, submission)), function, task.reference)

    def _reward(self, task: Task, job: Job) -> GradeResult:
        from gradeline.compat.stand_ins import argument_function

        grades, submissions = task.config["grades"], task.config["submissions"]
        context = argument_function("reward_context")(job.sample, grades, submissions, job.response)
        reward = argument_function("reward_of")(self._finish(self._function(task)(context)), task.reference)
        return checked(reward, task.reference)

    def _make_agent(self, task: Task, job: Job) -> str:
        from gradeline.usercode.agent_factories import make_agent  # only suites for letta have one

        made: str = self._finish(make_agent(self._function(task), job.sample, task.config, task.reference))
        return made

    def _builtin(self, task: Task) -> Any:
        """A grader or extractor of ours, made once."""
        key = canonical_json((task.role, task.reference, task.config))
        if key not in self._builtins:
            from gradeline import extractors, graders  # most workers run none of ours

            create = graders.create if task.role == "builtin-grader" else extractors.create
            self._builtins[key] = create(task.reference, task.config)
        return self._builtins[key]

    def _extract(self, task: Task, response: Response | None) -> str:
        from gradeline.compat.stand_ins import argument_function

        function = self._function(task)
        trajectory, state = argument_function("trajectory_and_state")(response)
        arguments: list[Any] = [trajectory, dict(task.config)]
        if self._parameters(task) > 2:
            arguments.append(state)
        text = self._finish(function(*arguments))
        if text is None:
            return ""
        if not isinstance(text, str):
            raise BadReplyError(f"{task.reference} returned {quote(text)} ({type(text).__name__}); return a text (str)")
        return clean_text(text).text

    def _function(self, task: Task) -> Callable[..., Any]:
        if self._loaded is None:
            raise LookupError(f"no code was loaded, so there is no {task.role} {task.reference!r}")
        return self._loaded.function(task.role, task.reference)

    def _agent(self, task: Task) -> TargetFunction:
        key = (task.reference, task.config.get("model"))
        found = self._agents.get(key)
        if found is None:
            found = self._agents[key] = TargetFunction(self._function(task), *key, self._folders)
        return found

    def _parameters(self, task: Task) -> int:
        assert self._loaded is not None  # noqa: S101 - `_function` came first
        for entry in self._loaded.manifest.entries:
            if (entry.role, entry.reference) == (task.role, task.reference):
                return len(entry.parameters)
        return 2

    def _finish(self, value: Any) -> Any:
        """The value of a coroutine; what is none is the value itself."""
        if not hasattr(value, "__await__"):
            return value
        import asyncio  # 40 ms that only asynchronous code needs

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_awaited(value))

    def _printed(self) -> str | None:
        """What the code has printed since the last time."""
        for stream in self._streams:
            with contextlib.suppress(ValueError, OSError):  # the code has closed it
                stream.flush()
        return self._output.take()

    def _stay_alone(self) -> None:
        """A child that user code forked must not go on as a second worker."""
        if os.getpid() != self._pid:
            os._exit(0)


def _own_copy(job: Job) -> Job:
    """For one of several tasks: what its code changes in the sample, the others must not see."""
    return Job(copy_sample(job.sample), job.tasks, None if job.response is None else copy_response(job.response))


def _search(task: Task) -> str:
    from gradeline.extractors.base import compact_json  # most workers run none of ours
    from gradeline.parsing.jmespath import JmesPath

    return compact_json(JmesPath(task.reference).search(task.config["data"]))


@contextlib.contextmanager
def _exits_noted(progress: Progress) -> Iterator[None]:
    """Code that ends the process while it is loaded leaves its place behind."""
    leave, worker = os._exit, os.getpid()

    def noted(status: int) -> NoReturn:
        caller = sys._getframe(1)
        if os.getpid() == worker:
            source = Loading.parse(progress.read_loading()).source
            progress.write_loading(str(Loading(source, f"{caller.f_code.co_filename}:{caller.f_lineno}")))
        leave(status)

    os._exit = noted
    try:
        yield
    finally:
        os._exit = leave
        progress.write_loading("")


async def _awaited(value: Any) -> Any:
    return await value


def _call_setup(function: Callable[..., Any], suite: dict[str, Any]) -> Any:
    import inspect

    from gradeline.compat.stand_ins import argument_function

    names = list(inspect.signature(function).parameters)
    model, client = suite.get("model_handle"), None
    if "client" in names and suite.get("connection") is not None:
        from gradeline.usercode.agent_factories import letta_client  # only suites for letta have one

        client = letta_client(**suite["connection"])
    offered = {
        "suite": argument_function("suite_spec")(suite),
        "client": client,
        "model_handle": model,
        "model_name": model,
    }
    if len(names) == 1 and names[0] not in offered:
        return function(offered["suite"])
    return function(*(offered[name] for name in names if name in offered))


def describe(error: BaseException) -> ErrorInfo:
    """An exception as a record keeps it, whatever its ``__str__`` does."""
    error_type = error.type if isinstance(error, GraderError) else type(error).__name__
    try:
        message = str(error)
    except BaseException:
        message = f"<{type(error).__name__} whose message cannot be shown>"
    return ErrorInfo(
        clean_text(error_type).text,
        clean_text(message[:10_000]).text,
        grade_policy(error_type).fault,
        None if isinstance(error, GraderError) else user_traceback(error),
    )


def _limit(memory: int, engine: int) -> None:
    """Bound what the process may take, keep its descendants in sight, and end it with the engine."""
    import resource

    with contextlib.suppress(OSError, ValueError):  # not every system has every limit
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    faulthandler.enable(file=2)
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal, set_child_subreaper = 1, 36
        prctl = ctypes.CDLL(None).prctl
        prctl(set_child_subreaper, 1, 0, 0, 0)
        prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != engine:  # it was gone before it could be watched
            os._exit(0)


def main(request_fd: int, reply_fd: int, progress_fd: int, memory: int, engine: int) -> None:
    """Serve until the engine closes the pipe."""
    _limit(memory, engine)
    trust_process()
    progress = Progress(progress_fd)
    os.close(progress_fd)

    def reply(message: object) -> None:
        data = memoryview(protocol.frame(message))
        while data:
            data = data[os.write(reply_fd, data) :]

    worker = Worker(progress, reply)
    frames = protocol.FrameBuffer()
    while True:
        data = os.read(request_fd, 1 << 20)
        if not data:
            os._exit(0)
        for body in frames.feed(data):
            request = protocol.decode_request(body)
            if isinstance(request, protocol.RunBatch):
                worker.run(request)
            elif isinstance(request, protocol.LoadCode):
                worker.boot(request.spec)
            else:
                worker.set_up(request.suite)
