"""One worker process as the engine sees it: its pipes, its progress, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator

from gradeline.usercode.decorators import SourceLocation
from gradeline.usercode.loader import CodeSpec, LoadFailure
from gradeline.usercode.output import OutputFile, output_file
from gradeline.usercode.process_control import (
    TOKEN_VARIABLE,
    OomKillCounter,
    allocation_failure,
    exit_description,
    format_size,
    kill_by_token,
    kill_tree,
)
from gradeline.usercode.protocol import (
    FrameBuffer,
    LoadingPosition,
    Position,
    Progress,
    Task,
    WorkerReply,
    decode_reply,
    frame,
    progress_file,
)

_READ = 1 << 20
_EXIT_GRACE_SECONDS = 0.05
_TRACEBACK_SECONDS = 1.0

# msgspec looks for typing_extensions, which takes 35 ms to load and is not needed here
_BOOTSTRAP = """
import sys
sys.modules["typing_extensions"] = None
import msgspec
del sys.modules["typing_extensions"]
from gradeline.usercode.worker import main
main(*map(int, sys.argv[1:]))
"""


class WorkerProcess:
    """Starts a worker and exchanges messages with it; the event loop calls ``on_reply`` and ``on_exit``."""

    def __init__(
        self,
        memory: int,
        on_reply: Callable[[WorkerProcess, WorkerReply], None],
        on_exit: Callable[[WorkerProcess], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_reply = on_reply
        self._on_exit = on_exit
        self._frames = FrameBuffer()
        self._unsent: deque[memoryview] = deque()
        self._last_position: Position | None = None
        self._last_loading: str | None = None
        self.returncode: int | None = None
        self.killed_for: str | None = None
        self.printed: str | None = None
        """The output of the call at which it ended, cut to the maximum; includes the traceback of a native crash."""
        self.output_tail = ""
        """The end of that output."""
        self._token = secrets.token_hex(8)
        self._start(memory)

    def _start(self, memory: int) -> None:
        request_read, self._request = os.pipe()
        self._reply, reply_write = os.pipe()
        output = output_file()
        progress = progress_file()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [
                    sys.executable,
                    "-P",
                    "-c",
                    _BOOTSTRAP,
                    *map(str, (request_read, reply_write, progress, memory, os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(request_read, reply_write, progress),
                start_new_session=True,
                env={**os.environ, TOKEN_VARIABLE: self._token},
            )
            self._progress = Progress(progress)
            self._output = OutputFile(output, self._progress)
        finally:
            for fd in (request_read, reply_write, progress):
                os.close(fd)
        self.pid = self._process.pid
        for fd in (self._request, self._reply):
            os.set_blocking(fd, False)
        self._loop.add_reader(self._reply, self._read_replies)
        self._watch()

    def send(self, message: object) -> None:
        """Queue a message; it is written as the pipe has room."""
        waiting = bool(self._unsent)
        self._unsent.append(memoryview(frame(message)))
        if not waiting:
            self._write()

    @property
    def position(self) -> Position:
        """The task that it runs, from its progress record."""
        return self._last_position or self._progress.read()

    @property
    def loading(self) -> LoadingPosition:
        """The file or module that it loads; empty while it loads nothing."""
        written = self._progress.read_loading() if self._last_loading is None else self._last_loading
        return LoadingPosition.parse(written)

    @property
    def exit_text(self) -> str:
        """How the process ended, such as ``exit code 3`` or ``SIGKILL``."""
        return exit_description(self.returncode or 0)

    @property
    def end_with_output(self) -> str:
        """How the process ended, with the end of its output."""
        return f"{self.exit_text}; the end of its output: {self.output_tail}" if self.output_tail else self.exit_text

    @property
    def native_traceback(self) -> str | None:
        """What Python's fault handler printed about a native crash."""
        _, sign, rest = self.output_tail.partition("Fatal Python error: ")
        return sign + rest if sign else None

    def end_of_task(self, task: Task, memory_limit: int, oom_kills: OomKillCounter) -> tuple[str, str]:
        """Why the task that it ran has no result: the type of the error and the reason."""
        if self.killed_for == "timeout":
            return "timeout", f"took longer than {task.timeout:g} s"
        if self.killed_for == "bad_reply":
            return "bad_reply", "wrote into the pipe for results"
        evidence = self._memory_evidence(memory_limit, oom_kills)
        if evidence is not None:
            return "memory", f"ran out of memory: {evidence}"
        return "crashed", f"ended its process: {self.exit_text}"

    def _memory_evidence(self, memory_limit: int, oom_kills: OomKillCounter) -> str | None:
        """What shows that the process ended for lack of memory; a signal alone does not."""
        if self.returncode is None or self.returncode >= 0 or self.killed_for is not None:
            return None
        if self.returncode == -signal.SIGKILL:
            return "the system's out-of-memory killer ended it" if oom_kills.new_kill() else None
        found = allocation_failure(self.output_tail)
        if found is None or not memory_limit:
            return None
        return f"{found!r} at its limit of {format_size(memory_limit)}; raise it with memory:"

    def cut_output(self) -> None:
        """Bound the memory that its output takes."""
        if self.returncode is None:
            self._output.cut()

    def kill(self, reason: str) -> None:
        """Kill it with its child processes; ``on_exit`` follows."""
        if self.returncode is None:
            self.killed_for = self.killed_for or reason
            kill_tree(self.pid)

    def kill_with_traceback(self, reason: str) -> None:
        """Kill it like `kill`, after it has printed a traceback, with which ``output_tail`` then ends."""
        if self.returncode is None:
            self.killed_for = self.killed_for or reason
            os.kill(self.pid, signal.SIGABRT)
            self._loop.call_later(_TRACEBACK_SECONDS, self.kill, reason)

    def dismiss(self) -> None:
        """Close its request pipe, which lets it exit by itself."""
        self._close_request()

    async def wait(self) -> None:
        """Wait until the process has ended."""
        await self._exit_event.wait()

    def _write(self) -> None:
        while self._unsent:
            try:
                written = os.write(self._request, self._unsent[0])
            except BlockingIOError:
                self._loop.add_writer(self._request, self._write)
                return
            except OSError:  # it has closed its pipe; `_exited` handles its end
                self._unsent.clear()
                break
            rest = self._unsent[0][written:]
            if rest:
                self._unsent[0] = rest
            else:
                self._unsent.popleft()
        self._loop.remove_writer(self._request)

    def _read_replies(self) -> bool:
        """Read the replies that have arrived; True if there may be more."""
        try:
            data = os.read(self._reply, _READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._reply)
            # most likely it is about to exit; a worker that only closed its pipe is of no use either
            self._loop.call_later(_EXIT_GRACE_SECONDS, self.kill, "crashed")
            return False
        try:
            for body in self._frames.feed(data):
                self._on_reply(self, decode_reply(body))
        except ValueError:  # not a valid frame: user code wrote into the pipe
            self._loop.remove_reader(self._reply)
            self.kill("bad_reply")
            return False
        return True

    def _watch(self) -> None:
        self._exit_event = asyncio.Event()
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(self.pid)
            self._loop.add_reader(self._pidfd, self._exited)
        else:
            self._pidfd = -1
            self._loop.run_in_executor(None, self._wait)

    def _wait(self) -> None:
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop may be closed by then
            self._loop.call_soon_threadsafe(self._exited)

    def _exited(self) -> None:
        self.returncode = self._process.wait()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        while self._read_replies():
            pass  # replies written before its end still count
        kill_by_token(self._token)
        self.printed, self.output_tail = self._output.text(), self._output.tail()
        self._close()
        self._exit_event.set()
        self._on_exit(self)

    def _close_request(self) -> None:
        if self._request >= 0:
            self._loop.remove_writer(self._request)
            os.close(self._request)
            self._request = -1
            self._unsent.clear()

    def _close(self) -> None:
        self._close_request()
        self._loop.remove_reader(self._reply)
        os.close(self._reply)
        self._output.close()
        self._last_position = self._progress.read()
        self._last_loading = self._progress.read_loading()
        self._progress.close()


