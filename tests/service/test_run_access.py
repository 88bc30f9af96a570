"""Which addresses may be called, however they are spelled, and which key may be sent to which of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from gradeline.service.auth import LOCAL_CALLER
from gradeline.service.errors import Code, ServiceError
from gradeline.service.grader_definitions import build_grader
from gradeline.service.run_access import ServiceEgress, check_graders
from gradeline.service.secrets import Binding
from gradeline.service.service import Service, build_service
from gradeline.service.settings import ServeSettings
from gradeline.transport.client import Transport
from gradeline.transport.request import CallError, HttpRequest

SPELLINGS = """http://127.0.0.1/ http://127.1/ http://2130706433/ http://0x7f000001/ http://0x7f.0.0.1/ http://0177.0.0.1/
    http://017700000001/ http://0/ http://0.0.0.0/ http://localhost/ http://LOCALHOST./ http://[::1]/ http://[::]/
    http://[::ffff:127.0.0.1]/ http://[::ffff:7f00:1]/ http://[::127.0.0.1]/ http://[64:ff9b::7f00:1]/
    http://[64:ff9b:1::7f00:1]/ http://[2002:7f00:1::]/ http://[2001:0:7f00:1::]/ http://10.0.0.1/ http://172.16.0.1/
    http://192.168.1.1/ http://169.254.169.254/latest/meta-data/ http://[fd00:ec2::254]/ http://100.100.100.200/
    http://168.63.129.16/ http://100.64.0.1/ http://192.0.0.1/ http://198.18.0.1/ http://224.0.0.1/ http://255.255.255.255/
    http://[fe80::1]/ http://[fc00::1]/ http://[fec0::1]/ http://[ff02::1]/ https://127.0.0.1:8443/x?y=z""".split()


@pytest.fixture
def no_dialling(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Counts every attempted connection."""
    dialled: list[Any] = []
    connect = socket.socket.connect

    def seen(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6):
            dialled.append(address)
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", seen)
    yield dialled
    assert dialled == []


def with_keys(*allow: str, resolve: Any = None) -> ServiceEgress:
    return ServiceEgress(allow, local=lambda: False, **({"resolve": resolve} if resolve else {}))


@pytest.mark.parametrize("url", SPELLINGS)
def test_no_spelling_of_an_inner_address_is_accepted(url: str, no_dialling: list[Any]) -> None:
    with pytest.raises(ServiceError) as caught:
        with_keys().check_url(url)
    assert (caught.value.status, caught.value.code) == (400, Code.URL_NOT_ALLOWED)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "agent.test",
        "ftp://agent.test/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:25/",
        "http://",
        "http:///path",
        "http://user:password@agent.test/",
        "http://user@agent.test/",
        "http://agent.test:99999/",
        "http://agent.test:0/",
        "http://agent test/",
        "http://agent.test/\r\nX-Injected: 1",
        "http://agent.test\\@127.0.0.1/",
        "http://[::1/",
        "http://agent.test/" + "x" * 2048,
        "javascript:alert(1)",
    ],
)
def test_an_invalid_url_is_refused(url: str, no_dialling: list[Any]) -> None:
    with pytest.raises(ServiceError) as caught:
        with_keys().check_url(url)
    assert (caught.value.status, caught.value.code) == (400, Code.INVALID_URL)
    assert "password" not in caught.value.message
    assert caught.value.message.startswith("Field 'agent_endpoint_url': ")


def test_a_name_with_one_refused_address_is_refused(no_dialling: list[Any]) -> None:
    egress = with_keys(resolve=lambda host, port: ["93.184.216.34", "10.0.0.1"])
    with pytest.raises(ServiceError, match=r"agent\.test is 10\.0\.0\.1"):
        egress.check_url("http://agent.test/", "target.url")


def test_public_addresses_and_allowed_networks_are_accepted(no_dialling: list[Any]) -> None:
    egress = with_keys("10.1.0.0/16", "agents.corp:443", resolve=lambda host, port: [host])
    for url in ("https://8.8.8.8/", "http://10.1.2.3:8080/agent"):
        egress.check_url(url)
    with_keys("agents.corp:443", resolve=lambda host, port: ["10.9.9.9"]).check_url("https://agents.corp/")


def test_a_name_that_cannot_be_resolved_is_accepted_until_the_connection() -> None:
    def fails(host: str, port: int) -> list[str]:
        raise socket.gaierror("no such name")

    with_keys(resolve=fails).check_url("http://later.test/")


def test_local_mode_allows_loopback_and_no_other_inner_address() -> None:
    local = ServiceEgress(local=lambda: True)
    for url in ("http://127.0.0.1:9000/", "http://localhost:9000/", "http://[::1]:9000/"):
        local.check_url(url)
    for url in ("http://10.0.0.1/", "http://169.254.169.254/", "http://[::ffff:127.0.0.1]/", "http://0.0.0.0/"):
        with pytest.raises(ServiceError):
            local.check_url(url)


def test_the_first_key_ends_access_to_loopback(tmp_path: Path) -> None:
    from gradeline.service.auth import KeyScope

    service = build_service(ServeSettings(store=str(tmp_path / "store.db"), secret_key=b"0123456789abcdef"))
    assert service.egress.check("127.0.0.1", "127.0.0.1", 80) is None
    service.keys.create(KeyScope.READ)
    assert service.egress.check("127.0.0.1", "127.0.0.1", 80) is not None
    service.stop()


class Answers(AbstractResolver):
    """A name server whose answer changes."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0)
            for address in self._answers.pop(0)
        ]

    async def close(self) -> None: ...


