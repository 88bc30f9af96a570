"""An agent behind TLS that cannot be trusted is not asked: nothing of the question is sent in the clear or to a stranger."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

sys.path.insert(0, str(Path(__file__).parent))

from live import Server

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def certificate(folder: Path, name: x509.GeneralName, since: datetime, until: datetime) -> Path:
    """A certificate that nobody vouches for, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an agent")])
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "agent.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A handshake that is broken off is what the tests are about."""


@contextmanager
def agent_with(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Its address, and the questions that reach it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)

    server = _Quiet(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}/ask", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


HERE, ELSEWHERE = x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("elsewhere.test")


@pytest.mark.parametrize(
    ("name", "since", "until", "trusted", "says"),
    [
        (HERE, NOW - DAY, NOW + DAY, False, "self-signed certificate"),
        (HERE, NOW - 2 * DAY, NOW - DAY, True, "certificate has expired"),
        (ELSEWHERE, NOW - DAY, NOW + DAY, True, "IP address mismatch"),
    ],
    ids=["unknown", "expired", "of another host"],
)
def test_it_is_an_error_of_the_case_and_nothing_is_asked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: x509.GeneralName,
    since: datetime,
    until: datetime,
    trusted: bool,
    says: str,
) -> None:
    file = certificate(tmp_path, name, since, until)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with agent_with(file) as (url, asked), Server(tmp_path / "store.db") as server:
        suite = {
            "name": "tls",
            "target": {"kind": "http", "url": url, "retries": 1},
            "graders": {"exact": {"kind": "exact_match"}},
            "dataset": [{"id": "1", "input": "a question", "ground_truth": "a"}],
        }
        run = server.data("POST", "/api/evaluations", {"suite": suite})["id"]
        assert server.until_ended(run)["status"] == "completed"
        (result,) = server.data("GET", f"/api/evaluations/{run}/results")["results"]
        assert asked == []
    assert (result["response_status"], result["scores"][0]["score_status"]) == ("error", "skipped")
    assert "no secure connection" in result["error_message"]
    assert says in result["error_message"]
