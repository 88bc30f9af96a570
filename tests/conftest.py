"""Fixtures and settings that all tests share."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

sys.path.insert(0, str(Path(__file__).parent))

from gradeline.parsing import isolation
from postgres_server import ENV, Database, Server, why_no_server

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's background job ignores Ctrl-C, and so would the commands that tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY = Path("/dev/shm")
ROOM = 6 * 2**30


def _use_memory_for_temporary_files() -> None:
    """Thousands of stores are made, and each commit waits for the disk; a file system in memory does not."""
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


_use_memory_for_temporary_files()
settings.register_profile("gradeline", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("gradeline"), max_examples=20)
settings.load_profile("gradeline")


LONG = ("ray", "service", "crash", "bombs", "docs", "ui")
"""Folders whose tests take longest: they go first, so that no process waits for another one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(Path(item.location[0]).parts[1], len(order)))


class _Together(LoadScopeScheduling):
    """With several processes, what tests share is made in one of them: the cluster, a browser, fixtures of a module."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _group(file) or nodeid


@cache
def _group(file: str) -> str | None:
    if file.startswith("tests/ray/"):
        return "ray"
    shares = file.startswith("tests/ui/") or 'scope="module"' in (ROOT / file).read_text(encoding="utf-8")
    return file if shares else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    config.option.loadscopereorder = False
    return _Together(config, log)


@pytest.fixture(autouse=True)
def _loggers() -> Iterator[None]:
    """A command that serves sets up the program's loggers, to a stream that is gone after its test."""
    loggers = [logging.getLogger(name) for name in ("gradeline", "uvicorn")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


class SharedData:
    """The labelled data outside the project; a test that reads it is skipped where it is absent."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def lines(self, name: str) -> list[str]:
        """A file's lines."""
        path = self._home / name
        if not path.exists():
            pytest.skip(f"labelled data is absent: {name} (GRADELINE_SHARED_DATA names its folder)")
        return path.read_text(encoding="utf-8").split("\n")

    def __call__(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of a JSONL file."""
        return (json.loads(line) for line in self.lines(name) if line.strip())


@pytest.fixture
def shared_rows() -> SharedData:
    return SharedData(Path(os.environ.get("GRADELINE_SHARED_DATA") or SHARED / "data"))


@pytest.fixture
def seed() -> Callable[[str], str]:
    """Reads one of the documents the project was created from; skips where it is absent."""

    def read(name: str) -> str:
        path = SHARED / "seeds" / name
        if not path.exists():
            pytest.skip(f"the seed document {name} is absent")
        return path.read_text(encoding="utf-8")

    return read


@pytest.fixture(scope="session")
def postgres_database() -> Iterator[Database]:
    if url := os.environ.get(ENV):
        database = Database(url)
        yield database
        database.drop()
        return
    if reason := why_no_server():
        pytest.skip(reason)
    server = Server()
    yield Database(server.url)
    server.stop()


@pytest.fixture
def postgres_url(postgres_database: Database) -> Iterator[str]:
    """The URL of a database in which there is nothing."""
    yield postgres_database.url
    postgres_database.empty()


@pytest.fixture
def postgres_server() -> Iterator[Server]:
    """A server of the test's own, to be stopped and started."""
    if reason := why_no_server():
        pytest.skip(reason)
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def as_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything may run in this process, as in a worker process, which has a deadline and a memory limit."""
    monkeypatch.setattr(isolation._process, "killable", True)
