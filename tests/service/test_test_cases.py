"""Test cases over REST: shapes, rules at their edges, lists, and changes at the same moment."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from gradeline.model.sample import TestCase
from gradeline.service.errors import Code, ServiceError
from gradeline.service.requests import PageRequest, encode_cursor
from gradeline.service.service import Service
from gradeline.service.test_cases import MAX_COUNTED, CaseFilter, TestCases, new_case
from gradeline.store import SqliteStorage

Call = Any
"""The fixture of conftest."""

CASES = "/api/test-cases"
GOOD = {"input": "2 + 2?", "expected_output": "4"}
CHECKS = [
    {"condition": "contains", "value": "4 ∑", "weight": 2, "metric": "facts"},
    {"any": [{"condition": "regex", "value": "^4"}, {"condition": "equals", "value": "four"}], "required": True},
    {"judge": "is polite", "negate": True},
]
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def created(call: Call, **fields: Any) -> dict[str, Any]:
    answer = call("POST", CASES, json={**GOOD, **fields})
    assert answer.status == 201, answer.body
    data: dict[str, Any] = answer.data
    return data


def inputs(answer: Any) -> list[str]:
    return [case["input"] for case in answer.data["test_cases"]]


class TestCreating:
    def test_a_case_is_stored_whole(self, call: Call) -> None:
        sent = {**GOOD, "description": "Sums ∑", "tags": ["math", "a-b_C9"], "checks": CHECKS}
        answer = call("POST", CASES, json=sent)
        assert answer.status == 201
        assert answer.body == {
            "success": True,
            "data": {
                "id": answer.data["id"],
                **sent,
                "created_at": answer.data["created_at"],
                "modified_at": answer.data["created_at"],
            },
            "error": None,
        }
        assert UUID.fullmatch(answer.data["id"])
        assert TIME.fullmatch(answer.data["created_at"])
        assert call("GET", f"{CASES}/{answer.data['id']}").body == answer.body

    def test_missing_fields_are_empty(self, call: Call) -> None:
        case = created(call)
        assert (case["description"], case["tags"], case["checks"]) == (None, [], None)
        case = created(call, description=None, tags=None, checks=None)
        assert (case["description"], case["tags"], case["checks"]) == (None, [], None)

    @pytest.mark.parametrize(
        "fields",
        [
            {"input": "x"},
            {"input": "x" * 10_000},
            {"input": "🙂" * 10_000},
            {"expected_output": "é" * 10_000},
            {"input": " x\n"},
            {"input": "\ufeff\u202e<script>\x1b[31m"},
            {"description": ""},
            {"description": "d" * 500},
            {"tags": []},
            {"tags": ["t" * 50]},
            {"tags": [f"t{n}" for n in range(10)]},
            {"checks": CHECKS},
            {"checks": [{"condition": "contains", "value": "a"}] * 1_000},
        ],
    )
    def test_edges_within_the_rules(self, call: Call, fields: dict[str, Any]) -> None:
        case = created(call, **fields)
        assert {name: case[name] for name in fields} == fields

    @pytest.mark.parametrize(
        ("fields", "code", "field"),
        [
            ({"input": ""}, "INVALID_LENGTH", "input"),
            ({"input": "x" * 10_001}, "INVALID_LENGTH", "input"),
            ({"input": "🙂" * 10_001}, "INVALID_LENGTH", "input"),
            ({"expected_output": ""}, "INVALID_LENGTH", "expected_output"),
            ({"expected_output": "x" * 10_001}, "INVALID_LENGTH", "expected_output"),
            ({"input": " \t\n\u3000"}, "INVALID_INPUT", "input"),
            ({"input": "a\0b"}, "INVALID_INPUT", "input"),
            ({"input": None}, "INVALID_INPUT", "input"),
            ({"input": 7}, "INVALID_INPUT", "input"),
            ({"input": ["x"]}, "INVALID_INPUT", "input"),
            ({"description": "d" * 501}, "INVALID_LENGTH", "description"),
            ({"description": "  "}, "INVALID_INPUT", "description"),
            ({"description": 7}, "INVALID_INPUT", "description"),
            ({"tags": "math"}, "INVALID_INPUT", "tags"),
            ({"tags": [7]}, "INVALID_INPUT", "tags[0]"),
            ({"tags": ["ok", ""]}, "INVALID_LENGTH", "tags[1]"),
            ({"tags": ["t" * 51]}, "INVALID_LENGTH", "tags[0]"),
            ({"tags": ["a b"]}, "INVALID_INPUT", "tags[0]"),
            ({"tags": ["é"]}, "INVALID_INPUT", "tags[0]"),
            ({"tags": ["٣"]}, "INVALID_INPUT", "tags[0]"),
            ({"tags": ["a;b"]}, "INVALID_INPUT", "tags[0]"),
            ({"tags": [f"t{n}" for n in range(11)]}, "INVALID_LENGTH", "tags"),
            ({"checks": "contains Paris"}, "INVALID_INPUT", "checks"),
            ({"checks": {}}, "INVALID_INPUT", "checks"),
            ({"checks": []}, "INVALID_INPUT", "checks"),
            ({"checks": [7]}, "INVALID_INPUT", "checks[0]"),
            ({"checks": [*CHECKS, {"condition": "contain", "value": "x"}]}, "INVALID_INPUT", "checks[3].condition"),
            ({"checks": [{"condition": "regex", "value": "("}]}, "INVALID_INPUT", "checks[0].value"),
            ({"checks": [{"judge": " "}]}, "INVALID_INPUT", "checks[0].judge"),
            ({"checks": [{"judge": "is polite", "metric": ""}]}, "INVALID_INPUT", "checks[0].metric"),
            ({"checks": [{"judge": "a\0b"}]}, "INVALID_INPUT", "checks"),
            ({"checks": [{"condition": "length_max", "value": 2**70}]}, "INVALID_INPUT", "checks"),
            ({"checks": [{"judge": "x" * 20_000}] * 3}, "INVALID_LENGTH", "checks"),
            ({"checks": [{"judge": "x"}] * 1_001}, "INVALID_INPUT", "checks"),
            ({"id": "x"}, "INVALID_INPUT", "id"),
        ],
    )
    def test_edges_beyond_the_rules(self, call: Call, fields: dict[str, Any], code: str, field: str) -> None:
        answer = call("POST", CASES, json={**GOOD, **fields})
        assert (answer.status, answer.error["code"], answer.body["data"]) == (400, code, None)
        assert f"'{field}'" in answer.error["message"]
        assert call("GET", CASES).data["total"] == 0

    @pytest.mark.parametrize("field", ["input", "expected_output"])
    def test_a_missing_field_is_named(self, call: Call, field: str) -> None:
        answer = call("POST", CASES, json={name: text for name, text in GOOD.items() if name != field})
        assert answer.status == 400
        assert answer.error["code"] == "MISSING_FIELD"
        assert answer.error["message"] == f"Field '{field}' is required"

    def test_all_faults_are_reported_at_once(self, call: Call) -> None:
        answer = call("POST", CASES, json={"input": "", "expected_output": " ", "tags": ["é"]})
        assert [fault["field"] for fault in answer.error["details"]["errors"]] == [
            "input",
            "expected_output",
            "tags[0]",
        ]

    def test_every_fault_of_the_checks_has_its_path(self, call: Call) -> None:
        checks = [{"condition": "contains"}, {"judge": "is polite", "weigth": 2}, {"any": [{"condition": "near"}]}]
        answer = call("POST", CASES, json={"input": "", "expected_output": "4", "checks": checks})
        errors = answer.error["details"]["errors"]
        assert [fault["field"] for fault in errors] == [
            "input",
            "checks[0].value",
            "checks[1].weigth",
            "checks[2].any[0].condition",
        ]
        assert "did you mean 'weight'?" in errors[2]["message"]

    def test_the_faults_of_many_checks_are_listed_up_to_a_maximum(self, call: Call) -> None:
        answer = call("POST", CASES, json={**GOOD, "checks": [{}] * 1_000})
        errors = answer.error["details"]["errors"]
        assert (len(errors), errors[-1]["message"]) == (101, "Field 'checks' has 900 more faults")

    def test_deeply_nested_checks_are_refused(self, call: Call) -> None:
        body = b'{"input": "2", "expected_output": "2", "checks": ' + b'[{"any": ' * 400 + b"[]" + b"}]" * 400 + b"}"
        answer = call("POST", CASES, content=body, headers={"Content-Type": "application/json"})
        assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")
        assert "levels deep" in answer.error["message"]

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"nul", b"[]", b'"x"', b"\xff", b'{"input": "\\ud800"', b"[" * 100_000]
    )
    def test_a_body_that_is_not_a_json_object_is_refused(self, call: Call, body: bytes) -> None:
        answer = call("POST", CASES, content=body, headers={"Content-Type": "application/json"})
        assert answer.status == 400
        assert answer.error["code"] in ("INVALID_JSON", "INVALID_INPUT", "MISSING_FIELD")

    def test_half_a_surrogate_pair_is_refused(self, call: Call) -> None:
        body = b'{"input": "\\ud800", "expected_output": "4"}'
        answer = call("POST", CASES, content=body, headers={"Content-Type": "application/json"})
        assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")

    def test_another_content_type_is_refused(self, call: Call) -> None:
        answer = call("POST", CASES, content=b"input=a", headers={"Content-Type": "application/x-www-form-urlencoded"})
        assert (answer.status, answer.error["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


class TestChanging:
    def test_a_change_is_partial_and_moves_the_time(self, call: Call) -> None:
        case = created(call, description="d", tags=["a"])
        answer = call("PUT", f"{CASES}/{case['id']}", json={"expected_output": "four"})
        assert answer.status == 200
        assert answer.data == {**case, "expected_output": "four", "modified_at": answer.data["modified_at"]}
        assert answer.data["modified_at"] > case["modified_at"]
        assert call("GET", f"{CASES}/{case['id']}").data == answer.data

    def test_an_empty_change_moves_nothing(self, call: Call) -> None:
        case = created(call)
        answer = call("PUT", f"{CASES}/{case['id']}", json={})
        assert (answer.status, answer.data) == (200, case)

    def test_null_clears_what_may_be_empty(self, call: Call) -> None:
        case = created(call, description="d", tags=["a"], checks=CHECKS)
        answer = call("PUT", f"{CASES}/{case['id']}", json={"description": None, "tags": None, "checks": None})
        assert (answer.data["description"], answer.data["tags"], answer.data["checks"]) == (None, [], None)

    def test_checks_are_replaced_as_a_whole_and_move_the_time(self, call: Call) -> None:
        case = created(call, checks=CHECKS)
        answer = call("PUT", f"{CASES}/{case['id']}", json={"checks": CHECKS[:1]})
        assert answer.data == {**case, "checks": CHECKS[:1], "modified_at": answer.data["modified_at"]}
        assert answer.data["modified_at"] > case["modified_at"]
        assert call("GET", CASES).data["test_cases"] == [answer.data]

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"input": None}, "INVALID_INPUT"),
            ({"input": ""}, "INVALID_LENGTH"),
            ({"expected_output": "x" * 10_001}, "INVALID_LENGTH"),
            ({"description": "d" * 501}, "INVALID_LENGTH"),
            ({"tags": ["a b"]}, "INVALID_INPUT"),
            ({"checks": [{"condition": "near"}]}, "INVALID_INPUT"),
            ({"created_at": "2020-01-01T00:00:00Z"}, "INVALID_INPUT"),
        ],
    )
    def test_a_wrong_change_changes_nothing(self, call: Call, fields: dict[str, Any], code: str) -> None:
        case = created(call)
        answer = call("PUT", f"{CASES}/{case['id']}", json=fields)
        assert (answer.status, answer.error["code"]) == (400, code)
        assert call("GET", f"{CASES}/{case['id']}").data == case

    def test_the_time_moves_on_when_the_clock_does_not(self, service: Service) -> None:
        case = service.cases.create(GOOD)
        ahead = TestCase(**{**_fields(case), "modified_at": "2999-12-31T23:59:59.999Z"})
        service.storage.save_test_case(ahead)
        assert service.cases.change(case.id, {"input": "x"}).modified_at == "3000-01-01T00:00:00.000Z"

    def test_changes_at_the_same_moment_lose_no_field(self, service: Service) -> None:
        case = service.cases.create(GOOD)
        changes = [{"input": "i"}, {"expected_output": "e"}, {"description": "d"}, {"tags": ["t"]}]
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda fields: service.cases.change(case.id, fields), changes))
        left = service.cases.get(case.id)
        assert (left.input, left.expected_output, left.description, left.tags) == ("i", "e", "d", ("t",))


class TestDeleting:
    def test_a_deleted_case_disappears_from_reads_and_remains_in_runs(self, call: Call, service: Service) -> None:
        case = created(call)
        answer = call("DELETE", f"{CASES}/{case['id']}")
        assert (answer.status, answer.body) == (204, None)
        assert call("GET", CASES).data == {"test_cases": [], "count": 0, "total": 0, "next_cursor": None}
        for method, body in (("GET", None), ("PUT", {"input": "x"}), ("DELETE", None)):
            gone = call(method, f"{CASES}/{case['id']}", json=body)
            assert (gone.status, gone.error["code"]) == (404, "NOT_FOUND")
        assert service.database.read("SELECT count(*) FROM test_cases WHERE id = ?", case["id"]) == [(1,)]

    @pytest.mark.parametrize(
        "name", ["7", "nope", "00000000-0000-4000-8000-000000000000", "%00", "a%2Fb", "é", "x" * 3000]
    )
    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
    def test_an_unknown_or_malformed_id_is_not_found(self, call: Call, method: str, name: str) -> None:
        answer = call(method, f"{CASES}/{name}", json={} if method == "PUT" else None)
        assert (answer.status, answer.error["code"]) == (404, "NOT_FOUND")


class TestListing:
    def test_the_oldest_case_comes_first(self, call: Call) -> None:
        cases = [created(call, input=f"case {n}") for n in range(3)]
        assert call("GET", CASES).data == {"test_cases": cases, "count": 3, "total": 3, "next_cursor": None}

    def test_pages_by_skip(self, call: Call) -> None:
        for n in range(5):
            created(call, input=str(n))
        page = call("GET", f"{CASES}?limit=2&skip=2")
        assert (inputs(page), page.data["count"], page.data["total"]) == (["2", "3"], 2, 5)
        beyond = call("GET", f"{CASES}?skip=99")
        assert beyond.data == {"test_cases": [], "count": 0, "total": 5, "next_cursor": None}

    @pytest.mark.parametrize("more", ["", "&tag=even"])
    def test_pages_by_cursor_are_stable_while_cases_come_and_go(self, call: Call, more: str) -> None:
        cases = [created(call, input=str(n), tags=["even"] if n % 2 == 0 else ["even-not"]) for n in range(6)]
        first = call("GET", f"{CASES}?limit=2{more}")
        assert inputs(first) == ["0", "1"]
        created(call, input="6", tags=["even"])
        call("DELETE", f"{CASES}/{cases[1]['id']}")
        second = call("GET", f"{CASES}?limit=2{more}&cursor={first.data['next_cursor']}")
        assert inputs(second) == ["2", "3"]
        third = call("GET", f"{CASES}?limit=3{more}&cursor={second.data['next_cursor']}")
        assert (inputs(third), third.data["next_cursor"], third.data["total"]) == (["4", "5", "6"], None, 6)

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ("tag=math", ["a", "b"]),
            ("tag=ath", ["a", "b"]),
            ("tag=math-hard", ["b"]),
            ("tag=MATH", []),
            ("tag=a_b", ["c"]),
            ("tag=a%25b", []),
            ("tag=", ["a", "b", "c", "STRASSE"]),
            ("q=straße", ["STRASSE"]),
            ("q=STRASSE", ["STRASSE"]),
            ("q=hidden%20in", ["c"]),
            ("q=two%0Alines", ["b"]),
            ("q=%22quoted%22", ["a"]),
            ("q=math-h", ["b"]),
            ("q=%25", []),
            ("tag=math&q=lines", ["b"]),
        ],
    )
    def test_filters(self, call: Call, query: str, found: list[str]) -> None:
        created(call, input="a", tags=["math"], expected_output='a "quoted" word')
        created(call, input="b", tags=["math-hard"], expected_output="two\nlines")
        created(call, input="c", tags=["a_b"], description="Hidden in a description")
        created(call, input="STRASSE", tags=["axb"])
        page = call("GET", f"{CASES}?{query}")
        assert (inputs(page), page.data["total"]) == (found, len(found))

    @pytest.mark.parametrize(
        ("query", "status"),
        [
            ("limit=1", 200),
            ("limit=1000", 200),
            ("limit=0", 400),
            ("limit=1001", 400),
            ("limit=-1", 400),
            ("limit=ten", 400),
            ("limit=1.5", 400),
            ("skip=0", 200),
            ("skip=-1", 400),
            ("skip=9223372036854775807", 200),
            ("skip=9223372036854775808", 400),
            (f"cursor={encode_cursor(0)}", 200),
            (f"cursor={encode_cursor(0)}&skip=0", 400),
            (f"cursor={encode_cursor('0')}", 400),
            ("cursor=nonsense", 400),
            ("cursor=", 400),
            ("q=%00", 400),
            ("tag=%00", 400),
            ("q=" + "x" * 500, 200),
        ],
    )
    def test_parameters_at_their_edges(self, call: Call, query: str, status: int) -> None:
        answer = call("GET", f"{CASES}?{query}")
        assert answer.status == status
        if status == 400:
            assert answer.error["code"] == "INVALID_INPUT"

    def test_cases_saved_in_another_way_are_listed_and_counted(self, call: Call, service: Service) -> None:
        service.storage.save_test_case(TestCase(id="", input="from the store", expected_output="x", tags=("cli",)))
        page = call("GET", f"{CASES}?tag=cli")
        assert (inputs(page), page.data["total"], call("GET", CASES).data["total"]) == (["from the store"], 1, 1)
        service.storage.delete_test_case(page.data["test_cases"][0]["id"])
        assert call("GET", CASES).data["total"] == 0


class TestStore:
    def test_cases_that_were_there_before_the_service_are_counted(self, tmp_path: Any) -> None:
        with SqliteStorage(tmp_path / "store.db") as storage:
            kept = storage.save_test_case(TestCase(id="", input="a", expected_output="b"))
            storage.delete_test_case(storage.save_test_case(TestCase(id="", input="c", expected_output="d")))
            cases = TestCases(storage.database)
            assert cases.total() == 1
            storage.save_test_case(TestCase(id=kept, input="a again", expected_output="b"))
            assert (cases.total(), TestCases(storage.database).total()) == (1, 1)
            storage.delete_test_case(kept)
            assert cases.total() == 0
            storage.save_test_case(TestCase(id=kept, input="back", expected_output="b"))
            assert cases.total() == 1

    def test_a_filter_counts_to_its_cap(self, tmp_path: Any) -> None:
        with SqliteStorage(tmp_path / "store.db") as storage:
            cases = TestCases(storage.database)
            cases.add(new_case({**GOOD, "tags": ["all"]}) for _ in range(MAX_COUNTED))
            exact = cases.page(PageRequest.of(2), CaseFilter(q=GOOD["input"]))
            assert (len(exact.cases), exact.total, exact.capped) == (2, MAX_COUNTED, False)
            cases.add([new_case({**GOOD, "tags": ["all"]})])
            capped = cases.page(PageRequest.of(2), CaseFilter(q=GOOD["input"]))
            assert (len(capped.cases), capped.total, capped.capped) == (2, MAX_COUNTED, True)
            last = cases.page(PageRequest.of(1000, MAX_COUNTED), CaseFilter(q=GOOD["input"]))
            assert (len(last.cases), last.capped, last.next_cursor) == (1, True, None)
            tagged = cases.page(PageRequest.of(1000, MAX_COUNTED), CaseFilter(tag="all"))
            assert (len(tagged.cases), tagged.total, tagged.capped) == (1, MAX_COUNTED + 1, False)
            assert cases.page(PageRequest.of(1)).total == MAX_COUNTED + 1

    def test_cases_are_found_by_their_ids(self, service: Service) -> None:
        kept, gone = service.cases.create(GOOD), service.cases.create(GOOD)
        service.cases.delete(gone.id)
        assert service.cases.find([gone.id, kept.id, kept.id, "nope", "\0"]) == {kept.id: kept}

    def test_a_wrong_case_is_refused_without_http(self, service: Service) -> None:
        with pytest.raises(ServiceError) as caught:
            service.cases.create({"input": "x"})
        assert (caught.value.code, caught.value.message) == (
            Code.MISSING_FIELD,
            "Field 'expected_output' is required",
        )


def test_scopes_and_the_audit_log(client: TestClient, service: Service, call_with: Callable[[str], Any]) -> None:
    reader, runner = call_with("read"), call_with("run")
    assert client.get(CASES).status_code == 401
    assert client.post(CASES, json=GOOD, headers=reader).status_code == 403
    stored = client.post(CASES, json=GOOD, headers=runner)
    assert stored.status_code == 201
    place = f"{CASES}/{stored.json()['data']['id']}"
    assert client.get(place, headers=reader).status_code == 200
    assert client.put(place, json={"input": "x"}, headers=reader).status_code == 403
    assert client.put(place, json={"input": "x"}, headers=runner).status_code == 200
    assert client.delete(place, headers=reader).status_code == 403
    assert client.delete(place, headers=runner).status_code == 204
    subject = f"test_case/{stored.json()['data']['id']}"
    noted = [entry.action for entry in service.audit.entries() if entry.subject == subject]
    assert noted == ["create", "update", "delete"]


def _fields(case: TestCase) -> dict[str, Any]:
    return {name: getattr(case, name) for name in TestCase.__struct_fields__}
