"""Fixtures and settings that all tests share."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

from postgres_server import ENV, Database, Server, why_no_server

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

settings.register_profile("gradeline", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gradeline")


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
    """The labelled data that lies beside the project; a test that reads it skips where it is absent."""

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
