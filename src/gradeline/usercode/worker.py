"""A worker process: runs user code, one task after another, and replies in frames.

It gets the file descriptors of its pipes as arguments. Standard output and error belong to user code: they are
descriptors of a file, from which the output of each call is read.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Raw

from gradeline.errors import BadReplyError, Fault
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
from gradeline.model.grade import grader_error
from gradeline.parsing.isolation import trust_process
from gradeline.usercode import protocol
from gradeline.usercode.function_calls import (
    Conversation,
    TargetFunction,
    call_grader,
    call_with_context,
    validated_grade,
)
from gradeline.usercode.loader import TARGET, CodeSpec, LoadedFunctions, Manifest, load
from gradeline.usercode.output import OutputFile
from gradeline.usercode.process_control import limit_worker
from gradeline.usercode.protocol import (
    CodeLoaded,
    EncodedBatchResults,
    Job,
    LoadingPosition,
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
"""Maximum size of an encoded result in bytes."""
_FLUSH_SECONDS = 0.005
"""Seconds after which finished results of a batch are sent before its end."""


class Worker:
    """Loads a suite's code and runs tasks with it."""

    def __init__(self, progress: Progress, reply: Callable[[object], None]) -> None:
        self._progress = progress
        self._reply = reply
        self._pid = os.getpid()
        self._output = OutputFile(os.dup(1), progress)  # user code may close or replace its own descriptors
        self._streams = (sys.stdout, sys.stderr)
        self._loaded: LoadedFunctions | None = None
        self._folders: tuple[str, ...] = ()
        self._loop: AbstractEventLoop | None = None
        self._builtins: dict[bytes, Any] = {}
        self._agents: dict[tuple[str, str | None], TargetFunction] = {}
        for stream in self._streams:
            if isinstance(stream, io.TextIOWrapper):
                # line buffering, so that a crash loses no whole line
                stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)

    def load_code(self, spec: CodeSpec | None) -> None:
        if spec is None:
            self._reply(CodeLoaded(Manifest((), ())))
            return
        from gradeline import compat

        compat.install()
        # Python compares only size and seconds with the compiled file, so it could miss a quick edit
        sys.dont_write_bytecode = True
        with _recorded_exits(self._progress):
            self._loaded = load(spec, self._progress.write_loading)
        self._folders = user_folders(spec.folder)
        self._exit_if_forked()
        self._take_output()
        self._reply(CodeLoaded(self._loaded.manifest))

    def run_setup(self, suite: dict[str, Any]) -> None:
        error = None
        self._progress.write(0, 0, 0, monotonic())
        try:
            if self._loaded is not None and self._loaded.setup is not None:
                self._finish(_call_setup_function(self._loaded.setup, suite))
        except BaseException as fault:
            error = grader_error(fault)
        self._exit_if_forked()
        self._progress.write(-1, -1, -1, 0.0)
        self._reply(SetupDone(error, self._take_output()))

    def run_batch(self, batch: RunBatch) -> None:
        done: list[list[Raw]] = []
        flushed = perf_counter()
        for index, job in enumerate(batch.jobs):
            done.append(self._run_job(batch.id, index, job))
            if perf_counter() - flushed > _FLUSH_SECONDS:
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
                result = self._run_target(job, task, Position(batch, index, number, 0.0))
            else:
                result = self._run_task(job if len(job.tasks) == 1 else _copy_job(job), task, texts)
            texts.append(result.text)
            try:
                body = protocol.encode(result)
            except Exception as fault:  # msgpack cannot encode an integer of more than 64 bits
                error = grader_error(BadReplyError(f"{task.reference} returned a value that cannot be sent: {fault}"))
                body = protocol.encode(TaskResult(error=error))
            if len(body) > MAX_RESULT:
                message = f"{task.reference} returned {len(body):,} bytes; at most {MAX_RESULT:,} are stored"
                body = protocol.encode(TaskResult(error=ErrorInfo("too_large", message, Fault.GRADER)))
            encoded.append(Raw(body))
        return encoded

    def _run_target(self, job: Job, task: Task, position: Position) -> TaskResult:
        """The response of a target to all turns of a case; the task's time limit holds for each turn."""
        error: ErrorInfo | None = None
        response: Response | None = None
        conversation: Conversation | None = None
        began = perf_counter()
        try:
            conversation = Conversation(self._agent(task), job.sample)
            while not conversation.done:
                if conversation.turn:
                    self._progress.write(*position[:3], monotonic(), conversation.turn)
                started = perf_counter()
                value = self._finish(conversation.call())
                conversation.take(value, (perf_counter() - started) * 1000)
            response = conversation.response()
        except BaseException as fault:
            error = grader_error(fault) if conversation is None else conversation.failure(fault)
        self._exit_if_forked()
        latency_ms = (perf_counter() - began) * 1000
        return TaskResult(None, None, error, self._take_output(), latency_ms, response)

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
                text = self._run_agent_factory(task, job)
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
            error = grader_error(fault)
            if isinstance(fault, MemoryError) and task.role.startswith("builtin-"):
                error = ErrorInfo("memory", f"{task.reference} ran out of memory", Fault.GRADER)
        self._exit_if_forked()
        latency_ms = (perf_counter() - started) * 1000
        return TaskResult(result, text, error, self._take_output(), latency_ms)

    def _grade(self, task: Task, job: Job, submission: str) -> GradeResult:
        ctx = GradeContext(job.sample, submission, job.response)
        if task.role == "builtin-grader":
            result: GradeResult = self._builtin(task).grade(ctx)
            return result
        function = self._function(task)
        return call_grader(lambda: self._finish(call_with_context(function, ctx)), function, task.reference)

    def _reward(self, task: Task, job: Job) -> GradeResult:
        from gradeline.compat.stand_ins import argument_function

        grades, submissions = task.config["grades"], task.config["submissions"]
        context = argument_function("reward_context")(job.sample, grades, submissions, job.response)
        reward = argument_function("reward_of")(self._finish(self._function(task)(context)), task.reference)
        return validated_grade(reward, task.reference)

    def _run_agent_factory(self, task: Task, job: Job) -> str:
        from gradeline.usercode.agent_factories import create_agent  # only suites for letta have one

        created: str = self._finish(create_agent(self._function(task), job.sample, task.config, task.reference))
        return created

    def _builtin(self, task: Task) -> Any:
        """A built-in grader or extractor, created once."""
        key = canonical_json((task.role, task.reference, task.config))
        if key not in self._builtins:
            from gradeline import extractors, graders  # most workers run no built-ins

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
        """The result of an awaitable; any other value is returned as it is."""
        if not hasattr(value, "__await__"):
            return value
        import asyncio  # 40 ms that only asynchronous code needs

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(_await(value))

    def _take_output(self) -> str | None:
        """The output of user code since the last call."""
        for stream in self._streams:
            with contextlib.suppress(ValueError, OSError):  # user code has closed it
                stream.flush()
        return self._output.take()

    def _exit_if_forked(self) -> None:
        """End a child process that user code forked: it must not continue as a second worker."""
        if os.getpid() != self._pid:
            os._exit(0)


