"""An agent with an invalid certificate is not called: no input is sent unencrypted or to another server."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from tls_agent import tls_agent, write_certificate

sys.path.insert(0, str(Path(__file__).parent))

from live import Server

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


HERE, ELSEWHERE = x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("elsewhere.test")


@pytest.mark.parametrize(
    ("name", "since", "until", "trusted", "message"),
    [
        (HERE, NOW - DAY, NOW + DAY, False, "self-signed certificate"),
        (HERE, NOW - 2 * DAY, NOW - DAY, True, "certificate has expired"),
        (ELSEWHERE, NOW - DAY, NOW + DAY, True, "IP address mismatch"),
    ],
    ids=["unknown", "expired", "of another host"],
)
def test_it_is_an_error_of_the_case_and_makes_no_call(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: x509.GeneralName,
    since: datetime,
    until: datetime,
    trusted: bool,
    message: str,
) -> None:
    file = write_certificate(tmp_path, name, since, until)
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)

    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with tls_agent(file, Handler) as url, Server(tmp_path / "store.db") as server:
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
    assert "TLS connection failed" in result["error_message"]
    assert message in result["error_message"]
