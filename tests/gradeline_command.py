"""Runs the ``gradeline`` command as a process that need not import the program first.

One process, the template, has imported the program; each command is a fork of it. That saves a third of a second
of computing for each of some thousand commands, and most of a second for each server. Everything else is as with
``subprocess``: own process and session, working directory, environment, pipes and exit code. Tests of start-up and of
memory start the command itself.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from pkgutil import walk_packages
from select import select
from time import monotonic
from types import TracebackType
from typing import IO, Any, Literal, Self, TypeAlias, overload

import gradeline
from gradeline import failpoints

COMMAND = str(Path(sys.executable).with_name("gradeline"))
_OF_THE_SERVICE = {"serve", "view", "keys", "secrets"}
"""Commands that load the service; the template loads it before the first of them."""
_ANY_WAY = {"PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"}
"""Settings of Python that no test is about; images for containers have them."""


@overload
def run_command(
    command: list[str],
    *,
    cwd: str | Path | None = None,
    env: dict[str, str] | None = None,
    input: bytes = b"",
    stdout: IO[Any] | int = subprocess.PIPE,
    text: Literal[False] = False,
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[bytes]: ...


@overload
def run_command(
    command: list[str],
    *,
    cwd: str | Path | None = None,
    env: dict[str, str] | None = None,
    input: str = "",
    stdout: IO[Any] | int = subprocess.PIPE,
    text: Literal[True],
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]: ...


def run_command(
    command: list[str],
    *,
    cwd: str | Path | None = None,
    env: dict[str, str] | None = None,
    input: str | bytes = b"",  # noqa: A002 - as subprocess.run has it
    stdout: IO[Any] | int = subprocess.PIPE,
    text: bool = False,
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[bytes] | subprocess.CompletedProcess[str]:
    """Run a command that begins with ``gradeline``; ``stdout`` may be a file.

    Where Python has settings of its own for its start, or another program starts the command, nothing is saved.
    """
    variables = dict(os.environ) if env is None else env
    given = input.encode() if isinstance(input, str) else input
    if not _can_fork(command, variables):
        done = subprocess.run(
            command, cwd=cwd, env=variables, input=given, stdout=stdout, stderr=subprocess.PIPE, timeout=timeout
        )
        code, out, err = done.returncode, done.stdout or b"", done.stderr
    else:
        code, out, err = _run(command, cwd or Path.cwd(), variables, given, stdout, timeout)
    if text:
        return subprocess.CompletedProcess(command, code, out.decode(), err.decode())
    return subprocess.CompletedProcess(command, code, out, err)


def start_command(
    command: list[str],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    stdout: IO[Any] | int = subprocess.PIPE,
    stderr: IO[Any] | int = subprocess.PIPE,
    setup: str = "",
) -> AnyCommand:
    """Start a command that begins with ``gradeline``, in a session of its own; its input is empty.

    ``setup`` is Python that its process executes first.
    """
    variables = dict(os.environ if env is None else env)
    if _can_fork(command, variables):
        return StartedCommand(command, cwd or Path.cwd(), variables, stdout, stderr, setup)
    arguments = [sys.executable, "-c", f"{setup}\nfrom gradeline.cli import main\nmain()", *command[1:]]
    return subprocess.Popen(
        arguments if setup else command,
        cwd=cwd,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


@cache
def command_folder() -> str:
    """A folder for the PATH of a shell: its ``gradeline`` is a small program that has the template fork the command."""
    folder = Path(_template.address).parent
    program = folder / "gradeline"
    program.write_text(_IN_A_SHELL.format(python=sys.executable, command=COMMAND, address=_template.address))
    program.chmod(0o755)
    return str(folder)


_IN_A_SHELL = """\
#!{python} -IS
import json, os, signal, socket, sys
request = {{"command": ["{command}", *sys.argv[1:]], "cwd": os.getcwd(), "env": dict(os.environ), "setup": ""}}
message = json.dumps(request).encode()
link = socket.socket(socket.AF_UNIX)
link.connect("{address}")
socket.send_fds(link, [len(message).to_bytes(4, "big")], [0, 1, 2])
link.sendall(message)
handle = socket.recv_fds(link, 4, 1)[1][0]
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: signal.pidfd_send_signal(handle, number))
status = os.waitstatus_to_exitcode(int.from_bytes(link.recv(4, socket.MSG_WAITALL), "big"))
os._exit(status if status >= 0 else 128 - status)
"""


class StartedCommand:
    """A fork of the template; as `subprocess.Popen`."""

    def __init__(
        self,
        command: list[str],
        cwd: str | Path,
        variables: dict[str, str],
        stdout: IO[Any] | int,
        stderr: IO[Any] | int,
        setup: str,
    ) -> None:
        self.args = command
        self.returncode: int | None = None
        self._output = ["", ""]
        self._readers: list[threading.Thread] = []
        with ExitStack() as opened:
            nothing, _ = _target(subprocess.DEVNULL, opened)
            out, self.stdout = _target(stdout, opened)
            err, self.stderr = _target(stderr, opened)
            request = {"command": command, "cwd": str(cwd), "env": variables, "setup": setup}
            self._fork = _Fork(request, [nothing, out, err])
        self.pid = self._fork.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self.wait()

    def poll(self) -> int | None:
        """The exit code if it has ended."""
        with suppress(TimeoutError):
            self._await(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit code."""
        try:
            return self._await(timeout)
        except TimeoutError:
            raise subprocess.TimeoutExpired(self.args, timeout or 0) from None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has printed, after its end. After a timeout, a second call returns everything."""
        end = None if timeout is None else monotonic() + timeout
        if not self._readers:
            self._readers = [threading.Thread(target=self._read, args=(n,), daemon=True) for n in range(2)]
            for reader in self._readers:
                reader.start()
        for reader in self._readers:
            reader.join(None if end is None else max(0, end - monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if end is None else max(0, end - monotonic()))
        self._close()
        return self._output[0], self._output[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            self._fork.signal(number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _await(self, timeout: float | None) -> int:
        if self.returncode is None:
            self.returncode = self._fork.exit_code(timeout)
        return self.returncode

    def _read(self, number: int) -> None:
        stream = (self.stdout, self.stderr)[number]
        if stream is not None and not stream.closed:
            self._output[number] = stream.read()

    def _close(self) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()


AnyCommand: TypeAlias = subprocess.Popen[str] | StartedCommand


def _target(wanted: IO[Any] | int, opened: ExitStack) -> tuple[int, IO[str] | None]:
    """The descriptor for the command's output, and where this process reads it."""
    if wanted == subprocess.PIPE:
        read, write = os.pipe()
        opened.callback(os.close, write)
        return write, os.fdopen(read, encoding="utf-8")
    if wanted == subprocess.DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        opened.callback(os.close, null)
        return null, None
    return wanted if isinstance(wanted, int) else wanted.fileno(), None


