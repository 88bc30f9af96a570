"""Invalid and hostile requests: every response is an envelope with the fault, and nothing breaks."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from select import select
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from starlette.routing import Match

from gradeline.service.app import create_app
from gradeline.service.openapi import openapi_of, operations_of
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings

from .conftest import MASTER_KEY, Call

sys.path.insert(0, str(Path(__file__).parent))

from live import EchoAgent, Server, suite_of

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
ODD = "ünï \U0001f469\u200d\U0001f680 \u202eright to left \ufeff \u0301 <script> '; DROP TABLE runs; -- {{7*7}} ${HOME} %00 \\u0000 =1+1"
"""Scripts of several kinds, a joined emoji, direction marks, a byte order mark, and what other programs would run."""


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ServeSettings:
    store = str(tmp_path / "store.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return ServeSettings(store=store, secret_key=MASTER_KEY)


@pytest.fixture
def agent() -> Iterator[EchoAgent]:
    with EchoAgent() as started:
        yield started


def done(call: Call, body: dict[str, Any]) -> str:
    run: str = call("POST", "/api/evaluations", json=body).data["id"]
    assert "event: done" in call("GET", f"/api/evaluations/{run}/events").body
    return run


def test_every_other_method_of_every_path_is_refused_with_those_that_are_possible(service: Service, call: Call) -> None:
    app = create_app(service)
    paths = {route.path_format for route, _ in operations_of(app)}
    for path in sorted(paths):
        filled = path.replace("{", "").replace("}", "")
        for method in METHODS:
            scope = {"type": "http", "method": method, "path": filled}
            if any(route.matches(scope)[0] is Match.FULL for route in app.router.routes):
                continue
            answer = call(method, filled)
            assert (answer.status, answer.error["code"]) == (405, "METHOD_NOT_ALLOWED"), (method, filled)
            assert answer.headers["Allow"], (method, filled)


IDS = [
    "0",
    "-1",
    "no-uuid",
    "00000000-0000-4000-8000-00000000000g",
    "00000000-0000-4000-8000-000000000000 ",
    "{00000000-0000-4000-8000-000000000000}",
    "' OR 1=1 --",
    "%",
    "_" * 36,
    "\x00",
    "a\x00b",
    "\n",
    "ünï",
    "\U0001f600",
    "x" * 5_000,
    "..",
    "null",
]


def test_a_malformed_id_is_an_unknown_id_in_every_path(service: Service, call: Call) -> None:
    bodies = {
        ("PUT", "/api/test-cases/{}"): {"input": "q"},
        ("PUT", "/api/graders/{}"): {"name": "n"},
        ("POST", "/api/graders/{}/preview"): {"agent_response": "a", "expected_output": "a"},
        ("POST", "/api/evaluations/{}/regrade"): {"grader_ids": ["exact_match"]},
        ("POST", "/api/evaluations/{}/label-samples"): {"n": 1},
    }
    known = done(call, {"suite": {**suite_of_nobody(), "name": "known"}})
    for route, method in operations_of(create_app(service)):
        if (
            "{evaluation_id}" not in route.path
            and "{test_case_id}" not in route.path
            and "{grader_id}" not in route.path
        ):
            continue
        for filled in (path for wrong in IDS for path in filled_paths(route.path, wrong, known)):
            first = next(part for part in route.path.split("/") if part.startswith("{"))
            body = bodies.get((method, route.path.replace(first, "{}")))
            answer = call(method, filled, **({"json": body} if body else {}))
            # a label has a body of its own, which is looked at first
            expected = {400, 404} if method == "PUT" and body is None else {404}
            assert answer.status in expected, (method, filled, answer.body)
            assert len(answer.error["message"]) < 300, "the id is quoted, but not all of it"


def filled_paths(path: str, wrong: str, known: str) -> Iterator[str]:
    """The path with the wrong ID as the first one, and as the second after a valid one."""
    parts = path.split("/")
    places = [n for n, part in enumerate(parts) if part.startswith("{")]
    for turn in range(min(2, len(places))):
        values = [known] * turn + [wrong] * (len(places) - turn)
        filled = list(parts)
        for place, value in zip(places, values, strict=True):
            filled[place] = quote(value, safe="") if value != ".." else "%2e%2e"
        if turn == 0 or parts[2] == "evaluations":
            yield "/".join(filled)


def suite_of_nobody() -> dict[str, Any]:
    return {
        "target": {"kind": "http", "url": "http://agent.invalid/", "retries": 0},
        "graders": {"exact": {"kind": "exact_match"}},
        "dataset": [{"id": "1", "input": "q", "ground_truth": "a"}],
    }


@pytest.mark.parametrize("wrong", ["no-uuid", "x" * 5_000, "' OR 1=1 --", "ünï", ""], ids=lambda text: repr(text)[:20])
def test_an_id_of_the_wrong_form_in_a_body_is_named(call: Call, wrong: str) -> None:
    case = call("POST", "/api/test-cases", json={"input": "q", "expected_output": "a"}).data["id"]
    asked = {"test_case_ids": [case], "agent_endpoint_url": "http://127.0.0.1:9/", "grader_ids": ["exact_match"]}
    for field, value, code in (
        ("test_case_ids", [case, wrong], "INVALID_TEST_CASE_ID"),
        ("grader_ids", [wrong], "INVALID_GRADER_ID"),
        ("baseline_id", wrong, "INVALID_INPUT"),
    ):
        answer = call("POST", "/api/evaluations", json={**asked, field: value})
        assert (answer.status, answer.error["code"]) == (400, code), (field, answer.body)
        assert field in answer.error["message"]
        assert len(answer.error["message"]) < 400


def test_numbers_beyond_every_bound_are_refused(service: Service, call: Call) -> None:
    document = openapi_of(create_app(service))
    tried = 0
    for path, operations in document["paths"].items():
        for parameter in operations.get("get", {}).get("parameters", []):
            kinds = [parameter["schema"], *parameter["schema"].get("anyOf", [])]
            if parameter["in"] == "query" and any(kind.get("type") == "integer" for kind in kinds):
                filled = path.replace("{", "").replace("}", "")
                for value in (-1, 2**31, 2**63, 10**30, "1e3", "0x10", "١", ""):
                    answer = call("GET", filled, params={parameter["name"]: value})
                    assert answer.status in (200, 400, 404), (filled, parameter["name"], value, answer.body)
                    tried += 1
    assert tried >= 8 * 8


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "\U0010ffff", " ", "%", "\\", "' OR 1=1 --"], ids=ascii)
def test_odd_strings_in_every_parameter_are_searched_or_refused(service: Service, call: Call, text: str) -> None:
    run = done(call, {"suite": {**suite_of_nobody(), "name": "known"}})
    document = openapi_of(create_app(service))
    asked = 0
    for path, operations in document["paths"].items():
        filled = path.replace("{evaluation_id}", run).replace("{", "").replace("}", "")
        needed = [p for p in operations.get("get", {}).get("parameters", []) if p["in"] == "query"]
        for parameter in needed:
            others = {p["name"]: run for p in needed if p.get("required") and p is not parameter}
            query = urlencode({**others, parameter["name"]: text.encode("utf-8", "surrogatepass")})
            answer = call("GET", f"{filled}?{query}")
            assert answer.status in (200, 400, 404), (filled, parameter["name"], answer.body)
            asked += 1
    assert asked > 30


@pytest.mark.parametrize("text", ["\0", "\ud800"], ids=ascii)
def test_nul_and_half_characters_in_every_field_of_a_body_are_refused(service: Service, call: Call, text: str) -> None:
    """Each text of each example of the API's description, one after the other."""
    document = openapi_of(create_app(service))
    run = done(call, {"suite": {**suite_of_nobody(), "name": "known"}})
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is None or path == "/api/session":
                continue
            for body in spoiled(content["example"], text):
                filled = path.replace("{evaluation_id}", run).replace("{", "").replace("}", "")
                raw = json.dumps(body).encode()
                answer = call(method.upper(), filled, content=raw, headers={"Content-Type": "application/json"})
                assert answer.status in (400, 404), (method, path, body, answer.body)


