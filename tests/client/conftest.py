"""A real service on a real socket, and a real agent behind it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
import uvicorn

from gradeline.service.app import application
from gradeline.service.auth import KeyScope
from gradeline.service.service import Service, build_service
from gradeline.service.settings import ServeSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "service"))


class Served(NamedTuple):
    """The URL of the service, and the service."""

    url: str
    service: Service

    def key(self, scope: str) -> str:
        """A new key; from then on the service requires one."""
        _, text = self.service.keys.create(KeyScope(scope))
        return text


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        settings = ServeSettings(port=port, store=str(tmp_path / "store.db"), secret_key=b"a key of the tests, long")
        service = build_service(settings)
        server = uvicorn.Server(uvicorn.Config(application(service), lifespan="on", log_config=None, ws="none"))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Served(f"http://127.0.0.1:{port}", service)
        finally:
            server.should_exit = True
            thread.join(20)


@pytest.fixture
def agent() -> Iterator[Any]:
    """Echoes its input."""
    from live import EchoAgent

    with EchoAgent() as running:
        yield running