def call_error(egress: ServiceEgress, url: str, resolver: AbstractResolver | None = None) -> CallError:
    async def call() -> None:
        async with Transport(egress, resolver=resolver) as transport:
            await transport.request(HttpRequest("POST", url, deadline_s=5))

    with pytest.raises(CallError) as caught:
        asyncio.run(call())
    return caught.value


@pytest.mark.parametrize("url", [url for url in SPELLINGS if "https" not in url])
def test_no_spelling_of_an_inner_address_is_dialled(url: str, no_dialling: list[Any]) -> None:
    error = call_error(with_keys(), url)
    assert error.type in ("connect", "dns"), error


def test_a_rebound_name_is_not_dialled(no_dialling: list[Any]) -> None:
    egress = with_keys(resolve=lambda host, port: ["93.184.216.34"])
    egress.check_url("http://rebound.test/")
    error = call_error(egress, "http://rebound.test/", Answers(["127.0.0.1"]))
    assert "rebound.test is 127.0.0.1" in str(error)
    error = call_error(egress, "http://rebound.test/", Answers(["93.184.216.34", "10.0.0.1"]))
    assert "rebound.test is 10.0.0.1" in str(error)


def test_a_redirect_to_metadata_is_not_followed() -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class Redirects(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(307)
            self.send_header("Location", "http://169.254.169.254/latest/meta-data/")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Redirects)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        port = server.server_port
        error = call_error(with_keys(f"127.0.0.1:{port}"), f"http://127.0.0.1:{port}/")
    finally:
        server.shutdown()
        server.server_close()
    assert "169.254.169.254 is a cloud metadata address" in str(error)


LETTA_JUDGE = {"agent_id": "agent-1", "prompt": "Is it right?"}


class TestLettaJudge:
    """Stored definitions, previews and suites apply one rule: a letta judge is called at a letta server, not OpenAI."""

    @pytest.fixture
    def service(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-operator")
        service = build_service(ServeSettings(store=str(tmp_path / "store.db"), secret_key=b"0123456789abcdef"))
        yield service
        service.stop()

    def check(self, service: Service, config: dict[str, Any]) -> None:
        check_graders({"judge": {"kind": "letta_judge", **config}}, service.egress, service.secrets, LOCAL_CALLER)

    def test_the_key_of_another_provider_is_refused_everywhere(self, service: Service) -> None:
        config = {**LETTA_JUDGE, "api_key_env": "OPENAI_API_KEY"}
        for refused in (
            lambda: build_grader("letta_judge", config, service.egress),
            lambda: self.check(service, config),
            lambda: self.check(service, {**config, "provider": "openai"}),
        ):
            with pytest.raises(ServiceError, match="sent only to its provider's own address") as caught:
                refused()
            assert caught.value.code is Code.INVALID_GRADER

    def test_a_secret_for_the_letta_cloud_needs_no_base_url(self, service: Service) -> None:
        config = {**LETTA_JUDGE, "api_key_env": "LETTA_KEY"}
        service.secrets.put("LETTA_KEY", "a-letta-key", Binding(("api.letta.com",)))
        self.check(service, config)
        service.secrets.put("LETTA_KEY", "a-letta-key", Binding(("api.openai.com",)))
        with pytest.raises(ServiceError, match=r"may be sent to https://api\.openai\.com only"):
            self.check(service, config)

    def test_an_inner_address_is_refused_everywhere(self, service: Service) -> None:
        config = {**LETTA_JUDGE, "base_url": "http://169.254.169.254"}
        for refused in (
            lambda: build_grader("letta_judge", config, service.egress),
            lambda: self.check(service, config),
        ):
            with pytest.raises(ServiceError) as caught:
                refused()
            assert caught.value.code is Code.URL_NOT_ALLOWED
