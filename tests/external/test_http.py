"""Servers as graders, over a real connection."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gradeline.errors import ConfigError, Outcome, ProviderRefusedError
from gradeline.external.http import HttpGrader
from gradeline.graders import create, run_async_grader, run_grader
from gradeline.model import Grade, GradeContext, Response, Sample
from gradeline.model.resources import Resources
from gradeline.transport.egress import PublicOnly
from invalid_verdicts import BAD_REPLIES

Answer = tuple[int, bytes]


class GradingServer(ThreadingHTTPServer):
    """Answers each request by a function of its JSON, and counts them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: Callable[[Any], Answer] = lambda _: (200, b'{"score": 1}')
        self.requests: list[tuple[dict[str, str], Any]] = []
        self.in_flight = self.most = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/grade"


class _Handler(BaseHTTPRequestHandler):
    server: GradingServer

    def do_POST(self) -> None:
        case = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append((dict(self.headers), case))
            self.server.in_flight += 1
            self.server.most = max(self.server.most, self.server.in_flight)
        status, body = self.server.answer(case)
        with self.server.lock:
            self.server.in_flight -= 1
        with suppress(OSError):  # the client has closed the connection
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[GradingServer]:
    with GradingServer() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()


def grader(url: str, resources: Resources | None = None, **config: Any) -> HttpGrader:
    return HttpGrader(config={"url": url, "retries": 0, **config}).bind(resources or Resources())


def grades(checked: HttpGrader, count: int = 1) -> list[Grade]:
    async def run() -> list[Grade]:
        ctx = GradeContext(Sample("one", "Where?", "Paris"), "Paris", Response(text="Paris"))
        try:
            return list(await asyncio.gather(*(run_async_grader(checked, ctx) for _ in range(count))))
        finally:
            await checked.aclose()

    return asyncio.run(run())


def fault(checked: HttpGrader) -> tuple[str, str]:
    (grade,) = grades(checked)
    assert grade.outcome is Outcome.ERROR, grade
    assert grade.error is not None
    return grade.error.type, grade.error.message


def test_a_server_gets_the_case_and_gives_a_verdict(server: GradingServer) -> None:
    server.answer = lambda case: (200, json.dumps({"score": 0.5, "metadata": {"case": case}}).encode())
    (grade,) = grades(grader(server.url, parameters={"least": 3}))
    assert grade.score == 0.5
    case = grade.metadata["case"]
    assert case.keys() == {"sample", "submission", "response", "config"}
    assert (case["sample"]["id"], case["response"]["text"], case["config"]) == ("one", "Paris", {"least": 3})
    assert server.requests[0][0]["Content-Type"] == "application/json"


@pytest.mark.parametrize(("body", "reason"), BAD_REPLIES)
def test_anything_else_is_a_bad_reply(server: GradingServer, body: str, reason: str) -> None:
    server.answer = lambda _: (200, body.encode())
    kind, message = fault(grader(server.url))
    assert kind == "bad_reply"
    assert reason in message
    assert server.url in message


def test_a_server_that_does_not_answer_in_time(server: GradingServer) -> None:
    def sleeps(_: Any) -> Answer:
        time.sleep(1.5)
        return 200, b""

    server.answer = sleeps
    assert fault(grader(server.url, timeout=0.2))[0] == "timeout"


def test_fifty_megabytes_are_too_large(server: GradingServer) -> None:
    server.answer = lambda _: (200, b"x" * 50_000_000)
    assert fault(grader(server.url))[0] == "too_large"


def test_a_failing_server_is_called_again_then_an_error(server: GradingServer) -> None:
    server.answer = lambda _: (503, b"busy")
    kind, message = fault(grader(server.url, retries=1))
    assert (kind, len(server.requests)) == ("judge_failed", 2)
    assert "503" in message
    assert fault(grader("http://127.0.0.1:9/x"))[0] == "judge_failed"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refused_key_or_a_wrong_path_ends_the_run(server: GradingServer, status: int) -> None:
    server.answer = lambda _: (status, b"no")
    with pytest.raises(ProviderRefusedError, match="check url and headers"):
        grades(grader(server.url))


def test_a_refusal_after_a_success_is_the_error_of_its_case(server: GradingServer) -> None:
    server.answer = lambda _: (200, b'{"score": 1}') if len(server.requests) == 1 else (403, b"not this one")
    checked = grader(server.url, concurrency=1)
    assert [one.outcome for one in grades(checked, 2)] == [Outcome.PASS, Outcome.ERROR]


def test_a_variable_in_a_header_is_sent_and_masked(server: GradingServer) -> None:
    server.answer = lambda case: (200, json.dumps({"score": 1, "rationale": server.requests[0][0]["X-Team"]}).encode())
    headers = {"Authorization": "Bearer ${GRADER_TOKEN}", "X-Team": "${TEAM}"}
    resources = Resources(environment={"GRADER_TOKEN": "a-long-token-1", "TEAM": "the-secret-team"})
    checked = grader(server.url, resources, headers=headers)
    (grade,) = grades(checked)
    assert server.requests[0][0]["Authorization"] == "Bearer a-long-token-1"
    assert grade.rationale == "***"
    server.answer = lambda _: (500, b"not for a-long-token-1 of the-secret-team")
    assert fault(checked)[1].endswith("not for *** of ***")
    other = Resources(environment={"GRADER_TOKEN": "another-token", "TEAM": "x"})
    assert checked.fingerprint == grader(server.url, other, headers=headers).fingerprint


def test_the_egress_policy_holds(server: GradingServer) -> None:
    kind, message = fault(grader(server.url, Resources(policy=PublicOnly())))
    assert kind == "judge_failed"
    assert "127.0.0.1" in message
    assert server.requests == []


def test_concurrency_is_limited(server: GradingServer) -> None:
    def slow(_: Any) -> Answer:
        time.sleep(0.02)
        return 200, b'{"score": 1}'

    server.answer = slow
    assert {one.score for one in grades(grader(server.url, concurrency=3), 30)} == {1.0}
    assert server.most <= 3


def test_it_works_without_a_run(server: GradingServer) -> None:
    assert run_grader(create("http", {"url": server.url}), GradeContext(Sample("one", "q"), "a")).score == 1.0


def test_all_faults_of_the_options_at_once() -> None:
    config = {"url": "ftp://x", "headers": {"X-Api-Key": "sk-12345678", "Host": "y"}, "timeout": 0, "concurrency": 0}
    with pytest.raises(ConfigError) as caught:
        create("http", config)
    assert {problem.path for problem in caught.value.problems} == {
        "config.url",
        "config.headers",
        "config.headers.X-Api-Key",
        "config.timeout",
        "config.concurrency",
    }
    with pytest.raises(ConfigError, match="contains a secret"):
        create("http", {"url": "https://grader.example/x?api_key=12345678"})
    with pytest.raises(ConfigError, match="variables are replaced in headers only"):
        create("http", {"url": "https://${GRADER_HOST}/check"})


def test_a_variable_that_is_not_set_is_a_fault() -> None:
    with pytest.raises(ConfigError, match=r"headers.Authorization: the variable NO_SUCH is not set"):
        grader("https://grader.example", Resources(environment={}), headers={"Authorization": "Bearer ${NO_SUCH}"})