def spoiled(tree: Any, text: str) -> Iterator[Any]:
    """The tree with the text at the end of one of its texts, for each of them."""
    if isinstance(tree, str):
        yield tree + text
    elif isinstance(tree, dict):
        for key, value in tree.items():
            for worse in spoiled(value, text):
                yield {**tree, key: worse}
    elif isinstance(tree, list):
        for n, value in enumerate(tree):
            for worse in spoiled(value, text):
                yield [*tree[:n], worse, *tree[n + 1 :]]


def test_unicode_in_every_field_is_returned_unchanged(call: Call, agent: EchoAgent) -> None:
    fields = {"input": ODD, "expected_output": ODD[::-1], "description": ODD}
    case = call("POST", "/api/test-cases", json={**fields, "tags": ["a-Z_9"]}).data
    assert {name: case[name] for name in fields} == fields
    assert call("PUT", f"/api/test-cases/{case['id']}", json={"input": ODD * 2}).data["input"] == ODD * 2
    (found,) = call("GET", "/api/test-cases", params={"q": ODD}).data["test_cases"]
    assert found["id"] == case["id"]
    grader = {"id": "odd", "name": ODD[:60], "description": ODD, "type": "contains", "config": {}}
    stored = call("POST", "/api/graders", json=grader)
    assert (stored.status, stored.data["name"], stored.data["description"]) == (201, ODD[:60], ODD)
    body = {
        "name": ODD,
        "test_case_ids": [case["id"]],
        "agent_endpoint_url": agent.url,
        "grader_ids": ["odd", {"id": "exact_match", "name": ODD[:100]}],
    }
    run = done(call, body)
    shown = call("GET", f"/api/evaluations/{run}").data
    assert (shown["name"], shown["grader_ids"]) == (ODD, ["odd", ODD[:100]])
    assert [one["id"] for one in call("GET", "/api/evaluations", params={"q": ODD}).data["evaluations"]] == [run]
    (result,) = call("GET", f"/api/evaluations/{run}/results", params={"q": ODD, "grader": ODD[:100]}).data["results"]
    assert (result["test_case_input"], result["agent_response"]) == (ODD * 2, ODD * 2)
    for kind in ("json", "jsonl", "csv", "junit", "html"):
        assert call("GET", f"/api/evaluations/{run}/export?format={kind}").status == 200
    exported = json.loads(call("GET", f"/api/evaluations/{run}/export?format=jsonl").body.splitlines()[0])
    assert ODD * 2 in json.dumps(exported, ensure_ascii=False).replace("\\\\", "\\")
    secret = call("PUT", "/api/secrets/ODD", json={"value": ODD, "host": "agent.test"})
    assert secret.status in (200, 400), "a header cannot carry every text"


