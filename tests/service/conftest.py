"""A service on a temporary store, called without a socket."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.testclient import TestClient

from gradeline.service.app import application
from gradeline.service.service import Service, build_service
from gradeline.service.settings import ServeSettings

BASE_URL = "http://127.0.0.1:8000"
MASTER_KEY = b"a master key of the tests, long enough"


class Answer(NamedTuple):
    """A response; `body` is the parsed JSON where it is JSON, else the text, None where there is none."""

    status: int
    body: Any
    headers: Any

    @property
    def data(self) -> Any:
        """What is under ``data`` of a success."""
        assert self.body["success"] is True, self.body
        return self.body["data"]

    @property
    def error(self) -> Any:
        """What is under ``error`` of a failure."""
        assert self.body["success"] is False, self.body
        return self.body["error"]


class Call:
    """``call("POST", "/api/test-cases", json={…})``; ``content`` sends bytes as they are."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def __call__(self, method: str, path: str, **sent: Any) -> Answer:
        response = self.client.request(method, path, **sent)
        is_json = response.headers.get("content-type", "").startswith("application/json")
        body = json_module.loads(response.content) if is_json else response.text or None
        return Answer(response.status_code, body, response.headers)


@pytest.fixture
def settings(tmp_path: Path) -> ServeSettings:
    """Local mode; a test may define its own fixture of this name."""
    return ServeSettings(store=str(tmp_path / "store.db"), secret_key=MASTER_KEY)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store in either database."""
    return str(tmp_path / "store.db") if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def service(settings: ServeSettings) -> Iterator[Service]:
    """The service behind `call`; it is started and stopped by the application."""
    built = build_service(settings)
    try:
        yield built
    finally:
        built.stop()


@pytest.fixture
def client(service: Service) -> Iterator[TestClient]:
    app = application(service)
    with TestClient(
        app, base_url=BASE_URL, raise_server_exceptions=False, follow_redirects=False, client=("127.0.0.1", 50000)
    ) as opened:
        yield opened


@pytest.fixture
def call(client: TestClient) -> Call:
    return Call(client)


@pytest.fixture
def call_with(service: Service) -> Callable[[str], dict[str, str]]:
    """The headers of a caller who has a key of that scope; from then on the service is in key mode."""

    def headers(scope: str) -> dict[str, str]:
        from gradeline.service.auth import KeyScope

        _, text = service.keys.create(KeyScope(scope))
        return {"Authorization": f"Bearer {text}"}

    return headers
