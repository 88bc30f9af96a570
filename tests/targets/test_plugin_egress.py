"""A plugin target is under the egress policy by default, whatever client its code uses."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradeline.model import Response, Sample
from gradeline.model.resources import Resources
from gradeline.targets import DeclaredTarget, TargetContext, create
from gradeline.transport import PublicOnly

PLUGIN = """
import socket

from gradeline.model import Response
from gradeline.targets import DeclaredTarget, TargetConfig


class RawTarget(DeclaredTarget[TargetConfig]):
    \"\"\"Sends the input to a socket, without gradeline's HTTP client.\"\"\"

    kind = "raw"
    name = "Raw"

    async def call(self, sample):
        with socket.create_connection(("127.0.0.1", int(sample.input)), 5):
            return Response(text="connected")
"""


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package whose entry point declares the target ``raw``."""
    (tmp_path / "raw_targets.py").write_text(PLUGIN)
    metadata = tmp_path / "raw_targets-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: raw-targets\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[gradeline.targets]\nraw = raw_targets:RawTarget\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("raw_targets", None)


def respond(target: DeclaredTarget[object], port: int) -> Response:
    async def call() -> Response:
        async with target:
            return await target.respond(Sample(id=1, input=str(port)))

    return asyncio.run(call())


@pytest.mark.usefixtures("plugin")
def test_a_raw_connection_outside_the_policy_is_refused(port: int) -> None:
    target = create("raw", context=TargetContext(Resources(policy=PublicOnly())))
    response = respond(target, port)
    assert response.error is not None
    assert (response.error.type, response.text) == ("connect", None)
    assert response.error.message.startswith("refused by the egress policy: 127.0.0.1 is a loopback address")


@pytest.mark.usefixtures("plugin")
def test_an_allowed_address_is_reached(port: int) -> None:
    target = create("raw", context=TargetContext(Resources(policy=PublicOnly([f"127.0.0.1:{port}"]))))
    assert respond(target, port).text == "connected"


@pytest.mark.usefixtures("plugin")
def test_without_a_policy_nothing_is_refused(port: int) -> None:
    assert respond(create("raw"), port).text == "connected"
