"""Runs as files: every format, streamed, and never an incomplete file that looks complete."""

from __future__ import annotations

import csv
import http.client
import io
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
import uvicorn

from gradeline.errors import StoreError
from gradeline.model import (
    ErrorInfo,
    Fault,
    Grade,
    GradeKey,
    Outcome,
    Record,
    Response,
    ResponseKey,
    Run,
    RunGrader,
    Sample,
    from_json,
)
from gradeline.service.app import application
from gradeline.service.exports import KINDS, Exports, Format, ReaderGoneError, stream_text
from gradeline.service.results import EXPORTS_AT_ONCE
from gradeline.service.service import Service, build_service
from gradeline.service.settings import ServeSettings

EXACT = {"exact": RunGrader("exact", "f1")}
PASSED = Grade("exact", "f1", Outcome.PASS, 1.0, True, "equal", {"prompt": "long " * 1000})


def saved(service: Service, cases: int = 2, name: str = "n", text: str = "an answer") -> str:
    run = service.storage.save_run(Run(name=name, suite="s", status="completed", graders=EXACT, total=cases))
    for number in range(cases):
        key = ResponseKey(run, f"c{number}")
        service.storage.put_response(key, Response(text=text, latency_ms=5.0), Sample(f"c{number}", "?", "x"))
        service.storage.put_grade(GradeKey(*key, "exact"), PASSED, "submitted")
    return run


def exported(call: Any, run: str, wanted: str) -> Any:
    return call("GET", f"/api/evaluations/{run}/export", params={"format": wanted})


def test_json_has_everything_that_is_stored(call: Any, service: Service) -> None:
    run = saved(service)
    failed = Response("error", error=ErrorInfo("connect", "nobody", Fault.INFRASTRUCTURE))
    service.storage.put_response(ResponseKey(run, "c1"), failed, Sample("c1", "?", "x"))
    answer = exported(call, run, "json")
    assert set(answer.body) == {"evaluation", "summary", "verdict", "results"}
    assert answer.body["evaluation"]["graders"] == {
        "exact": {
            "kind": "exact",
            "fingerprint": "f1",
            "judges": [],
            "pass_threshold": None,
            "turns": None,
            "both_orders": False,
            "judge_id": "",
            "noise": 0.0,
            "judge_fingerprint": "",
            "prompt_hash": "",
            "rubric_version": "",
            "weights": None,
            "selective": None,
        }
    }
    assert answer.body["summary"]["total_results"] == 2
    assert answer.body["verdict"]["result"] == "none"
    single = [call("GET", f"/api/evaluations/{run}/results/c{number}~0").data for number in range(2)]
    assert answer.body["results"] == single
    assert answer.body["results"][1]["history"][0]["grades"]["exact"]["metadata"] == PASSED.metadata


def test_json_lines_are_records(call: Any, service: Service) -> None:
    run = saved(service)
    lines = exported(call, run, "jsonl").body.splitlines()
    assert [from_json(Record, line) for line in lines] == list(service.storage.records(run))


def test_labels_are_in_the_files_of_data(call: Any, service: Service) -> None:
    run = saved(service)
    call("PUT", f"/api/evaluations/{run}/results/c1~0/labels/exact", json={"verdict": "fail", "reason": "wrong"})
    lines = [json.loads(line) for line in exported(call, run, "jsonl").body.splitlines()]
    assert [[one["verdict"] for one in line.get("labels", [])] for line in lines] == [[], ["fail"]]
    rows = list(csv.DictReader(io.StringIO(exported(call, run, "csv").body, newline="")))
    assert [(row["case"], row["label"], row["label_raters"]) for row in rows] == [("c0", "", ""), ("c1", "fail", "1")]


def test_csv_defuses_what_a_spreadsheet_would_run(call: Any, service: Service) -> None:
    run = saved(service, 1, text="=HYPERLINK('http://evil')")
    [row] = csv.DictReader(io.StringIO(exported(call, run, "csv").body, newline=""))
    assert (row["case"], row["outcome"], row["score"], row["submission"]) == ("c0", "pass", "1.0", "submitted")
    assert row["text"] == "'=HYPERLINK('http://evil')"


def test_junit_has_a_test_for_each_grade(call: Any, service: Service) -> None:
    suite = ElementTree.fromstring(exported(call, saved(service, 3), "junit").body)[0]
    assert (suite.get("tests"), suite.get("failures")) == ("3", "0")
    assert [test.get("name") for test in suite.iter("testcase")] == ["c0", "c1", "c2"]


def test_html_is_one_page_where_text_stays_text(call: Any, service: Service) -> None:
    page = exported(call, saved(service, 1, text="<script>alert(1)</script>", name="<b>n</b>"), "html").body
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert "<script>" not in page
    assert "<b>n</b>" not in page


@pytest.mark.parametrize("wanted", [one for one in Format if one is not Format.PARQUET])
def test_every_file_is_an_attachment_of_its_type_and_nothing_else(call: Any, service: Service, wanted: Format) -> None:
    run = saved(service, name='../../etc/passwd"\r\nSet-Cookie: a=b; ключ')
    answer = exported(call, run, wanted)
    kind = KINDS[wanted]
    assert answer.headers["content-type"] == kind.content_type
    name = f"etc-passwd-Set-Cookie-a-b-{run[:8]}.{kind.suffix}"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in answer.headers


def test_json_is_the_default_format(call: Any, service: Service) -> None:
    answer = call("GET", f"/api/evaluations/{saved(service)}/export")
    assert answer.headers["content-type"] == "application/json"


