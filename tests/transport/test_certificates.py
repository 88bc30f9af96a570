"""The machine's certificates are read by the first TLS connection, and a stranger is refused as ever."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cryptography import x509

from gradeline.transport.certificates import lazy_certificates
from tls_agent import tls_agent, write_certificate


def output_of(script: str, **variables: str) -> Any:
    """The JSON that a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env={**os.environ, **variables}
    )
    return json.loads(done.stdout)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, with its key."""
    now = datetime.now(UTC)
    here = x509.IPAddress(ip_address("127.0.0.1"))
    return write_certificate(tmp_path, here, now - timedelta(days=1), now + timedelta(days=1))


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        """Nothing is news."""


ASK = """
import asyncio, json
from gradeline.transport import CallError, HttpRequest, Transport

async def ask():
    async with Transport() as transport:
        try:
            return [(await transport.request(HttpRequest("GET", {url!r}, retries=0))).body.decode() for _ in range(2)]
        except CallError as error:
            return error.type

print(json.dumps(asyncio.run(ask())))
"""


def test_an_agent_trusted_by_the_system_is_called(certificate: Path) -> None:
    with tls_agent(certificate, _Hello) as url:
        assert output_of(ASK.format(url=url), SSL_CERT_FILE=str(certificate)) == ["hello", "hello"]


def test_an_untrusted_agent_is_not_called(certificate: Path, tmp_path: Path) -> None:
    nobody = tmp_path / "nobody.pem"
    nobody.write_text("")
    with tls_agent(certificate, _Hello) as url:
        assert output_of(ASK.format(url=url), SSL_CERT_FILE=str(nobody)) == "tls"


@pytest.mark.parametrize("module", ["gradeline.transport", "gradeline.adapters.transport"])
def test_loading_a_transport_reads_no_certificates_and_leaves_ssl_as_it_was(module: str) -> None:
    script = f"import json, ssl\nbefore = dict(vars(ssl.SSLContext))\nimport {module}\n"
    script += """
from aiohttp import connector

contexts = [connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED]
waiting = [type(one) is not ssl.SSLContext for one in contexts]
held = [one.cert_store_stats() == ssl.create_default_context().cert_store_stats() for one in contexts]
now_plain = [type(one) is ssl.SSLContext for one in contexts]
print(json.dumps([waiting, held, now_plain, vars(ssl.SSLContext) == before]))
"""
    assert output_of(script) == [[True, True], [True, True], [True, True], True]


class TestContextCreatedInTheBlock:
    def test_loads_the_certificates_when_inspected(self, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with lazy_certificates():
            waiting, listed = ssl.create_default_context(), ssl.create_default_context()
        assert (waiting.verify_mode, waiting.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert waiting.cert_store_stats()["x509"] == 1
        assert [one["subject"] for one in listed.get_ca_certs()] == [
            one["subject"] for one in ssl.create_default_context().get_ca_certs()
        ]

    def test_works_with_a_plain_socket(self, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with lazy_certificates():
            context = ssl.create_default_context()
        with tls_agent(certificate, _Hello) as url:
            port = int(url.rstrip("/").rpartition(":")[2])
            with (
                socket.create_connection(("127.0.0.1", port)) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
            ):
                assert secure.getpeercert() != {}

    def test_by_another_thread_or_of_another_class_reads_them_at_once(self) -> None:
        class CustomContext(ssl.SSLContext):
            pass

        contexts: list[ssl.SSLContext] = []
        with lazy_certificates():
            thread = Thread(target=lambda: contexts.append(ssl.create_default_context()))
            thread.start()
            thread.join()
            own = CustomContext(ssl.PROTOCOL_TLS_CLIENT)
            own.load_default_certs()
        assert (type(contexts[0]), type(own)) == (ssl.SSLContext, CustomContext)

    def test_is_not_changed_if_set_default_verify_paths_is_patched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded: list[ssl.SSLContext] = []
        monkeypatch.setattr(ssl.SSLContext, "set_default_verify_paths", lambda one: loaded.append(one), raising=False)
        with lazy_certificates():
            context = ssl.create_default_context()
        assert (loaded, type(context)) == ([context], ssl.SSLContext)
        assert "set_default_verify_paths" in vars(ssl.SSLContext)