_FRAME = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)
_MOVE_REMEDY = 'move it into a function, or below if __name__ == "__main__"'
_MAX_SHOWN_OUTPUT = 500


def load_timed_out(spec: CodeSpec, loading: LoadingPosition, output: str, seconds: float) -> LoadFailure:
    """The failure of a worker that did not finish in time; ``output`` ends with its traceback."""
    message = f"took longer than {seconds:g} s to load; if it does slow work, {_MOVE_REMEDY}"
    return _failed(spec, loading, output, message + _remedy(spec, loading.source))


def load_crashed(spec: CodeSpec, loading: LoadingPosition, output: str, ended: str) -> LoadFailure:
    """The failure of a worker that ended by itself; ``ended`` says how, such as ``exit code 3``."""
    printed = _last_output(output)
    message = f"ended the process that loads it ({ended}){printed}; if it exits or crashes, {_MOVE_REMEDY}"
    return _failed(spec, loading, output, message)


def _failed(spec: CodeSpec, loading: LoadingPosition, output: str, message: str) -> LoadFailure:
    location = next(_locations(spec, loading, output), None) or SourceLocation(loading.source or spec.folder, 0)
    return LoadFailure(loading.source, location.file, location.line or None, message)


def _locations(spec: CodeSpec, loading: LoadingPosition, output: str) -> Iterator[SourceLocation]:
    """Where the code was, the most reliable first: the recorded exit, then lines of the suite's own files."""
    if loading.location:
        file, _, line = loading.location.rpartition(":")
        yield SourceLocation(file, int(line))
    frames = [SourceLocation(file, int(line)) for file, line in _FRAME.findall(output)]
    folder = f"{os.path.realpath(spec.folder)}{os.sep}"
    yield from (frame for frame in frames if frame.file.startswith(folder) or frame.file == loading.source)


def _last_output(output: str) -> str:
    """The end of the output, or the first line of a crash's traceback."""
    words = output.partition("\n\n")[0] if _FRAME.search(output) else output
    return f", after it printed: {words[-_MAX_SHOWN_OUTPUT:]}" if words else ""


def _remedy(spec: CodeSpec, source: str) -> str:
    """How to avoid loading a file that no reference of the suite names."""
    name = os.path.basename(source)  # noqa: PTH119 - a module's name has no path
    references = [one.reference for one in spec.requests]
    bare = next((reference for reference in references if ":" not in reference), None)
    if bare is None or any(name in reference for reference in (*references, spec.setup or "")):
        return ""
    return f"; this file was searched for {bare!r}: write FILE.py:{bare} to load only the file that has it"