def test_an_unknown_format_is_refused(call: Any, service: Service) -> None:
    answer = exported(call, saved(service), "xlsx")
    assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")


def test_an_empty_run_is_a_whole_file_in_every_format(call: Any, service: Service) -> None:
    run = service.storage.save_run(Run(name="n", suite="s", graders=EXACT))
    assert exported(call, run, "json").body["results"] == []
    assert exported(call, run, "jsonl").body is None
    assert exported(call, run, "csv").body.count("\r\n") == 1
    assert ElementTree.fromstring(exported(call, run, "junit").body)[0].get("tests") == "0"
    assert "</html>" in exported(call, run, "html").body


def test_parquet_without_duckdb_is_reported(call: Any, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("gradeline.report.table.import_module", absent)
    run = saved(service)
    for _ in range(EXPORTS_AT_ONCE + 1):
        answer = exported(call, run, "parquet")
        assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")
        assert "pip install 'gradeline[export]'" in answer.error["message"]


def test_parquet_has_typed_columns(client: Any, service: Service, tmp_path: Any) -> None:
    duckdb = pytest.importorskip("duckdb")
    run = saved(service, 3, text="=1+1 'é'")
    answer = client.get(f"/api/evaluations/{run}/export?format=parquet")
    (tmp_path / "it's.parquet").write_bytes(answer.content)
    found = duckdb.sql(
        f"SELECT \"case\", repeat, grader, outcome, score, passed, text, tags, metadata->>'prompt' AS prompt"
        f" FROM read_parquet('{tmp_path}/it''s.parquet') ORDER BY \"case\""
    ).fetchall()
    expected = ("exact", "pass", 1.0, True, "=1+1 'é'", [], "long " * 1000)
    assert found == [(f"c{number}", 0, *expected) for number in range(3)]


def test_a_failure_before_the_first_byte_is_an_error_answer(
    call: Any, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = saved(service)

    def broken(*_: Any) -> Iterator[Record]:
        raise StoreError("the disk is gone")
        yield

    monkeypatch.setattr(service.storage, "records", broken)
    for _ in range(EXPORTS_AT_ONCE + 1):
        answer = exported(call, run, "jsonl")
        assert (answer.status, answer.error["code"]) == (503, "STORAGE_UNAVAILABLE")


def test_concurrent_exports_are_limited(service: Service) -> None:
    run = saved(service, 300)
    exports = Exports(service.storage, service.results, service.labels)
    monkey = [exports.export(run, Format.JSONL) for _ in range(EXPORTS_AT_ONCE)]
    with pytest.raises(Exception, match="exports are in progress") as refused:
        exports.export(run, Format.JSONL)
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "5"})  # type: ignore[attr-defined]
    assert len({b"".join(made.chunks) for made in monkey}) == 1
    assert b"".join(exports.export(run, Format.JSONL).chunks).count(b"\n") == 300


def test_a_writer_stops_when_its_reader_goes() -> None:
    ended: list[str] = []

    def endless(file: Any) -> None:
        try:
            while True:
                file.write("x" * 10_000)
        except ReaderGoneError:
            ended.append("gone")
            raise

    from threading import Event

    released = Event()
    chunks = stream_text(endless, released.set)
    assert next(chunks).startswith(b"xxx")
    del chunks
    assert released.wait(10)
    assert ended == ["gone"]


@contextmanager
def serving(service: Service, listening: socket.socket) -> Iterator[int]:
    config = uvicorn.Config(application(service), lifespan="on", log_config=None, ws="none")
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


@pytest.fixture
def served(settings: ServeSettings, listening: socket.socket) -> Iterator[tuple[Service, int]]:
    """A service behind a real socket."""
    service = build_service(msgspec.structs.replace(settings, port=listening.getsockname()[1]))
    with serving(service, listening) as port:
        yield service, port


def test_a_failure_in_the_middle_does_not_look_like_a_whole_file(
    served: tuple[Service, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, port = served
    run = saved(service, 2)
    real = service.storage.records

    def breaking(name: str, after: ResponseKey | None = None) -> Iterator[Record]:
        for _ in range(200):
            yield from real(name, after)
        raise StoreError("the disk is gone")

    monkeypatch.setattr(service.storage, "records", breaking)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", f"/api/evaluations/{run}/export?format=jsonl")
    response = connection.getresponse()
    assert response.status == 200
    with pytest.raises(http.client.IncompleteRead):
        response.read()
    connection.close()


def test_a_reader_that_hangs_up_frees_its_place(served: tuple[Service, int], monkeypatch: pytest.MonkeyPatch) -> None:
    service, port = served
    run = saved(service, 2)
    real = service.storage.records

    def endless(name: str, after: ResponseKey | None = None) -> Iterator[Record]:
        while True:
            yield from real(name, after)

    monkeypatch.setattr(service.storage, "records", endless)
    for _ in range(EXPORTS_AT_ONCE):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", f"/api/evaluations/{run}/export?format=jsonl")
        assert connection.getresponse().read(10) == b'{"schema":'
        connection.close()
    taken = [service.results.export_slots.acquire(timeout=20) for _ in range(EXPORTS_AT_ONCE)]
    assert taken == [True] * EXPORTS_AT_ONCE


def test_a_large_export_arrives_whole(served: tuple[Service, int]) -> None:
    service, port = served
    run = saved(service, 500)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", f"/api/evaluations/{run}/export")
    whole = json.loads(connection.getresponse().read())
    connection.close()
    assert [result["test_case_id"] for result in whole["results"]] == [f"c{number}" for number in range(500)]
