"""Importing and exporting test cases."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gradeline.service.case_files import MAX_ROW, FileKind, export_cases, import_cases
from gradeline.service.errors import ServiceError
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings
from gradeline.service.test_cases import TestCases
from gradeline.store import SqliteStorage

Call = Any
"""The fixture of conftest."""

IMPORT = "/api/test-cases/import"
EXPORT = "/api/test-cases/export"
CSV = {"Content-Type": "text/csv"}
JSONL = {"Content-Type": "application/x-ndjson"}
HEADER = "input,expected_output,description,tags\r\n"


@pytest.fixture
def settings(settings: ServeSettings) -> ServeSettings:
    return replace(settings, max_import=3_000_000)


def stored(call: Call) -> list[dict[str, Any]]:
    cases = call("GET", "/api/test-cases?limit=1000").data["test_cases"]
    return [{name: case[name] for name in ("input", "expected_output", "description", "tags")} for case in cases]


def case(asked: str, expected: str, description: str | None = None, *tags: str) -> dict[str, Any]:
    return {"input": asked, "expected_output": expected, "description": description, "tags": list(tags)}


def errors(answer: Any) -> list[tuple[int, str | None, str]]:
    assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")
    return [(fault["line"], fault["field"], fault["message"]) for fault in answer.error["details"]["errors"]]


class TestJsonLines:
    def test_cases_are_imported_in_their_order(self, call: Call) -> None:
        body = (
            '{"input": "a\\nb", "expected_output": "🙂"}\n'
            "\r\n"
            '{"input": "c", "expected_output": "d", "description": null, "tags": ["x", "y"]}\r\n'
            '{"input": "e", "expected_output": "f", "description": "g"}'
        )
        answer = call("POST", IMPORT, content=body.encode(), headers=JSONL)
        assert (answer.status, answer.body) == (201, {"success": True, "data": {"imported": 3}, "error": None})
        assert stored(call) == [case("a\nb", "🙂"), case("c", "d", None, "x", "y"), case("e", "f", "g")]

    def test_every_invalid_row_is_reported_and_nothing_is_stored(self, call: Call) -> None:
        rows = [
            b'{"input": "good", "expected_output": "x"}',
            b'{"input": "", "tags": ["a b"], "more": 1}',
            b"",
            b"{nonsense",
            b"[1]",
            b'{"input": "\xff", "expected_output": "x"}',
            b'{"input": "\\u0000", "expected_output": "x"}',
            b"[" * 50_000,
        ]
        answer = call("POST", IMPORT, content=b"\n".join(rows), headers=JSONL)
        reported = errors(answer)
        assert [(line, field) for line, field, _ in reported] == [
            (2, "more"),
            (2, "input"),
            (2, "expected_output"),
            (2, "tags[0]"),
            (4, None),
            (5, None),
            (6, None),
            (7, "input"),
            (8, None),
        ]
        assert reported[2][2] == "Field 'expected_output' is required"
        assert "line 2" in answer.error["message"]
        assert stored(call) == []

    def test_a_byte_order_mark_is_not_part_of_the_text(self, call: Call) -> None:
        body = b'\xef\xbb\xbf{"input": "a", "expected_output": "b"}'
        assert call("POST", IMPORT, content=body, headers=JSONL).status == 201

    def test_an_empty_file_holds_no_case(self, call: Call) -> None:
        assert call("POST", IMPORT, content=b"", headers=JSONL).data == {"imported": 0}

    def test_a_hundred_faults_are_listed_and_all_are_counted(self, call: Call) -> None:
        answer = call("POST", IMPORT, content=b"{}\n" * 200, headers=JSONL)
        assert len(errors(answer)) == 100
        assert "400 faults in total (the first 100 are listed)" in answer.error["message"]

    def test_a_row_without_end_is_refused(self, call: Call) -> None:
        answer = call("POST", IMPORT, content=b'{"input": "' + b"x" * (MAX_ROW + 10), headers=JSONL)
        ((line, field, message),) = errors(answer)
        assert (line, field) == (1, None)
        assert "1,000,000 bytes" in message


class TestCsv:
    def test_cells_with_quotes_commas_and_line_ends(self, call: Call) -> None:
        body = HEADER + '"a, ""b""\r\nc",d,"two\nlines",x;y\r\n\r\ne,f,,\r\n'
        assert call("POST", IMPORT, content=body.encode(), headers=CSV).data == {"imported": 2}
        assert stored(call) == [case('a, "b"\r\nc', "d", "two\nlines", "x", "y"), case("e", "f")]

    def test_columns_in_any_order_and_some_left_out(self, call: Call) -> None:
        body = "\ufefftags,expected_output,input\nx,b,a\n,d,c"
        assert call("POST", IMPORT, content=body.encode(), headers=CSV).data == {"imported": 2}
        assert stored(call) == [case("a", "b", None, "x"), case("c", "d")]

    def test_faults_are_reported_by_the_physical_line_at_which_the_row_begins(self, call: Call) -> None:
        rows = [
            '"good, over\ntwo lines",x,,',
            ",x,,",
            "a,b",
            '"bad\n\ntags",x,,a b;;c',
            "a,b,c,d,e",
        ]
        answer = call("POST", IMPORT, content=(HEADER + "\r\n".join(rows)).encode(), headers=CSV)
        assert [(line, field) for line, field, _ in errors(answer)] == [
            (4, "input"),
            (5, None),
            (6, "tags[0]"),
            (6, "tags[1]"),
            (9, None),
        ]
        assert stored(call) == []

    @pytest.mark.parametrize(
        ("header", "reported"),
        [
            ("", [(1, "input"), (1, "expected_output")]),
            ("input\n", [(1, "expected_output")]),
            ("input,expected_output,nonsense\n", [(1, "nonsense")]),
            ("input,expected_output,input\n", [(1, "input")]),
            ("a;b\n", [(1, "a;b"), (1, "input"), (1, "expected_output")]),
        ],
    )
    def test_a_wrong_header_is_line_one(self, call: Call, header: str, reported: list[tuple[int, str]]) -> None:
        answer = call("POST", IMPORT, content=header.encode(), headers=CSV)
        assert [(line, field) for line, field, _ in errors(answer)] == reported

    @pytest.mark.parametrize(
        ("row", "line"),
        [
            (b'"never ends,x,,\r\nand on', 2),
            (b"good,x,,\r\nb\xff,x,,", 3),
            (b'"a"b,x,,', 2),
            (b"a\0,x,,", 2),
            (b'"' + b"x\n" * 600_000, 2),
        ],
    )
    def test_an_unreadable_line_is_reported_by_its_number(self, call: Call, row: bytes, line: int) -> None:
        answer = call("POST", IMPORT, content=HEADER.encode() + row, headers=CSV)
        assert [found for found, _, _ in errors(answer)] == [line]
        assert stored(call) == []

    def test_one_leading_apostrophe_is_taken_away(self, call: Call) -> None:
        body = HEADER + "'=1+1,''quoted,'@x,'-a;b\r\n"
        assert call("POST", IMPORT, content=body.encode(), headers=CSV).status == 201
        assert stored(call) == [case("=1+1", "'quoted", "@x", "-a", "b")]


class TestRequests:
    @pytest.mark.parametrize(
        ("headers", "query", "status"),
        [
            ({"Content-Type": "text/csv; charset=utf-8"}, "", 201),
            ({"Content-Type": "TEXT/CSV"}, "", 201),
            ({"Content-Type": "application/octet-stream"}, "?format=csv", 201),
            ({}, "?format=csv", 201),
            ({"Content-Type": "text/csv", "Content-Encoding": "identity"}, "", 201),
            ({}, "", 415),
            ({"Content-Type": "application/json"}, "", 415),
            ({"Content-Type": "text/plain"}, "", 415),
            ({"Content-Type": "text/csv", "Content-Encoding": "gzip"}, "", 415),
            ({"Content-Type": "text/csv", "Content-Encoding": "br"}, "", 415),
            ({"Content-Type": "text/csv"}, "?format=xml", 400),
        ],
    )
    def test_kinds_of_request_bodies(self, call: Call, headers: dict[str, str], query: str, status: int) -> None:
        answer = call("POST", IMPORT + query, content=(HEADER + "a,b,,").encode(), headers=headers)
        assert answer.status == status
        if status == 415:
            assert answer.error["code"] == "UNSUPPORTED_MEDIA_TYPE"

    def test_a_packed_body_is_not_unpacked(self, call: Call) -> None:
        packed = gzip.compress(b'{"input": "a", "expected_output": "b"}\n' * 1000)
        answer = call("POST", IMPORT, content=packed, headers={**JSONL, "Content-Encoding": "gzip"})
        assert answer.status == 415

    @pytest.mark.parametrize(
        ("name", "kind", "query"),
        [
            ("cases.csv", "text/csv", ""),
            ("cases.CSV", "application/octet-stream", ""),
            ("cases", "text/plain", "?format=csv"),
        ],
    )
    def test_a_form_with_a_file(self, call: Call, name: str, kind: str, query: str) -> None:
        files = {"file": (name, (HEADER + "a,b,,x").encode(), kind)}
        assert call("POST", IMPORT + query, files=files).data == {"imported": 1}
        assert stored(call) == [case("a", "b", None, "x")]

    def test_a_form_without_the_file(self, call: Call) -> None:
        wrong = call("POST", IMPORT, files={"other": ("cases.csv", b"x", "text/csv")})
        assert (wrong.status, wrong.error["code"]) == (400, "MISSING_FIELD")
        unknown = call("POST", IMPORT, files={"file": ("cases.bin", b"x", "application/octet-stream")})
        assert unknown.status == 415
        broken = call("POST", IMPORT, content=b"--x\r\nnonsense", headers={"Content-Type": "multipart/form-data"})
        assert (broken.status, broken.error["code"]) == (400, "INVALID_INPUT")

    @pytest.mark.parametrize("as_form", [True, False])
    def test_a_file_beyond_the_bound_is_refused(self, call: Call, as_form: bool) -> None:
        body = b'{"input": "a", "expected_output": "b"}\n' * 80_000
        if as_form:
            answer = call("POST", IMPORT, files={"file": ("cases.jsonl", body)})
        else:
            answer = call("POST", IMPORT, content=iter([body[:100], body[100:]]), headers=JSONL)
        assert (answer.status, answer.error["code"]) == (413, "PAYLOAD_TOO_LARGE")
        assert call("GET", "/api/test-cases").data["total"] == 0

    def test_an_import_is_in_the_audit_log(self, call: Call, service: Service) -> None:
        call("POST", IMPORT, content=HEADER.encode() + b"a,b,,", headers=CSV)
        (entry,) = [entry for entry in service.audit.entries() if entry.action == "import"]
        assert entry.subject == "test_cases"


class TestExport:
    def test_json_lines(self, call: Call) -> None:
        call("POST", "/api/test-cases", json=case("a\n🙂", "b", None, "x"))
        (whole,) = call("GET", "/api/test-cases").data["test_cases"]
        answer = call("GET", EXPORT)
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.headers["content-disposition"] == 'attachment; filename="test-cases.jsonl"'
        assert [json.loads(line) for line in answer.body.splitlines()] == [whole]

    def test_csv_is_defused(self, call: Call) -> None:
        for text in ("=1+1", "+1", "-1", "@x", "\tx", "\rx", "\nx", "'x", "x=1"):
            call("POST", "/api/test-cases", json=case(text, "=b", "-d", "-t"))
        answer = call("GET", f"{EXPORT}?format=csv")
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        rows = list(csv.reader(io.StringIO(answer.body, newline="")))
        assert rows[0] == ["input", "expected_output", "description", "tags", "checks"]
        assert [row[0] for row in rows[1:]] == ["'=1+1", "'+1", "'-1", "'@x", "'\tx", "'\rx", "'\nx", "''x", "x=1"]
        assert {tuple(row[1:]) for row in rows[1:]} == {("'=b", "'-d", "'-t", "")}

    def test_filters_and_an_empty_export(self, call: Call) -> None:
        for tag in ("x", "y"):
            call("POST", "/api/test-cases", json=case(tag, "b", None, tag))
        assert (
            call("GET", f"{EXPORT}?format=csv&tag=y").body
            == "input,expected_output,description,tags,checks\r\ny,b,,y,\r\n"
        )
        assert call("GET", f"{EXPORT}?tag=z").body is None
        assert call("GET", f"{EXPORT}?format=xml").status == 400
        assert call("GET", f"{EXPORT}?q=%00").error["code"] == "INVALID_INPUT"

    @pytest.mark.parametrize("kind", list(FileKind))
    def test_what_was_exported_can_be_imported(self, call: Call, kind: FileKind) -> None:
        call("POST", "/api/test-cases", json=case("'=x", 'a,"b"\r\n', "'", "-t", "u"))
        before = stored(call)
        body = call("GET", f"{EXPORT}?format={kind.value}").body
        assert call("POST", f"{IMPORT}?format={kind.value}", content=body.encode()).data == {"imported": 1}
        assert stored(call) == before * 2

    @pytest.mark.parametrize("kind", list(FileKind))
    def test_checks_survive_export_and_import(self, call: Call, kind: FileKind) -> None:
        checks = [{"condition": "contains", "value": 'a;"b",\n\'∑'}, {"judge": "is polite", "weight": 0.5}]
        for fields in ({"checks": checks}, {}):
            call("POST", "/api/test-cases", json={**case("a", "b"), **fields})
        body = call("GET", f"{EXPORT}?format={kind.value}").body
        assert call("POST", f"{IMPORT}?format={kind.value}", content=body.encode()).data == {"imported": 2}
        found = call("GET", "/api/test-cases").data["test_cases"]
        assert [one["checks"] for one in found] == [checks, None] * 2


class TestInvalidChecks:
    def test_each_fault_has_its_line_and_path(self, call: Call) -> None:
        rows = [
            {"input": "a", "expected_output": "b", "checks": [{"condition": "contains", "value": "b"}]},
            {"input": "a", "expected_output": "b", "checks": [{"condition": "contain", "value": "b"}, 7]},
            {"input": "a", "expected_output": "b", "checks": "contains b"},
        ]
        answer = call("POST", IMPORT, content="\n".join(map(json.dumps, rows)).encode(), headers=JSONL)
        assert [(line, field) for line, field, _ in errors(answer)] == [
            (2, "checks[0].condition"),
            (2, "checks[1]"),
            (3, "checks"),
        ]
        assert call("GET", "/api/test-cases").data["total"] == 0

    def test_cells_that_are_not_lists_of_checks_are_faults(self, call: Call) -> None:
        file = io.StringIO()
        csv.writer(file).writerows(
            [
                ("input", "expected_output", "checks"),
                ("a", "b", " "),
                ("a", "b", '[{"condition": "contains"'),
                ("a", "b", '{"condition": "contains", "value": "b"}'),
                ("a", "b", "[" * 50_000),
            ]
        )
        reported = errors(call("POST", IMPORT, content=file.getvalue().encode(), headers=CSV))
        assert [(line, field) for line, field, _ in reported] == [(3, "checks"), (4, "checks"), (5, "checks")]
        assert reported[0][2].startswith("Field 'checks' is not valid JSON: ")
        assert "expected a list of checks" in reported[1][2]


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30).filter(
    lambda text: bool(text.strip())
)
_CHECKS = st.lists(
    st.fixed_dictionaries({"condition": st.just("contains"), "value": _TEXT}, optional={"metric": st.just("m")}),
    min_size=1,
    max_size=3,
)
_TAGS = st.lists(st.text("abcXYZ019-_", min_size=1, max_size=8), max_size=10)


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "input": _TEXT,
                "expected_output": _TEXT,
                "description": st.none() | _TEXT,
                "tags": _TAGS,
                "checks": st.none() | _CHECKS,
            }
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(FileKind),
)
def test_any_case_survives_export_and_import(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], kind: FileKind
) -> None:
    with SqliteStorage(tmp_path_factory.mktemp("store") / "store.db") as storage:
        cases = TestCases(storage.database)
        for row in rows:
            cases.create(row)
        file = io.BytesIO(b"".join(export_cases(cases.matching(), kind)))
        assert import_cases(cases, file, kind) == len(rows)
        found = [{name: getattr(one, name) for name in rows[0]} for one in cases.matching()]
        assert found == [{**row, "tags": tuple(row["tags"])} for row in rows] * 2


def test_files_of_any_size_go_through_a_small_memory(tmp_path: Path) -> None:
    number = 20_000

    def lines() -> Iterator[bytes]:
        for n in range(number):
            yield b'{"input": "%d %s", "expected_output": "y"}\n' % (n, b"x" * 2000)

    file = tmp_path / "cases.jsonl"
    with file.open("wb") as written:
        written.writelines(lines())
    with SqliteStorage(tmp_path / "store.db") as storage, file.open("rb") as opened:
        cases = TestCases(storage.database)
        tracemalloc.start()
        try:
            assert import_cases(cases, opened, FileKind.JSONL) == number
            assert sum(len(piece) for piece in export_cases(cases.matching(), FileKind.CSV)) > 40_000_000
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 12_000_000
        assert cases.total() == number


def test_a_refused_row_in_the_store_undoes_the_whole_import(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "store.db") as storage:
        cases = TestCases(storage.database)
        twice = [("same id", "{}"), ("same id", "{}")]
        with pytest.raises(Exception, match="UNIQUE"):
            cases.add_rows(iter(twice))
        assert (cases.total(), list(cases.matching())) == (0, [])


def test_faults_before_an_unreadable_line_are_reported(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "store.db") as storage:
        cases = TestCases(storage.database)
        body = b"input,expected_output\n,x\n\xff\xfe,y\n"
        with pytest.raises(ServiceError) as caught:
            import_cases(cases, io.BytesIO(body), FileKind.CSV)
        assert caught.value.details is not None
        assert [fault["line"] for fault in caught.value.details["errors"]] == [2, 3]
