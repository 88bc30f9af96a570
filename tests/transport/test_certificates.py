"""The machine's certificates are read by the first TLS connection, and a stranger is refused as ever."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gradeline.transport.certificates import read_when_needed


def said_by(script: str, **variables: str) -> Any:
    """The JSON that a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env={**os.environ, **variables}
    )
    return json.loads(done.stdout)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an agent")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "agent.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A handshake that is broken off is what a test is about."""


class _Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        """Nothing is news."""


@contextmanager
def agent_with(certificate: Path) -> Iterator[str]:
    server = _Quiet(("127.0.0.1", 0), _Hello)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


ASK = """
import asyncio, json
from gradeline.transport import CallError, Request, Transport

async def ask():
    async with Transport() as transport:
        try:
            return [(await transport.request(Request("GET", {url!r}, retries=0))).body.decode() for _ in range(2)]
        except CallError as error:
            return error.type

print(json.dumps(asyncio.run(ask())))
"""


def test_an_agent_that_the_machine_trusts_is_asked(certificate: Path) -> None:
    with agent_with(certificate) as url:
        assert said_by(ASK.format(url=url), SSL_CERT_FILE=str(certificate)) == ["hello", "hello"]


def test_an_agent_that_nobody_vouches_for_is_not_asked(certificate: Path, tmp_path: Path) -> None:
    nobody = tmp_path / "nobody.pem"
    nobody.write_text("")
    with agent_with(certificate) as url:
        assert said_by(ASK.format(url=url), SSL_CERT_FILE=str(nobody)) == "tls"


def test_loading_the_transport_reads_no_certificates_and_leaves_ssl_as_it_was() -> None:
    script = """
import json, ssl
before = dict(vars(ssl.SSLContext))

import gradeline.transport
from aiohttp import connector

contexts = [connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED]
waiting = [type(one) is not ssl.SSLContext for one in contexts]
held = [one.cert_store_stats() == ssl.create_default_context().cert_store_stats() for one in contexts]
now_plain = [type(one) is ssl.SSLContext for one in contexts]
print(json.dumps([waiting, held, now_plain, vars(ssl.SSLContext) == before]))
"""
    assert said_by(script) == [[True, True], [True, True], [True, True], True]


class TestAContextMadeInTheBlock:
    def test_has_the_certificates_when_it_is_looked_into(
        self, certificate: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with read_when_needed():
            waiting, listed = ssl.create_default_context(), ssl.create_default_context()
        assert (waiting.verify_mode, waiting.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert waiting.cert_store_stats()["x509"] == 1
        assert [one["subject"] for one in listed.get_ca_certs()] == [
            one["subject"] for one in ssl.create_default_context().get_ca_certs()
        ]

    def test_serves_a_plain_socket_too(self, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with read_when_needed():
            context = ssl.create_default_context()
        with agent_with(certificate) as url:
            port = int(url.rstrip("/").rpartition(":")[2])
            with (
                socket.create_connection(("127.0.0.1", port)) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
            ):
                assert secure.getpeercert() != {}

    def test_by_another_thread_or_of_another_class_reads_them_at_once(self) -> None:
        class Own(ssl.SSLContext):
            pass

        made: list[ssl.SSLContext] = []
        with read_when_needed():
            thread = Thread(target=lambda: made.append(ssl.create_default_context()))
            thread.start()
            thread.join()
            own = Own(ssl.PROTOCOL_TLS_CLIENT)
            own.load_default_certs()
        assert (type(made[0]), type(own)) == (ssl.SSLContext, Own)

    def test_is_left_alone_where_another_way_to_read_them_is_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[ssl.SSLContext] = []
        monkeypatch.setattr(ssl.SSLContext, "set_default_verify_paths", lambda one: asked.append(one), raising=False)
        with read_when_needed():
            context = ssl.create_default_context()
        assert (asked, type(context)) == ([context], ssl.SSLContext)
        assert "set_default_verify_paths" in vars(ssl.SSLContext)