def test_a_run_whose_cases_were_all_deleted_stays_complete(call: Call, agent: EchoAgent) -> None:
    cases = [
        call("POST", "/api/test-cases", json={"input": f"q{n}", "expected_output": f"q{n}", "tags": ["t"]}).data["id"]
        for n in range(3)
    ]
    agent.failing = {"q2"}
    body = {"test_case_ids": cases, "agent_endpoint_url": agent.url, "grader_ids": ["exact_match"]}
    run = done(call, body)
    agent.may_answer.clear()
    waiting = call("POST", "/api/evaluations", json=body).data["id"]
    for case in cases:
        assert call("DELETE", f"/api/test-cases/{case}").status == 204
    agent.may_answer.set()
    agent.failing = set()
    assert "event: done" in call("GET", f"/api/evaluations/{waiting}/events").body
    for one in (run, waiting):
        results = call("GET", f"/api/evaluations/{one}/results").data["results"]
        assert [result["test_case_input"] for result in results] == ["q0", "q1", "q2"]
    assert call("POST", f"/api/evaluations/{run}/retry-failed").status == 202
    assert "event: done" in call("GET", f"/api/evaluations/{run}/events").body
    assert call("GET", f"/api/evaluations/{run}/results").data["summary"]["successful_responses"] == 3
    assert call("POST", f"/api/evaluations/{run}/regrade", json={"grader_ids": ["contains"]}).status == 201
    assert call("GET", f"/api/evaluations/{run}/suite").status == 200
    again = call("POST", "/api/evaluations", json=body)
    assert (again.status, again.error["code"]) == (400, "INVALID_TEST_CASE_ID")
    assert again.error["details"]["ids"] == cases


