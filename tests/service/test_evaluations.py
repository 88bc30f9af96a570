"""Evaluations over REST: valid and refused requests, and lists."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline.model import Run
from gradeline.service.evaluations import DEFAULT_TIMEOUT_S
from gradeline.service.service import Service, build_service
from gradeline.service.settings import ServeSettings
from gradeline.store import SqliteStorage
from gradeline.store.maintenance import usage_of
from gradeline.targets.http import HttpConfig

sys.path.insert(0, str(Path(__file__).parent))

from live import PATIENCE_S, EchoAgent, suite_of

Call = Callable[..., Any]
UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def agent() -> Iterator[EchoAgent]:
    with EchoAgent() as started:
        yield started


@pytest.fixture
def case(call: Call) -> str:
    """A stored test case, which the agent answers rightly."""
    body = {"input": "hello", "expected_output": "hello", "tags": ["smoke"]}
    found: str = call("POST", "/api/test-cases", json=body).data["id"]
    return found


@pytest.fixture
def asked(case: str, agent: EchoAgent) -> dict[str, Any]:
    """The parts of an evaluation."""
    return {"test_case_ids": [case], "agent_endpoint_url": agent.url, "grader_ids": ["exact_match"]}


def start(call: Call, body: dict[str, Any], **headers: str) -> Any:
    return call("POST", "/api/evaluations", json=body, headers=headers)


def ended(call: Call, run: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while (found := call("GET", f"/api/evaluations/{run}").data)["status"] in ("pending", "running"):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def without(tree: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in names}


class TestStarting:
    def test_the_answer_is_the_run(self, call: Call, asked: dict[str, Any], agent: EchoAgent, case: str) -> None:
        answer = start(call, {**asked, "name": "First", "timeout_s": 5, "repeats": 2, "concurrency": 3})
        assert answer.status == 201
        run = answer.data
        assert without(
            run, "id", "started_at", "status", "completed_at", "result_count", "progress", "held_by_service"
        ) == {
            "name": "First",
            "agent_endpoint_url": agent.url,
            "target": {"kind": "http", "url": agent.url, "timeout": 5.0},
            "test_case_ids": [case],
            "tag": None,
            "grader_ids": ["exact_match"],
            "repeats": 2,
            "concurrency": 3,
            "timeout_s": 5.0,
            "baseline_id": None,
            "stop_early": False,
            "stopped": None,
            "calls_saved": 0,
            "warnings": [],
            "error_message": None,
            "group": None,
            "parent": None,
            "baselines": [],
            "verdict": None,
            "comparison": None,
        }
        assert run["status"] in ("pending", "running")
        done = ended(call, run["id"])
        assert done["status"] == "completed"
        assert done["completed_at"].endswith("Z")
        assert (done["result_count"], done["progress"]) == (
            2,
            {"total": 2, "answered": 2, "graded": 2, "errors": 0},
        )
        assert agent.calls == {"hello": 2}

    def test_the_effective_timeout_is_returned(self, call: Call, asked: dict[str, Any]) -> None:
        assert start(call, asked).data["timeout_s"] == DEFAULT_TIMEOUT_S == HttpConfig(url="http://x/").timeout
        target = {"kind": "http", "url": asked["agent_endpoint_url"], "timeout": 7}
        returned = start(call, {**without(asked, "agent_endpoint_url"), "target": target}).data
        assert returned["timeout_s"] == 7.0

    def test_cases_can_be_selected_by_a_tag(self, call: Call, asked: dict[str, Any], agent: EchoAgent) -> None:
        call("POST", "/api/test-cases", json={"input": "other", "expected_output": "x", "tags": ["smoke-2"]})
        run = start(call, {**without(asked, "test_case_ids"), "tag": "smoke"}).data
        assert (run["tag"], run["test_case_ids"]) == ("smoke", None)
        ended(call, run["id"])
        assert agent.calls == {"hello": 1}

    def test_the_text_of_a_case_is_that_of_the_run(self, call: Call, asked: dict[str, Any], case: str) -> None:
        run = start(call, asked).data["id"]
        ended(call, run)
        call("PUT", f"/api/test-cases/{case}", json={"input": "edited"})
        call("DELETE", f"/api/test-cases/{case}")
        (result,) = call("GET", f"/api/evaluations/{run}/results").data["results"]
        assert (result["test_case_id"], result["test_case_input"]) == (case, "hello")

    def test_a_tool_call_grader_grades_the_tool_calls_of_the_agent(self, call: Call, agent: EchoAgent) -> None:
        expected = '[{"name": "look_up", "arguments": {"q": ["hello"]}}]'
        case = call("POST", "/api/test-cases", json={"input": "hello", "expected_output": expected}).data["id"]
        stored = {"name": "Calls", "type": "tool_calls", "config": {"mode": "unordered"}}
        grader = call("POST", "/api/graders", json=stored).data
        assert grader["default_extractor"] == "tool_calls"
        mapping = {"output": "response", "tool_calls": "[{name: 'look_up', arguments: {q: response}}]"}
        target = {"kind": "http", "url": agent.url, "response": mapping}
        graders = ["tool_calls", grader["id"], {"id": "string-match", "config": {"mode": "contains"}}]
        run = start(call, {"test_case_ids": [case], "target": target, "grader_ids": graders}).data
        ended(call, run["id"])
        (result,) = call("GET", f"/api/evaluations/{run['id']}/results").data["results"]
        scores = {score["grader_id"]: score for score in result["scores"]}
        assert scores["tool_calls"]["score_status"] == scores[grader["id"]]["score_status"] == "pass"
        assert scores["string-match"]["score_status"] == "fail"
        named = {"evaluation_id": run["id"], "result_id": result["result_id"]}
        for id_ in ("tool_calls", grader["id"]):
            assert call("POST", f"/api/graders/{id_}/preview", json=named).data["score_status"] == "pass"

    def test_a_tool_call_grader_without_a_mapping_names_what_to_map(self, call: Call, asked: dict[str, Any]) -> None:
        run = start(call, {**asked, "grader_ids": ["tool_calls", "trajectory"]}).data
        ended(call, run["id"])
        (result,) = call("GET", f"/api/evaluations/{run['id']}/results").data["results"]
        for score in result["scores"]:
            assert (score["score_status"], score["error_type"], score["score_value"]) == ("error", "missing", None)
            assert "http: map tool_calls" in score["error_message"]

    def test_one_grader_can_be_used_twice_under_two_names(self, call: Call, asked: dict[str, Any]) -> None:
        graders = ["exact_match", {"id": "exact_match", "name": "again"}]
        run = start(call, {**asked, "grader_ids": graders}).data
        assert run["grader_ids"] == ["exact_match", "again"]
        assert ended(call, run["id"])["progress"]["graded"] == 1

    def test_a_suite_by_tag(self, call: Call, case: str, agent: EchoAgent) -> None:
        suite = {**without(suite_of(agent, 0), "dataset"), "dataset": {"tag": "smoke"}}
        run = start(call, {"suite": suite}).data
        assert ended(call, run["id"])["result_count"] == 1
        again = start(call, {"suite": without(suite, "dataset"), "test_case_ids": [case]}).data
        assert ended(call, again["id"])["result_count"] == 1

    def test_an_unreachable_agent_does_not_fail_the_run(self, call: Call, asked: dict[str, Any]) -> None:
        run = start(call, {**asked, "agent_endpoint_url": "http://127.0.0.1:9/", "timeout_s": 2}).data["id"]
        done = ended(call, run)
        assert (done["status"], done["progress"]["errors"]) == ("completed", 1)
        (result,) = call("GET", f"/api/evaluations/{run}/results").data["results"]
        assert result["response_status"] == "error"

    def test_a_run_can_be_replayed(self, call: Call, asked: dict[str, Any], agent: EchoAgent) -> None:
        first = start(call, asked).data["id"]
        ended(call, first)
        body = {**without(asked, "agent_endpoint_url"), "target": {"kind": "replay", "run": first}}
        assert ended(call, start(call, body).data["id"])["progress"]["errors"] == 0
        assert agent.total == 1


def _change(**changes: Any) -> dict[str, Any]:
    return changes


@pytest.mark.parametrize(
    ("changes", "status", "code", "message"),
    [
        (_change(test_case_ids=None), 400, "MISSING_FIELD", "Field 'test_case_ids' is required"),
        (_change(test_case_ids=[]), 400, "INVALID_LENGTH", "test_case_ids"),
        (_change(test_case_ids=[UNKNOWN]), 400, "INVALID_TEST_CASE_ID", UNKNOWN),
        (_change(test_case_ids=["no uuid"]), 400, "INVALID_TEST_CASE_ID", "no uuid"),
        (_change(tag="smoke"), 400, "INVALID_INPUT", "exclude each other"),
        (_change(test_case_ids=None, tag="nobody"), 400, "INVALID_INPUT", "nobody"),
        (_change(agent_endpoint_url=None), 400, "MISSING_FIELD", "agent_endpoint_url"),
        (_change(agent_endpoint_url="ftp://a.test/"), 400, "INVALID_URL", "agent_endpoint_url"),
        (_change(agent_endpoint_url="no url"), 400, "INVALID_URL", "agent_endpoint_url"),
        (_change(agent_endpoint_url="http://user:pw@127.0.0.1/"), 400, "INVALID_URL", "credentials"),
        (_change(agent_endpoint_url="http://169.254.169.254/"), 400, "URL_NOT_ALLOWED", "metadata"),
        (_change(agent_endpoint_url="http://10.0.0.1/"), 400, "URL_NOT_ALLOWED", "private"),
        (_change(target={"kind": "http", "url": "http://127.0.0.1/"}), 400, "INVALID_INPUT", "exclude"),
        (_change(grader_ids=None), 400, "MISSING_FIELD", "grader_ids"),
        (_change(grader_ids=[]), 400, "INVALID_LENGTH", "grader_ids"),
        (_change(grader_ids=["nobody"]), 400, "INVALID_GRADER_ID", "nobody"),
        (_change(grader_ids=["exact_match", "exact_match"]), 400, "DUPLICATE_ID", "exact_match"),
        (_change(grader_ids=[{"id": "exact_match", "config": {"x": 1}}]), 400, "INVALID_GRADER", "x"),
        (_change(grader_ids=[{"id": "exact_match", "y": 1}]), 400, "INVALID_INPUT", "y"),
        (_change(repeats=0), 400, "INVALID_INPUT", "repeats"),
        (_change(repeats=True), 400, "INVALID_INPUT", "repeats"),
        (_change(concurrency=201), 400, "INVALID_INPUT", "concurrency"),
        (_change(timeout_s=0), 400, "INVALID_INPUT", "timeout_s"),
        (_change(baseline_id=UNKNOWN), 400, "INVALID_INPUT", "baseline_id"),
        (_change(name=""), 400, "INVALID_LENGTH", "name"),
        (_change(name="  "), 400, "INVALID_INPUT", "name"),
        (_change(name="a\0b"), 400, "INVALID_INPUT", "name"),
        (_change(nonsense=1), 400, "INVALID_INPUT", "nonsense"),
    ],
)
def test_an_invalid_request_is_refused_before_anything_is_sent(
    call: Call, asked: dict[str, Any], agent: EchoAgent, changes: dict[str, Any], status: int, code: str, message: str
) -> None:
    body = {key: value for key, value in {**asked, **changes}.items() if value is not None}
    answer = start(call, body)
    assert (answer.status, answer.error["code"]) == (status, code), answer.body
    assert message in answer.error["message"]
    assert call("GET", "/api/evaluations").data["total"] == 0
    assert agent.total == 0


def test_a_case_that_is_named_twice_is_refused(call: Call, asked: dict[str, Any], case: str) -> None:
    assert start(call, {**asked, "test_case_ids": [case, case]}).error["code"] == "DUPLICATE_ID"


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ({"kind": "command", "command": ["id"]}, 403, "FORBIDDEN"),
        ({"kind": "python", "function": "os:system"}, 403, "FORBIDDEN"),
        ({"kind": "letta_agent"}, 403, "FORBIDDEN"),
        ({"kind": "agent"}, 403, "FORBIDDEN"),
        ({"kind": "nonsense"}, 403, "FORBIDDEN"),
        ({"kind": "replay", "responses": "/etc/passwd"}, 400, "INVALID_INPUT"),
        ({"kind": "replay", "run": UNKNOWN}, 400, "INVALID_INPUT"),
        ({"kind": "http", "url": "http://127.0.0.1/${HOME}"}, 400, "INVALID_INPUT"),
        (
            {"kind": "http", "url": "http://127.0.0.1/", "headers": {"Authorization": "Bearer abcdef"}},
            400,
            "INVALID_INPUT",
        ),
        ({"kind": "http", "url": "http://127.0.0.1/", "headers": {"X": {"secret": "NOBODY"}}}, 400, "INVALID_INPUT"),
        ({"kind": "http", "url": "http://127.0.0.1/", "nonsense": 1}, 400, "INVALID_INPUT"),
        ({"kind": "http"}, 400, "INVALID_URL"),
        ({"kind": "openai", "model": "m", "base_url": "http://10.0.0.1/"}, 400, "URL_NOT_ALLOWED"),
        ({"kind": "openai", "model": "m", "api_key": "sk-abcdefgh"}, 400, "INVALID_INPUT"),
    ],
)
def test_targets_that_are_not_allowed_are_refused(
    call: Call, asked: dict[str, Any], target: dict[str, Any], status: int, code: str
) -> None:
    answer = start(call, {**without(asked, "agent_endpoint_url"), "target": target})
    assert (answer.status, answer.error["code"]) == (status, code), answer.body


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"dataset": "/etc/passwd"}, "INVALID_INPUT", "dataset"),
        ({"dataset": []}, "INVALID_LENGTH", "dataset"),
        ({"dataset": [{"id": 1}]}, "INVALID_INPUT", "dataset[0]"),
        ({"dataset": [{"input": "a", "rubric_path": "/etc/passwd"}]}, "INVALID_INPUT", "rubric_path"),
        ({"setup_script": "x.py:f"}, "INVALID_INPUT", "setup_script"),
        ({"output": "/tmp/x"}, "INVALID_INPUT", "output"),
        ({"reward": {"kind": "custom", "function": "x.py:f"}}, "INVALID_INPUT", "reward"),
        ({"graders": {}}, "INVALID_GRADER", "graders"),
        ({"graders": {"a": {"kind": "nonsense"}}}, "INVALID_GRADER", "nonsense"),
        ({"graders": {"a": {"kind": "tool", "function": "x.py:f"}}}, "INVALID_GRADER", "--graders-dir"),
        ({"graders": {"a": {"kind": "exact_match", "extractor": "x.py:f"}}}, "INVALID_GRADER", "extractor"),
        ({"graders": {"a": {"kind": "model_judge", "prompt_path": "/etc/passwd"}}}, "INVALID_GRADER", "prompt_path"),
        (
            {
                "graders": {
                    "a": {
                        "kind": "model_judge",
                        "prompt": "?",
                        "model": "m",
                        "provider": "openai",
                        "base_url": "http://127.0.0.1:1/",
                        "api_key_env": "OPENAI_API_KEY",
                    }
                }
            },
            "INVALID_GRADER",
            "OPENAI_API_KEY",
        ),
        (
            {
                "graders": {
                    "a": {
                        "kind": "model_judge",
                        "prompt": "?",
                        "model": "m",
                        "provider": "openai",
                        "base_url": "http://127.0.0.1:1/",
                        "api_key_env": "GRADELINE_SECRET_KEY",
                    }
                }
            },
            "INVALID_INPUT",
            "GRADELINE_SECRET_KEY",
        ),
        ({"nonsense": 1}, "INVALID_INPUT", "nonsense"),
        ({"gate": {"kind": "simple", "metric_key": "nobody", "op": "gte", "value": 1}}, "INVALID_INPUT", "gate"),
    ],
)
def test_a_suite_over_rest_is_only_data(
    call: Call, agent: EchoAgent, changes: dict[str, Any], code: str, message: str
) -> None:
    answer = start(call, {"suite": {**suite_of(agent, 1), **changes}})
    assert (answer.status, answer.error["code"]) == (400, code), answer.body
    assert message in answer.error["message"]
    assert agent.total == 0


def test_a_tree_that_is_too_deep_is_refused(call: Call, asked: dict[str, Any]) -> None:
    tree: Any = "x"
    for _ in range(70):
        tree = [tree]
    body = {
        **without(asked, "agent_endpoint_url"),
        "target": {"kind": "http", "url": "http://127.0.0.1/", "request": tree},
    }
    assert start(call, body).error["code"] == "INVALID_INPUT"


class TestIdempotency:
    def test_the_same_request_makes_one_run(self, call: Call, asked: dict[str, Any], agent: EchoAgent) -> None:
        first = start(call, asked, **{"Idempotency-Key": "a"})
        again = start(call, asked, **{"Idempotency-Key": "a"})
        assert "Idempotent-Replayed" not in first.headers
        assert (again.status, again.headers["Idempotent-Replayed"]) == (201, "true")
        assert again.data["id"] == first.data["id"]
        ended(call, first.data["id"])
        assert agent.total == 1

    def test_another_body_under_the_same_key_is_refused(self, call: Call, asked: dict[str, Any]) -> None:
        start(call, asked, **{"Idempotency-Key": "a"})
        answer = start(call, {**asked, "name": "other"}, **{"Idempotency-Key": "a"})
        assert (answer.status, answer.error["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")

    def test_a_refused_request_uses_up_no_key(self, call: Call, asked: dict[str, Any]) -> None:
        assert start(call, {**asked, "grader_ids": ["nobody"]}, **{"Idempotency-Key": "a"}).status == 400
        assert start(call, asked, **{"Idempotency-Key": "a"}).status == 201

    def test_a_request_that_is_in_progress_is_a_conflict(
        self, call: Call, service: Service, asked: dict[str, Any]
    ) -> None:
        with service.evaluations._keys.during("local", "a"):
            answer = start(call, asked, **{"Idempotency-Key": "a"})
        assert (answer.status, answer.error["code"]) == (409, "CONFLICT")

    def test_callers_have_keys_of_their_own(
        self, call: Call, asked: dict[str, Any], call_with: Callable[[str], dict[str, str]], agent: EchoAgent
    ) -> None:
        target = {**without(asked, "agent_endpoint_url"), "target": {"kind": "openai", "model": "m"}}
        suites = {**target, "target": {"kind": "http", "url": "http://agent.invalid/"}}
        found = [start(call, suites, **call_with("run"), **{"Idempotency-Key": "a"}).data["id"] for _ in range(2)]
        assert found[0] != found[1]

    @pytest.mark.parametrize("key", [" ", "x" * 256])
    def test_a_key_must_be_one(self, call: Call, asked: dict[str, Any], key: str) -> None:
        assert start(call, asked, **{"Idempotency-Key": key}).status == 400


class TestOverload:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> ServeSettings:
        return ServeSettings(store=str(tmp_path / "store.db"), runs_at_once=1, queue_limit=2)

    def test_a_full_queue_refuses_new_runs_temporarily(
        self, call: Call, asked: dict[str, Any], agent: EchoAgent
    ) -> None:
        agent.may_answer.clear()
        first = start(call, asked).data["id"]
        agent.wait_for(1)
        waiting = [start(call, asked).data["id"] for _ in range(2)]
        for _ in range(20):
            refused = start(call, asked)
            returned = (refused.status, refused.error["code"], refused.headers["Retry-After"])
            assert returned == (429, "RATE_LIMITED", "5")
        metrics = call("GET", "/api/metrics").body.splitlines()
        assert {"gradeline_queue_length 2", "gradeline_runs_here 1"} <= set(metrics)
        agent.may_answer.set()
        assert {ended(call, run)["status"] for run in [first, *waiting]} == {"completed"}
        assert start(call, asked).status == 201


class TestReading:
    def test_pages_continue_newest_first(self, call: Call, asked: dict[str, Any]) -> None:
        ids = [start(call, {**asked, "name": f"run {n}"}).data["id"] for n in range(5)]
        whole = call("GET", "/api/evaluations").data
        assert [run["id"] for run in whole["evaluations"]] == ids[::-1]
        assert (whole["count"], whole["total"], whole["next_cursor"]) == (5, 5, None)
        seen: list[str] = []
        cursor = ""
        while cursor is not None:
            page = call("GET", f"/api/evaluations?limit=2{cursor}").data
            seen += [run["id"] for run in page["evaluations"]]
            cursor = None if page["next_cursor"] is None else f"&cursor={page['next_cursor']}"
            start(call, {**asked, "name": "in between"})
        assert seen == ids[::-1]
        skipped = call("GET", "/api/evaluations?limit=1&skip=7").data["evaluations"]
        assert [run["id"] for run in skipped] == [ids[0]]

    def test_filters(self, call: Call, asked: dict[str, Any], agent: EchoAgent) -> None:
        one = start(call, {**asked, "name": "Ärger im Büro"}).data
        two = start(call, {**without(asked, "test_case_ids"), "tag": "smoke", "name": "other"}).data
        for run in (one, two):
            ended(call, run["id"])

        def names(query: str) -> list[str]:
            page = call("GET", f"/api/evaluations?{query}").data
            assert page["total"] == page["count"]
            return [run["name"] for run in page["evaluations"]]

        assert names("status=completed") == ["other", "Ärger im Büro"]
        assert names("status=failed") == []
        assert names("q=ÄRGER") == ["Ärger im Büro"]
        assert names("tag=smoke") == ["other"]
        assert names("from=2000-01-01T00:00:00Z") == ["other", "Ärger im Büro"]
        assert names("to=2000-01-01") == []
        assert names(f"from={one['started_at']}&to={one['started_at']}") == []

    @pytest.mark.parametrize(
        "query", ["limit=0", "limit=501", "skip=-1", "cursor=x", "status=x", "from=x", "skip=1&cursor=WzFd", "q=%00"]
    )
    def test_invalid_list_parameters(self, call: Call, query: str) -> None:
        answer = call("GET", f"/api/evaluations?{query}")
        assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", ""),
            ("GET", "/suite"),
            ("GET", "/events"),
            ("POST", "/cancel"),
            ("POST", "/resume"),
            ("POST", "/retry-failed"),
            ("DELETE", ""),
        ],
    )
    @pytest.mark.parametrize("run", [UNKNOWN, "no-uuid"])
    def test_an_unknown_run_is_not_found(self, call: Call, method: str, path: str, run: str) -> None:
        answer = call(method, f"/api/evaluations/{run}{path}")
        assert (answer.status, answer.error["code"]) == (404, "NOT_FOUND")

    def test_a_run_of_the_command_line_shows_too(
        self, call: Call, settings: ServeSettings, tmp_path: Path, agent: EchoAgent
    ) -> None:
        from gradeline.cli import run_cli as gradeline

        file = tmp_path / "suite.json"
        file.write_text(json.dumps(suite_of(agent, 2)))
        gradeline(["--store", settings.store, "run", str(file), "--quiet"])
        (shown,) = call("GET", "/api/evaluations").data["evaluations"]
        assert (shown["name"], shown["status"], shown["result_count"]) == ("q", "completed", 2)
        for act in ("cancel", "resume", "retry-failed"):
            assert call("POST", f"/api/evaluations/{shown['id']}/{act}").error["code"] == "CONFLICT"
        assert call("GET", f"/api/evaluations/{shown['id']}/suite").status == 404

    def test_a_run_whose_owner_is_gone_is_interrupted_and_can_be_deleted(self, call: Call, service: Service) -> None:
        run = service.storage.save_run(Run(name="killed", suite="s", status="running", owner=None))
        (shown,) = call("GET", "/api/evaluations").data["evaluations"]
        assert shown["status"] == call("GET", f"/api/evaluations/{run}").data["status"] == "interrupted"
        for status, count in (("interrupted", 1), ("running", 0), ("pending", 0)):
            assert call("GET", f"/api/evaluations?status={status}").data["count"] == count
        answer = call("POST", f"/api/evaluations/{run}/resume")
        assert answer.error["message"].endswith(f"continue there with: gradeline resume {run}")
        events = call("GET", f"/api/evaluations/{run}/events").body
        assert "event: done" in events
        assert call("DELETE", f"/api/evaluations/{run}").status == 204

    def test_the_size_of_a_run_in_the_store_is_estimated(
        self, call: Call, service: Service, asked: dict[str, Any]
    ) -> None:
        run = start(call, asked).data["id"]
        ended(call, run)
        (used,) = usage_of(service.database).runs
        assert call("GET", f"/api/evaluations/{run}/storage").data == {
            "rows": used.rows,
            "estimated_bytes": used.bytes,
        }
        assert call("GET", "/api/evaluations/absent/storage").status == 404

    def test_the_suite_of_a_run_gives_the_same_grades_in_the_command_line(
        self, call: Call, tmp_path: Path, agent: EchoAgent
    ) -> None:
        from gradeline.cli import run_cli as gradeline

        suite = suite_of(agent, 6, wrong=2)
        suite["dataset"] += [
            {"id": 7, "input": "012", "ground_truth": "012", "metadata": {"no": "no", "x": 1.5}, "tags": ["a"]},
            {"id": "8", "input": "1e3: {{input}} # \u2028 'ü' \U0001f600\x85\x07", "ground_truth": "null"},
            {"id": "9", "input": "~", "ground_truth": "~"},
        ]
        run = start(call, {"suite": suite}).data["id"]
        ended(call, run)
        answer = call("GET", f"/api/evaluations/{run}/suite")
        assert answer.headers["content-type"].startswith("application/yaml")
        file, store = tmp_path / "suite.yaml", tmp_path / "other.db"
        file.write_text(answer.body, encoding="utf-8")
        gradeline(["--store", str(store), "run", str(file), "--quiet"])
        with SqliteStorage(store) as storage:
            (there,) = storage.list_runs()
            theirs = {r.case: (r.sample, r.grades["exact"].outcome) for r in storage.records(there.id)}
        mine = call("GET", f"/api/evaluations/{run}/results").data["results"]
        assert {case: outcome.value for case, (_, outcome) in theirs.items()} == {
            one["test_case_id"]: one["scores"][0]["score_status"] for one in mine
        }
        assert {case: sample.input for case, (sample, _) in theirs.items()} == {
            one["test_case_id"]: one["test_case_input"] for one in mine
        }


class TestChecksOfStoredCases:
    """A grader of kind checks over stored cases."""

    @pytest.fixture
    def checked(self, call: Call) -> dict[str, str]:
        """Three cases, by their input."""
        checks = {
            "good": [
                {"condition": "contains", "value": "good", "metric": "facts"},
                {"condition": "length_max", "value": 9, "metric": "size"},
            ],
            "bad": [{"condition": "contains", "value": "good", "metric": "facts"}],
            "plain": None,
        }
        return {
            text: call(
                "POST", "/api/test-cases", json={"input": text, "expected_output": text, "tags": ["c"], "checks": own}
            ).data["id"]
            for text, own in checks.items()
        }

    @pytest.fixture
    def grader(self, call: Call) -> str:
        answer = call("POST", "/api/graders", json={"id": "own", "name": "Own checks", "type": "checks", "config": {}})
        assert answer.status == 201, answer.body
        return "own"

    @pytest.mark.parametrize("chosen", ["ids", "tag", "suite"])
    def test_each_case_is_graded_by_its_own_checks(
        self, call: Call, checked: dict[str, str], grader: str, agent: EchoAgent, chosen: str
    ) -> None:
        body: dict[str, Any] = {"agent_endpoint_url": agent.url, "grader_ids": [grader]}
        if chosen == "suite":
            body = {"suite": {"target": {"kind": "http", "url": agent.url}, "graders": {"own": {"kind": "checks"}}}}
        body |= {"test_case_ids": list(checked.values())} if chosen == "ids" else {"tag": "c"}
        answer = start(call, body)
        assert answer.status == 201, answer.body
        run = answer.data["id"]
        assert ended(call, run)["status"] == "completed"
        results = call("GET", f"/api/evaluations/{run}/results").data["results"]
        statuses = {
            result["test_case_input"]: {score["grader_id"]: score["score_status"] for score in result["scores"]}
            for result in results
        }
        assert statuses["good"] == {"own": "pass", "facts": "pass", "size": "pass"}
        assert statuses["bad"] == {"own": "fail", "facts": "fail", "size": "not_applicable"}
        assert "pass" not in statuses["plain"].values()

    def test_a_case_with_other_checks_is_an_edited_case(
        self, call: Call, checked: dict[str, str], grader: str, agent: EchoAgent
    ) -> None:
        body = {"agent_endpoint_url": agent.url, "grader_ids": [grader], "test_case_ids": list(checked.values())}
        first = start(call, body).data["id"]
        ended(call, first)
        changes = {"checks": [{"condition": "contains", "value": "a", "metric": "facts"}]}
        assert call("PUT", f"/api/test-cases/{checked['bad']}", json=changes).status == 200
        second = start(call, body).data["id"]
        ended(call, second)
        compared = call("GET", f"/api/evaluations/compare?baseline={first}&candidate={second}")
        assert compared.status == 200, compared.body
        assert compared.data["comparability"]["reasons"] == ["cases: 1 case edited between the runs, left out"]
        changed = {case["test_case_id"]: case["change"] for case in compared.data["cases"]}
        assert changed[checked["good"]] == "same"
        assert changed[checked["bad"]] == "edited"

    def test_a_judge_among_the_checks_requires_a_model(
        self, call: Call, checked: dict[str, str], grader: str, agent: EchoAgent
    ) -> None:
        changes = {"checks": [{"judge": "is polite"}]}
        call("PUT", f"/api/test-cases/{checked['bad']}", json=changes)
        answer = start(call, {"agent_endpoint_url": agent.url, "grader_ids": [grader], "tag": "c"})
        assert (answer.status, answer.error["code"]) == (400, "INVALID_GRADER")
        assert "model" in answer.error["message"]


class TestActions:
    def test_a_run_in_the_wrong_state_is_a_conflict(self, call: Call, asked: dict[str, Any]) -> None:
        run = start(call, asked).data["id"]
        ended(call, run)
        for act in ("cancel", "resume", "retry-failed"):
            answer = call("POST", f"/api/evaluations/{run}/{act}")
            assert (answer.status, answer.error["code"]) == (409, "CONFLICT"), act

    def test_a_run_that_works_cannot_be_resumed_retried_regraded_or_deleted(
        self, call: Call, asked: dict[str, Any], agent: EchoAgent
    ) -> None:
        agent.may_answer.clear()
        run = start(call, asked).data["id"]
        agent.wait_for(1)
        assert call("POST", f"/api/evaluations/{run}/resume").status == 409
        assert call("POST", f"/api/evaluations/{run}/retry-failed").status == 409
        assert call("POST", f"/api/evaluations/{run}/regrade", json={"grader_ids": ["contains"]}).status == 409
        assert call("DELETE", f"/api/evaluations/{run}").status == 409
        agent.may_answer.set()
        ended(call, run)

    def test_cancel_and_resume(self, call: Call, agent: EchoAgent) -> None:
        agent.seconds = 0.02
        run = start(call, {"suite": suite_of(agent, 40, concurrency=1)}).data["id"]
        agent.wait_for(3)
        assert call("POST", f"/api/evaluations/{run}/cancel").status == 202
        assert ended(call, run)["status"] == "cancelled"
        agent.seconds = 0
        assert call("POST", f"/api/evaluations/{run}/resume").status == 202
        done = ended(call, run)
        assert (done["status"], done["error_message"], done["result_count"]) == ("completed", None, 40)

    def test_resume_takes_all_in_its_body(self, call: Call, agent: EchoAgent) -> None:
        before = start(call, {"suite": suite_of(agent, 120)}).data["id"]
        ended(call, before)
        agent.says = "not {}"
        asked = {"suite": suite_of(agent, 120), "baseline_id": before, "stop_early": True}
        run = start(call, asked).data["id"]
        stopped = ended(call, run)
        assert stopped["calls_saved"] > 0
        assert (stopped["baseline_id"], stopped["stop_early"]) == (before, True)
        for body in (None, {}, {"all": False}):
            answer = call("POST", f"/api/evaluations/{run}/resume", json=body)
            assert (answer.status, answer.error["code"]) == (409, "CONFLICT")
        for body in ({"all": "yes"}, {"all": None}, {"whole": True}, [], "all"):
            answer = call("POST", f"/api/evaluations/{run}/resume", json=body)
            assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")
        answer = call("POST", f"/api/evaluations/{run}/resume", json={"all": True})
        assert (answer.status, answer.data["stopped"], answer.data["progress"]["total"]) == (202, None, 120)
        done = ended(call, run)
        assert (done["result_count"], done["calls_saved"]) == (120, 0)
        (entry,) = call("GET", "/api/audit?action=evaluation.resume").data["entries"]
        assert entry["details"] == {"all": True}

    def test_the_skipped_cases_of_a_run_of_the_command_line_are_resumed_there(
        self, call: Call, settings: ServeSettings, tmp_path: Path, agent: EchoAgent
    ) -> None:
        from gradeline.cli import run_cli as gradeline

        file = tmp_path / "suite.json"
        file.write_text(json.dumps(suite_of(agent, 120)))
        gradeline(["--store", settings.store, "run", str(file), "--quiet", "--name", "base"])
        agent.says = "not {}"
        early = ["--baseline", "base", "--stop-early", "--name", "new"]
        gradeline(["--store", settings.store, "run", str(file), "--quiet", *early])
        shown = call("GET", "/api/evaluations?q=new").data["evaluations"][0]
        assert (shown["stopped"]["of"], shown["calls_saved"]) == (120, 120 - shown["result_count"])
        answer = call("POST", f"/api/evaluations/{shown['id']}/resume", json={"all": True})
        assert answer.status == 409
        assert answer.error["message"].endswith(f"continue there with: gradeline resume {shown['id']} --all")

    def test_regrade(self, call: Call, asked: dict[str, Any], agent: EchoAgent) -> None:
        run = start(call, asked).data["id"]
        ended(call, run)
        answer = call("POST", f"/api/evaluations/{run}/regrade", json={"grader_ids": ["contains"], "name": "anew"})
        assert answer.status == 201
        assert (answer.data["parent"], answer.data["name"]) == (run, "anew")
        assert ended(call, answer.data["id"])["grader_ids"] == ["contains"]
        assert agent.total == 1
        refused = call("POST", f"/api/evaluations/{run}/regrade", json={"grader_ids": ["nobody"]})
        assert refused.error["code"] == "INVALID_GRADER_ID"
        assert call("DELETE", f"/api/evaluations/{run}").error["code"] == "CONFLICT", "its answers are another's"

    def test_a_deleted_run_is_gone_with_all_its_data(self, call: Call, service: Service, asked: dict[str, Any]) -> None:
        run = start(call, asked, **{"Idempotency-Key": "a"}).data["id"]
        ended(call, run)
        assert call("DELETE", f"/api/evaluations/{run}").status == 204
        assert call("GET", f"/api/evaluations/{run}").status == 404
        for table in ("jobs", "run_events", "samples", "responses", "grades", "idempotency_keys"):
            assert service.database.read(f"SELECT count(*) FROM {table}") == [(0,)], table


class TestScopes:
    def test_scopes_of_every_action(
        self, call: Call, asked: dict[str, Any], call_with: Callable[[str], dict[str, str]]
    ) -> None:
        body = {**asked, "agent_endpoint_url": "http://agent.invalid/"}
        assert start(call, body, **call_with("read")).status == 403
        run = start(call, body, **call_with("run")).data["id"]
        assert call("GET", f"/api/evaluations/{run}", headers=call_with("read")).status == 200
        assert call("DELETE", f"/api/evaluations/{run}", headers=call_with("run")).status == 403
        assert start(call, asked, **call_with("run")).error["code"] == "URL_NOT_ALLOWED", "loopback is out of bounds"


class TestAllowedTargets:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> ServeSettings:
        return ServeSettings(store=str(tmp_path / "store.db"), allow_target=("command", "letta_agent"))

    def test_the_operator_may_allow_more_kinds(self, call: Call, asked: dict[str, Any]) -> None:
        target = {"kind": "command", "command": [sys.executable, "-c", "print('hello')"]}
        run = start(call, {**without(asked, "agent_endpoint_url"), "target": target}).data["id"]
        assert ended(call, run)["progress"] == {"total": 1, "answered": 1, "graded": 1, "errors": 0}

    def test_a_letta_server_must_be_where_agents_may_be(self, call: Call, asked: dict[str, Any]) -> None:
        target = {"kind": "letta_agent", "agent_id": "agent-1", "base_url": "http://10.0.0.1:8283"}
        answer = start(call, {**without(asked, "agent_endpoint_url"), "target": target})
        assert answer.error["code"] == "URL_NOT_ALLOWED", answer.body
        assert "target.base_url" in answer.error["message"]


class TestOperatorGraders:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> ServeSettings:
        folder = tmp_path / "graders"
        folder.mkdir()
        (folder / "polite.py").write_text(
            "from gradeline import grader, GradeResult\n\n@grader\ndef polite(sample, submission):\n"
            "    return GradeResult(1.0 if 'hello' in submission else 0.0)\n"
        )
        (folder / "fatal.py").write_text(
            "import os, signal\nfrom gradeline import grader\n\n@grader\ndef fatal(sample, submission):\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        return ServeSettings(store=str(tmp_path / "store.db"), graders_dir=folder)

    def test_python_graders_are_used_by_their_ids(self, call: Call, asked: dict[str, Any]) -> None:
        ids = self._ids(call, "polite")
        run = start(call, {**asked, "grader_ids": ids}).data["id"]
        done = ended(call, run)
        assert (done["status"], done["progress"]["graded"]) == ("completed", 1), done
        (result,) = call("GET", f"/api/evaluations/{run}/results").data["results"]
        assert [score["score_status"] for score in result["scores"]] == ["pass"]

    def test_a_grader_that_kills_its_worker_is_in_the_metrics(self, call: Call, asked: dict[str, Any]) -> None:
        run = start(call, {**asked, "grader_ids": self._ids(call, "fatal")}).data["id"]
        assert ended(call, run)["status"] == "completed"
        lines = call("GET", "/api/metrics").body.splitlines()
        assert any(line.startswith('gradeline_worker_deaths_total{reason="crashed"} ') for line in lines)

    def _ids(self, call: Call, name: str) -> list[str]:
        listed = call("GET", "/api/graders").data["graders"]
        return [one["id"] for one in listed if one["type"] == "python" and name in one["id"]]


def test_build_service_returns_its_parts(settings: ServeSettings) -> None:
    built = build_service(settings)
    try:
        assert built.evaluations is not None
        assert built.runner.running == 0
    finally:
        built.stop()
