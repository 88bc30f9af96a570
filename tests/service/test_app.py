"""Properties of every response, including errors."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import FileResponse, StreamingResponse
from starlette.testclient import TestClient

from gradeline import __version__
from gradeline.errors import ConfigError, Problem, StoreError
from gradeline.model import Run
from gradeline.service import app as app_module
from gradeline.service.app import application
from gradeline.service.auth import KeyScope, requires
from gradeline.service.errors import Code, ServiceError
from gradeline.service.routes.system import Pages
from gradeline.service.secrets import Binding, Secrets
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings
from gradeline.service.telemetry import Gauge, JsonFormatter, ServiceMetrics, log_to
from gradeline.store.database import Transaction
from gradeline.store.sqlite import SqliteStorage

from .conftest import BASE_URL, MASTER_KEY, Call

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    input: str = Field(min_length=1, max_length=10)
    tags: list[str] | None = Field(default=None, max_length=2)
    limit: int = 1


def broken_routes() -> APIRouter:
    router = APIRouter()

    def route(path: str) -> Callable[..., Any]:
        def add(endpoint: Callable[..., Any]) -> Callable[..., Any]:
            router.add_api_route(path, requires(KeyScope.PUBLIC)(endpoint), methods=["GET"])
            return endpoint

        return add

    @route("/test/defect")
    def defect() -> None:
        raise RuntimeError("a secret path /srv/secret.db")

    @route("/test/locked")
    def locked() -> None:
        raise StoreError("the store /srv/secret.db is locked", retryable=True)

    @route("/test/full")
    def full() -> None:
        raise StoreError("the store /srv/secret.db cannot grow: the disk is full")

    @route("/test/config")
    def config() -> None:
        raise ConfigError([Problem("graders.a", "is wrong"), Problem("target", "is missing")])

    @route("/test/api")
    def api() -> None:
        raise ServiceError(Code.CONFLICT, "not now", details={"state": "done"}, headers={"X-More": "1"})

    @route("/test/half")
    def half() -> StreamingResponse:
        def parts() -> Iterator[bytes]:
            yield b"first"
            raise RuntimeError("in the middle")

        return StreamingResponse(parts())

    @requires(KeyScope.PUBLIC)
    def take(body: Body) -> None: ...

    router.add_api_route("/test/take", take, methods=["POST"])

    @requires(KeyScope.PUBLIC)
    def path(number: int) -> None: ...

    router.add_api_route("/test/path/{number}", path, methods=["GET"])
    return router


@pytest.fixture
def broken(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    made = app_module.create_app

    def with_more(service: Service) -> FastAPI:
        app = made(service)
        app.router.routes.extend(broken_routes().routes)
        return app

    monkeypatch.setattr(app_module, "create_app", with_more)
    with TestClient(application(service), base_url=BASE_URL, raise_server_exceptions=False) as client:
        yield Call(client)


@pytest.mark.parametrize(
    ("path", "status", "code", "message"),
    [
        (
            "/test/defect",
            500,
            "INTERNAL_ERROR",
            "Internal error; the server log has the details under this request's id",
        ),
        ("/test/locked", 503, "STORAGE_UNAVAILABLE", "The store is busy; retry"),
        (
            "/test/full",
            507,
            "STORAGE_UNAVAILABLE",
            "The store cannot grow: the disk is full. Nothing was stored; the operator must free disk space",
        ),
        ("/test/config", 400, "INVALID_INPUT", "graders.a: is wrong\n  target: is missing"),
        ("/test/api", 409, "CONFLICT", "not now"),
        ("/test/nothing", 404, "NOT_FOUND", "Nothing found at '/test/nothing'"),
        ("/test/take", 405, "METHOD_NOT_ALLOWED", "GET is not allowed here"),
        ("/test/path/x", 404, "NOT_FOUND", "Nothing found at 'x'"),
    ],
)
def test_what_goes_wrong_is_an_envelope(broken: Call, path: str, status: int, code: str, message: str) -> None:
    answer = broken("GET", path)
    assert (answer.status, answer.error["code"], answer.error["message"]) == (status, code, message)
    assert set(answer.body) == {"success", "data", "error"}
    assert "secret" not in str(answer.body)
    if status in (503, 507):
        assert answer.headers["retry-after"] == "5"


def test_details_and_headers_of_an_error_are_returned(broken: Call) -> None:
    assert broken("GET", "/test/api").error["details"] == {"state": "done"}
    assert broken("GET", "/test/api").headers["x-more"] == "1"
    assert broken("GET", "/test/config").error["details"] == {
        "errors": [{"field": "graders.a", "message": "is wrong"}, {"field": "target", "message": "is missing"}]
    }


@pytest.mark.parametrize(
    ("sent", "code", "message"),
    [
        ({}, "MISSING_FIELD", "Field 'input' is required"),
        ({"input": ""}, "INVALID_LENGTH", "Field 'input': string should have at least 1 character, not ''"),
        (
            {"input": "x" * 11},
            "INVALID_LENGTH",
            "Field 'input': string should have at most 10 characters, not 'xxxxxxxxxxx'",
        ),
        ({"input": 7}, "INVALID_INPUT", "Field 'input': input should be a valid string, not 7"),
        ({"input": "\ud800"}, "INVALID_INPUT", None),
        ({"input": "a", "more": 1}, "INVALID_INPUT", "Field 'more' is unknown"),
        ({"input": "a", "tags": ["b", 1]}, "INVALID_INPUT", "Field 'tags[1]': input should be a valid string, not 1"),
        (
            {"input": "a", "tags": list("abc")},
            "INVALID_LENGTH",
            "Field 'tags': list should have at most 2 items after validation, not 3",
        ),
        ({"input": "a", "limit": True}, "INVALID_INPUT", "Field 'limit': input should be a valid integer, not True"),
        ([], "INVALID_INPUT", "The body must be a JSON object"),
        ("text", "INVALID_INPUT", "The body must be a JSON object"),
    ],
)
def test_a_wrong_body_names_its_field(broken: Call, sent: Any, code: str, message: str | None) -> None:
    answer = broken("POST", "/test/take", content=json.dumps(sent), headers={"Content-Type": "application/json"})
    assert (answer.status, answer.error["code"]) == (400, code)
    if message is not None:
        assert answer.error["message"] == message


def test_all_faults_of_a_body_are_reported_at_once(broken: Call) -> None:
    answer = broken("POST", "/test/take", json={"tags": 1, "more": 2})
    assert answer.error["details"] == {
        "errors": [
            {"field": "input", "code": "MISSING_FIELD", "message": "Field 'input' is required"},
            {"field": "tags", "code": "INVALID_INPUT", "message": "Field 'tags': input should be a valid list, not 1"},
            {"field": "more", "code": "INVALID_INPUT", "message": "Field 'more' is unknown"},
        ]
    }


@pytest.mark.parametrize(
    "sent", [b"{", b"nonsense", b"\xff\xfe\x00", b'{"input": "a"', b"[" * 100_000, b"1" * 5000, b'{"a": \xff}']
)
def test_invalid_json_is_reported(broken: Call, sent: bytes) -> None:
    answer = broken("POST", "/test/take", content=sent, headers={"Content-Type": "application/json"})
    assert (answer.status, answer.error["code"]) == (400, "INVALID_JSON")


def test_a_missing_body_is_reported(broken: Call) -> None:
    answer = broken("POST", "/test/take")
    assert (answer.status, answer.error["code"]) == (400, "MISSING_FIELD")
    assert answer.error["message"] == "A body is required: a JSON object"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/assets/start.js"),
        ("GET", "/assets/absent.js"),
        ("GET", "/api/health"),
        ("GET", "/api/openapi.json"),
        ("GET", "/api/docs"),
        ("GET", "/api/metrics"),
        ("GET", "/api/nothing"),
        ("OPTIONS", "/api/health"),
        ("PATCH", "/api/health"),
        ("TRACE", "/api/health"),
        ("GET", "/test/defect"),
        ("GET", "/test/full"),
        ("POST", "/test/take"),
    ],
)
def test_every_answer_has_the_security_headers(broken: Call, method: str, path: str) -> None:
    answer = broken(method, path)
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    scripts = policy.partition("script-src")[2].partition(";")[0].split()
    assert scripts in ([], ["'self'"])
    assert "unsafe-eval" not in policy
    assert len(answer.headers["x-request-id"]) == 32
    assert "server" not in answer.headers


def test_responses_are_not_cached(call: Call) -> None:
    assert call("GET", "/api/health").headers["cache-control"] == "no-store"


def test_health_does_not_depend_on_the_store_but_readiness_does(service: Service, call: Call) -> None:
    assert call("GET", "/api/health").data == {"status": "ok", "version": __version__}
    assert call("GET", "/api/ready").data == {"status": "ready", "version": __version__}
    service.storage.close()
    service.readiness._checked = float("-inf")  # a second later
    answer = call("GET", "/api/ready")
    assert (answer.status, answer.error["code"]) == (503, "STORAGE_UNAVAILABLE")
    assert answer.headers["retry-after"] == "5"
    assert call("GET", "/api/health").status == 200


def test_health_does_not_wait_for_the_store(service: Service, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []

    class Watched:
        def read(self, *_: object) -> list[Any]:
            looks.append(None)
            return []

    monkeypatch.setattr(service.keys, "_database", Watched())
    monkeypatch.setattr(service.keys, "_looked", float("-inf"))
    assert (call("GET", "/api/health").status, looks) == (200, [])
    assert (call("GET", "/api/graders?limit=1").status, looks) == (200, [None])


def test_a_store_without_room_is_not_ready(service: Service, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StoreError("the store /x cannot grow: the disk is full; free some space, then resume")

    monkeypatch.setattr(service.readiness, "_database", SimpleNamespace(transact=full))
    answer = call("GET", "/api/ready")
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "STORAGE_UNAVAILABLE", "5")
    assert answer.error["message"].startswith("The store cannot grow: the disk is full.")


def test_readiness_is_checked_by_a_write(service: Service, call: Call) -> None:
    call("GET", "/api/ready")
    assert service.database.read("SELECT name FROM readiness") == [("service",)]


def test_without_the_web_interface_a_plain_page_has_instructions(tmp_path: Path) -> None:
    pages = Pages(web=tmp_path)
    assert pages.has_web is False
    page = Path(cast(FileResponse, pages.index()).path).read_text()
    assert 'href="/api/docs"' in page
    assert "<script>" not in page
    assert pages.asset("start.js").headers["content-type"].startswith("text/javascript")


def test_the_web_interface_is_served_where_it_is_built(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "assets" / "index-1.js").write_text("1")
    pages = Pages(web=tmp_path)
    assert (pages.has_web, cast(FileResponse, pages.index()).path) == (True, tmp_path / "index.html")
    assert pages.index().headers["cache-control"] == "no-cache"
    assert pages.asset("index-1.js").headers["cache-control"] == "public, max-age=31536000, immutable"
    with pytest.raises(ServiceError, match="No such file"):
        pages.asset("start.js")


@pytest.mark.parametrize(
    "path", ["/assets/../app.py", "/assets/%2e%2e/app.py", "/assets//etc/passwd", "/api/docs/..%2fapp.py"]
)
def test_no_path_leads_out_of_the_folder(call: Call, path: str) -> None:
    assert call("GET", path).status == 404


def test_files_have_their_types(call: Call) -> None:
    kinds = {
        path: call("GET", path).headers["content-type"].partition(";")[0]
        for path in ("/", "/api/docs/docs.js", "/api/docs/docs.css", "/api/docs")
    }
    assert kinds == {
        "/": "text/html",
        "/api/docs/docs.js": "text/javascript",
        "/api/docs/docs.css": "text/css",
        "/api/docs": "text/html",
    }


def test_metrics_have_routes_not_paths(call: Call) -> None:
    call("DELETE", "/api/secrets/somebody")
    call("GET", "/api/nothing/at/all")
    answer = call("GET", "/api/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.body.splitlines()
    assert 'gradeline_http_requests_total{method="DELETE",route="/api/secrets/{name}",status="404"} 1' in lines
    assert 'gradeline_http_requests_total{method="GET",route="unknown",status="404"} 1' in lines
    assert 'gradeline_http_request_duration_seconds_bucket{route="unknown",le="+Inf"} 1' in lines
    assert 'gradeline_http_request_duration_seconds_count{route="unknown"} 1' in lines


def test_metrics_have_lease_age_worker_deaths_and_egress_refusals(call: Call, service: Service) -> None:
    with pytest.raises(ServiceError, match="may not be called"):
        service.egress.check_url("http://169.254.169.254/")
    assert service.egress.check("agent.example", "10.0.0.1", 80) is not None
    service.runner.worker_deaths.add("crashed")
    run = Run(id="silent", name="n", suite="s", status="running")
    service.storage.save_run(run)
    service.runner.stop()

    def claimed_long_ago(transaction: Transaction) -> None:
        service.runner.queue.add(transaction, run, "{}")
        transaction.run("UPDATE jobs SET state = 'claimed', owner = 'elsewhere:1:1|2'")
        transaction.run("INSERT INTO run_heartbeats (run, at) VALUES ('silent', '2026-01-01 00:00:00')")

    service.database.transact(claimed_long_ago)
    lines = call("GET", "/api/metrics").body.splitlines()
    assert 'gradeline_egress_refusals_total{place="connection"} 1' in lines
    assert 'gradeline_egress_refusals_total{place="request"} 1' in lines
    assert 'gradeline_worker_deaths_total{reason="crashed"} 1' in lines
    assert "# TYPE gradeline_worker_deaths_total counter" in lines
    (age,) = (float(line.split()[1]) for line in lines if line.startswith("gradeline_lease_age_seconds "))
    assert age > 86_400
    service.storage.delete_run("silent")
    assert "gradeline_lease_age_seconds 0" in call("GET", "/api/metrics").body.splitlines()


def test_a_histogram_adds_up() -> None:
    metrics = ServiceMetrics()
    for seconds in (0.001, 0.02, 0.02, 99):
        metrics.count("GET", "/a", 200, seconds)
    metrics.gauge(Gauge("gradeline_queue", "Waiting.", lambda: 3))
    metrics.gauge(Gauge("gradeline_runs", "By status.", lambda: {"done": 2, 'a"b': 1}, "status"))
    text = metrics.text()
    assert [line for line in text.splitlines() if "bucket" in line] == [
        f'gradeline_http_request_duration_seconds_bucket{{route="/a",le="{bound}"}} {count}'
        for bound, count in zip(
            ["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "+Inf"],
            [1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4],
            strict=True,
        )
    ]
    assert text.endswith(
        "# HELP gradeline_queue Waiting.\n# TYPE gradeline_queue gauge\ngradeline_queue 3\n"
        "# HELP gradeline_runs By status.\n# TYPE gradeline_runs gauge\n"
        'gradeline_runs{status="a\\"b"} 1\ngradeline_runs{status="done"} 2\n'
    )


@pytest.fixture
def logged() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The lines of the log."""
    stream = io.StringIO()
    loggers = [logging.getLogger(name) for name in ("gradeline", "uvicorn")]
    before = [(logger.handlers, logger.level, logger.propagate) for logger in loggers]
    log_to(stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_a_request_is_one_line_with_its_id_and_no_secret(
    service: Service, call: Call, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    key, text = service.keys.create(KeyScope.ADMIN)
    body = {"value": "hidden-value", "host": "agent.test"}
    headers = {"Authorization": f"Bearer {text}"}
    answer = call("PUT", "/api/secrets/A?q=private", json=body, headers=headers)
    (line,) = [one for one in logged() if one["message"] == "request"]
    assert {**line, "at": "", "ms": 0} == {
        "at": "",
        "level": "info",
        "logger": "gradeline.service",
        "message": "request",
        "request_id": answer.headers["x-request-id"],
        "method": "PUT",
        "path": "/api/secrets/A",
        "key_id": key.id,
        "client": "127.0.0.1",
        "status": 200,
        "ms": 0,
    }
    call("GET", f"/api/{text}", headers=headers)
    assert not [
        one for one in logged() if text.split("_")[2] in str(one) or "private" in str(one) or "hidden" in str(one)
    ]


def test_a_defect_is_logged_with_its_trace_and_the_requests_id(
    broken: Call, logged: Callable[[], list[dict[str, Any]]]
) -> None:
    answer = broken("GET", "/test/defect")
    (line,) = [one for one in logged() if one["message"] == "unhandled exception"]
    assert line["request_id"] == answer.headers["x-request-id"]
    assert "RuntimeError: a secret path" in line["trace"]


def test_a_log_line_never_holds_a_stored_secret_or_a_providers_key(service: Service) -> None:
    value = 'pl/ant+ed "value" 7d1f'
    service.secrets.put("A", value, Binding(("agent.test",)))
    service.secrets.hide(["sk-of-a-provider"])
    stream = io.StringIO()
    log_to(stream).mask = service.secrets.mask
    log = logging.getLogger("gradeline.service")
    try:
        raise ValueError(f"agent said {value}")
    except ValueError:
        log.exception("POST http://agent.test/?key=%s: sk-of-a-provider", quote(value))
    log.info("%s", json.dumps({"key": value}), extra={"gradeline_request": {"path": f"/api/{value}", "status": 200}})
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first["message"] == "POST http://agent.test/?key=***: ***"
    assert first["trace"].endswith("ValueError: agent said ***")
    assert value not in first["trace"]
    assert (second["message"], second["path"], second["status"]) == ('{"key": "***"}', "/api/***", 200)


def test_a_value_that_another_process_stored_is_masked_once_it_is_read(tmp_path: Path) -> None:
    settings = ServeSettings(secret_key=MASTER_KEY)
    with SqliteStorage(tmp_path / "store.db") as storage:
        Secrets(storage.database, settings).put("A", "stored-elsewhere", Binding(("agent.test",)))
        here = Secrets(storage.database, settings)
        assert here.mask("stored-elsewhere") == "stored-elsewhere"
        here.hide(here.values())
        assert here.mask("was stored-elsewhere") == "was ***"


def test_a_line_cannot_be_broken_by_what_a_caller_writes() -> None:
    record = logging.LogRecord("gradeline", logging.INFO, "", 0, "a\nb \x1b[31m \u2028", (), None)
    text = JsonFormatter().format(record)
    assert text.isascii()
    assert text.isprintable()


def test_an_answer_that_breaks_in_the_middle_has_no_end(broken: Call) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/test/half",
        "raw_path": b"/test/half",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8000")],
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 1),
        "scheme": "http",
        "root_path": "",
        "http_version": "1.1",
    }
    asyncio.run(broken.client.app(scope, receive, send))  # type: ignore[arg-type]
    assert [message.get("more_body") for message in sent] == [None, True]