class TestClocks:
    """No wall clock decides anything: leases depend on heartbeats, latencies and limits on the monotonic clock."""

    @pytest.fixture
    def jumping(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
        """Every reading of the wall clock is hours or days away from the last one."""
        real, looks = time.time, [0]
        leaps = (0, 3600, -3600, 2 * 86400, -2 * 86400)

        def leaping() -> float:
            looks[0] += 1
            return real() + leaps[looks[0] % len(leaps)]

        monkeypatch.setattr(time, "time", leaping)
        return lambda: looks[0]

    def test_runs_lists_and_latencies_do_not_mind_a_clock_that_jumps(
        self, jumping: Callable[[], int], call: Call, agent: EchoAgent
    ) -> None:
        runs = [done(call, {"suite": suite_of(agent, 20, prefix=prefix)}) for prefix in "abc"]
        assert jumping() > 0
        assert set(agent.calls.values()) == {1}, "no lease ran out"
        for run in runs:
            page = call("GET", f"/api/evaluations/{run}/results").data
            assert [one["test_case_id"][1:] for one in page["results"]] == [str(n) for n in range(20)]
            assert all(0 <= one["response_latency_ms"] < 60_000 for one in page["results"])
        seen: list[str] = []
        cursor = None
        while True:
            params = {"limit": 1} | ({"cursor": cursor} if cursor else {})
            page = call("GET", "/api/evaluations", params=params).data
            seen += [one["id"] for one in page["evaluations"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert sorted(seen) == sorted(runs), "each run is listed once"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
class TestLargeAndSlow:
    """Against a real server: what it does with bytes that do not end."""

    def memory_kb(self, server: Server) -> int:
        """The peak memory of the server."""
        lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))

    @pytest.mark.parametrize("announced", [True, False], ids=["announced", "in chunks"])
    @pytest.mark.parametrize(
        ("path", "kind", "most"),
        [
            ("/api/test-cases", "application/json", 10_000_000),
            ("/api/test-cases/import", "application/x-ndjson", 200_000_000),
        ],
        ids=["json", "import"],
    )
    def test_a_gigabyte_is_refused_early_and_not_buffered(
        self, tmp_path: Path, announced: bool, path: str, kind: str, most: int
    ) -> None:
        whole, block = 1_000_000_000, b" " * 1_000_000
        with Server(tmp_path / "store.db") as server:
            before = self.memory_kb(server)
            place = urlsplit(server.url)
            head = f"POST {path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: {kind}\r\n"
            length = f"Content-Length: {whole}\r\n\r\n" if announced else "Transfer-Encoding: chunked\r\n\r\n"
            piece = block if announced else b"%x\r\n%s\r\n" % (len(block), block)
            sent, answered = 0, None
            with socket.create_connection((place.hostname or "", place.port or 0), timeout=30) as connection:
                connection.sendall((head + length).encode())
                with contextlib.suppress(ConnectionError):
                    # it goes on sending although it was answered, as a client does that does not look
                    while sent < whole:
                        connection.sendall(piece)
                        sent += len(block)
                        if answered is None and select([connection], [], [], 0)[0]:
                            answered = sent
                            assert connection.recv(12) == b"HTTP/1.1 413"
            assert answered is not None
            assert answered < (0 if announced else most) + 50_000_000, "what the buffers between the two hold"
            assert server.call("GET", "/api/ready")[0] == 200
            assert server.data("GET", "/api/test-cases")["total"] == 0
            assert self.memory_kb(server) - before < 100_000

    def test_many_slow_senders_do_not_delay_other_callers(self, tmp_path: Path) -> None:
        with Server(tmp_path / "store.db") as server, contextlib.ExitStack() as opened:
            place = urlsplit(server.url)
            head = f"POST /api/test-cases HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
            for n in range(200):
                slow = opened.enter_context(socket.create_connection((place.hostname or "", place.port or 0)))
                # half of them stop within the head, half within the body
                slow.sendall(head.encode() if n % 2 else (head + "Content-Length: 100\r\n\r\n{").encode())
            case = server.data("POST", "/api/test-cases", {"input": "q", "expected_output": "a"})
            assert server.data("GET", f"/api/test-cases/{case['id']}") == case