def _can_fork(command: list[str], variables: Mapping[str, str]) -> bool:
    return command[0] == COMMAND and not any(name.startswith("PYTHON") for name in variables.keys() - _ANY_WAY)


def _run(
    command: list[str],
    cwd: str | Path,
    variables: dict[str, str],
    given: bytes,
    stdout: IO[Any] | int,
    timeout: float,
) -> tuple[int, bytes, bytes]:
    with (
        tempfile.TemporaryFile() as standard_in,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        standard_in.write(given)
        standard_in.seek(0)
        target = out.fileno() if stdout == subprocess.PIPE else stdout if isinstance(stdout, int) else stdout.fileno()
        request = {"command": command, "cwd": str(cwd), "env": variables, "setup": ""}
        fork = _Fork(request, [standard_in.fileno(), target, err.fileno()])
        try:
            code = fork.exit_code(timeout)
        except TimeoutError:
            fork.signal(signal.SIGKILL)
            fork.exit_code(None)
            raise subprocess.TimeoutExpired(command, timeout) from None
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


class _Fork:
    """A process that the template has forked: its ID, signals to it, and its exit code."""

    def __init__(self, request: dict[str, Any], descriptors: list[int]) -> None:
        self._link = socket.socket(socket.AF_UNIX)
        try:
            self._link.connect(_template.address)
            message = json.dumps(request).encode()
            socket.send_fds(self._link, [len(message).to_bytes(4, "big")], descriptors)
            self._link.sendall(message)
            # the template made this handle before it could collect the process: no other one has the ID
            head, handles, _, _ = socket.recv_fds(self._link, 4, 1)
            if not head:
                raise EOFError("the template of commands has ended")
        except BaseException:
            self._link.close()
            raise
        self.pid = int.from_bytes(head, "big")
        self._handle = handles[0]

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def exit_code(self, timeout: float | None) -> int:
        """Wait for the end; `TimeoutError`."""
        if not select([self._link], [], [], timeout)[0]:
            raise TimeoutError
        with self._link:
            status = int.from_bytes(_received(self._link, 4), "big")
        os.close(self._handle)
        return os.waitstatus_to_exitcode(status)


def _received(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise EOFError("the template of commands has ended")
        data += part
    return data


class _Template:
    """The process that commands are forks of, started when the first is run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""

    @property
    def address(self) -> str:
        if self._process is None:
            self._address = str(Path(tempfile.mkdtemp(prefix="gradeline-"), "template"))
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(self._address)
                listener.listen(64)
                self._process = subprocess.Popen(
                    [sys.executable, __file__, str(listener.fileno())],
                    pass_fds=[listener.fileno()],
                    stdin=subprocess.PIPE,  # its end tells the template that this process has ended
                )
        return self._address


_template = _Template()


def _serve(listener: socket.socket) -> None:
    """Fork for each request; returns in the forks alone."""
    _load(lambda name: not name.startswith("gradeline.service."))
    waiting: dict[int, tuple[int, socket.socket]] = {}
    while True:
        readable: list[Any] = select([sys.stdin, listener, *waiting], [], [])[0]
        for ready in readable:
            if ready is sys.stdin:
                os._exit(0)
            elif ready is listener:
                link, _ = listener.accept()
                head, descriptors, _, _ = socket.recv_fds(link, 4, 3)
                request = json.loads(_received(link, int.from_bytes(head, "big")))
                if _OF_THE_SERVICE & set(request["command"][1:2]):
                    _load(lambda name: name.startswith("gradeline.service."))
                pid = os.fork()
                if pid == 0:
                    for handle, (_, other) in waiting.items():
                        os.close(handle)
                        other.close()
                    link.close()
                    listener.close()
                    _become(request, descriptors)
                    return
                for descriptor in descriptors:
                    os.close(descriptor)
                handle = os.pidfd_open(pid)
                waiting[handle] = pid, link
                with suppress(BrokenPipeError):
                    socket.send_fds(link, [pid.to_bytes(4, "big")], [handle])
            else:
                pid, link = waiting.pop(ready)
                os.close(ready)
                status = os.waitpid(pid, 0)[1]
                with link, suppress(BrokenPipeError):  # who asked may have given up
                    link.sendall(status.to_bytes(4, "big"))


def _load(wanted: Callable[[str], bool]) -> None:
    """Import these modules of the program, and what they import."""
    for module in walk_packages(gradeline.__path__, "gradeline."):
        if wanted(module.name) and not module.name.endswith((".__main__", ".pytest_plugin")):
            importlib.import_module(module.name)
    for name in ("click._textwrap", "rich._emoji_codes", "rich.console", "rich.markup", "rich.table"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else each fork copies what its own collections visit


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    os.setsid()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["command"]
    sys.path[0] = str(Path(COMMAND).parent)
    importlib.reload(failpoints)  # it reads the environment
    exec(request["setup"], {})


def _end(code: object) -> None:
    """End as Python does, but free no module: the fork would copy the template's memory to do that."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # what cannot be flushed, Python reports
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        if code is None or isinstance(code, int):
            os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from gradeline.cli import main

    try:
        main()
    except SystemExit as end:
        _end(end.code)
        raise