def _copy_job(job: Job) -> Job:
    """A copy of the job for one of several tasks: its code may change the sample, which the others must not see."""
    return Job(copy_sample(job.sample), job.tasks, None if job.response is None else copy_response(job.response))


def _search(task: Task) -> str:
    from gradeline.extractors.base import compact_json  # most workers run no built-ins
    from gradeline.parsing.jmespath import JmesPath

    return compact_json(JmesPath(task.reference).search(task.config["data"]))


@contextlib.contextmanager
def _recorded_exits(progress: Progress) -> Iterator[None]:
    """Record the line of code that calls ``os._exit`` while it is loaded."""
    leave, worker = os._exit, os.getpid()

    def record_exit(status: int) -> NoReturn:
        caller = sys._getframe(1)
        if os.getpid() == worker:
            source = LoadingPosition.parse(progress.read_loading()).source
            progress.write_loading(str(LoadingPosition(source, f"{caller.f_code.co_filename}:{caller.f_lineno}")))
        leave(status)

    os._exit = record_exit
    try:
        yield
    finally:
        os._exit = leave
        progress.write_loading("")


async def _await(value: Any) -> Any:
    return await value


def _call_setup_function(function: Callable[..., Any], suite: dict[str, Any]) -> Any:
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


def main(request_fd: int, reply_fd: int, progress_fd: int, memory: int, engine: int) -> None:
    """Run requests until the engine closes the pipe."""
    limit_worker(memory, engine)
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
                worker.run_batch(request)
            elif isinstance(request, protocol.LoadCode):
                worker.load_code(request.spec)
            else:
                worker.run_setup(request.suite)
