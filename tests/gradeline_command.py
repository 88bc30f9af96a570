"""Runs the ``gradeline`` command as a process that need not import the program first.

One process, the template, has imported the command line; each command is a fork of it. That saves a third of a second
of computing for each of some thousand commands. Everything else is as with ``subprocess.run``: own process, working
directory, environment, pipes and exit code. Tests of start-up, of memory and of signals start the command itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, overload

COMMAND = str(Path(sys.executable).with_name("gradeline"))
_COMMAND_LINE = ("commands", "execute", "run", "show", "export", "compare")
_MODULES = (
    *(f"gradeline.cli.{name}" for name in _COMMAND_LINE),
    *("gradeline.engine.lifecycle", "gradeline.store.sqlite", "gradeline.store.writer", "gradeline.targets.command"),
    *("gradeline.parsing.jmespath", "rich.console", "rich.markup", "rich.table", "yaml"),
)
"""What most commands load; any other module is imported in the fork."""


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
    code, out, err = _ended(command, cwd or Path.cwd(), variables, given, stdout, timeout)
    if text:
        return subprocess.CompletedProcess(command, code, out.decode(), err.decode())
    return subprocess.CompletedProcess(command, code, out, err)


def _ended(
    command: list[str],
    cwd: str | Path,
    variables: dict[str, str],
    given: bytes,
    stdout: IO[Any] | int,
    timeout: float,
) -> tuple[int, bytes, bytes]:
    if command[0] != COMMAND or any(name.startswith("PYTHON") for name in variables):
        done = subprocess.run(
            command, cwd=cwd, env=variables, input=given, stdout=stdout, stderr=subprocess.PIPE, timeout=timeout
        )
        return done.returncode, done.stdout or b"", done.stderr
    request = json.dumps({"command": command, "cwd": str(cwd), "env": variables}).encode()
    with (
        tempfile.TemporaryFile() as standard_in,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        socket.socket(socket.AF_UNIX) as link,
    ):
        standard_in.write(given)
        standard_in.seek(0)
        target = out.fileno() if stdout == subprocess.PIPE else stdout if isinstance(stdout, int) else stdout.fileno()
        link.settimeout(timeout)
        link.connect(_template.address)
        socket.send_fds(link, [len(request).to_bytes(4, "big")], [standard_in.fileno(), target, err.fileno()])
        link.sendall(request)
        pid = int.from_bytes(_received(link, 4), "big")
        try:
            status = int.from_bytes(_received(link, 4), "big")
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(command, timeout) from None
        out.seek(0)
        err.seek(0)
        return os.waitstatus_to_exitcode(status), out.read(), err.read()


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
    import importlib
    import select

    for name in _MODULES:
        importlib.import_module(name)
    waiting: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in select.select([sys.stdin, listener, *waiting], [], [])[0]:
            if ready is sys.stdin:
                os._exit(0)
            elif ready is listener:
                link, _ = listener.accept()
                head, descriptors, _, _ = socket.recv_fds(link, 4, 3)
                request = json.loads(_received(link, int.from_bytes(head, "big")))
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
                link.sendall(pid.to_bytes(4, "big"))
                waiting[os.pidfd_open(pid)] = pid, link
            else:
                pid, link = waiting.pop(ready)
                os.close(ready)
                status = os.waitpid(pid, 0)[1]
                with link, suppress(BrokenPipeError):  # who asked may have given up
                    link.sendall(status.to_bytes(4, "big"))


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    os.setpgid(0, 0)
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["command"]
    sys.path[0] = str(Path(COMMAND).parent)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from gradeline.cli import main

    main()
