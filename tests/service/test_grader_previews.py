"""Grader previews of a text or a stored result, and the addresses at which judges may be called."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from gradeline import graders
from gradeline.errors import Fault
from gradeline.model import ErrorInfo, Message, Response, ResponseKey, Run, Sample, Trajectory
from gradeline.rest_types import result_id
from gradeline.service.service import Service

Call = Any
"""The fixture of conftest."""

GRADERS = "/api/graders"
RULES = {"rules": [{"condition": "contains", "value": "please"}]}
GOOD = {"name": "Polite", "type": "custom-rules", "config": RULES}
JUDGE = {"prompt": "Is it right? {submission}", "model": "judge-1"}


@pytest.fixture
def judge() -> Iterator[tuple[str, list[str | None]]]:
    """A model server that always returns 0.75: its base URL, and the Authorization of each call."""
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.headers["Authorization"])
            message = {"role": "assistant", "content": json.dumps({"score": 0.75, "rationale": "mostly"})}
            body = json.dumps({"model": "judge-1", "choices": [{"message": message, "finish_reason": "stop"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def created(call: Call, **fields: Any) -> dict[str, Any]:
    answer = call("POST", GRADERS, json={**GOOD, **fields})
    assert answer.status == 201, answer.body
    data: dict[str, Any] = answer.data
    return data


def listed(call: Call) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in call("GET", GRADERS).data["graders"]}


def problems(answer: Any) -> list[str]:
    assert (answer.status, answer.error["code"]) == (400, "INVALID_GRADER"), answer.body
    return [problem["field"] for problem in answer.error["details"]["errors"]]


class TestPreview:
    def test_texts_give_one_score(self, call: Call) -> None:
        sent = {"agent_response": "PARIS", "expected_output": "Paris", "input": "The capital of France?"}
        answer = call("POST", f"{GRADERS}/string-match/preview", json=sent)
        assert (answer.status, answer.data) == (
            200,
            {
                "grader_id": "string-match",
                "grader_name": "String match",
                "score_value": 1.0,
                "score_status": "pass",
                "rationale": answer.data["rationale"],
                "details": answer.data["details"],
                "error_type": None,
                "error_message": None,
                "latency_ms": answer.data["latency_ms"],
            },
        )

    def test_config_goes_over_the_graders_own(self, call: Call) -> None:
        sent = {"agent_response": "PARIS", "expected_output": "Paris", "config": {"case_sensitive": True}}
        assert call("POST", f"{GRADERS}/string-match/preview", json=sent).data["score_status"] == "fail"
        wrong = {**sent, "config": {"case_sensitve": True}}
        assert problems(call("POST", f"{GRADERS}/string-match/preview", json=wrong)) == ["config.case_sensitve"]
        assert call("GET", f"{GRADERS}/string-match").data["config"] == {}

    def test_a_stored_grader_is_previewed(self, call: Call) -> None:
        grader = created(call)
        score = call("POST", f"{GRADERS}/{grader['id']}/preview", json={"agent_response": "please"}).data
        assert (score["grader_id"], score["grader_name"], score["score_value"]) == (grader["id"], "Polite", 1.0)

    def test_a_missing_score_is_not_a_zero(self, call: Call) -> None:
        sent = {"agent_response": "x", "expected_output": "no number"}
        score = call("POST", f"{GRADERS}/numeric/preview", json=sent).data
        assert (score["score_status"], score["score_value"], score["error_type"]) == ("error", None, "ungradable")

    def test_patterns_that_could_hang_run_in_a_worker(self, call: Call) -> None:
        sent = {"agent_response": "aaa", "expected_output": "(a)\\1+"}
        assert call("POST", f"{GRADERS}/regex_match/preview", json=sent).data["score_status"] == "pass"

    def test_a_stored_result(self, call: Call, service: Service) -> None:
        run = service.storage.save_run(Run(name="r", suite="s", suite_digest="d", target={}, graders={}))
        key = ResponseKey(run, "a/b é", 1)
        service.storage.put_response(key, Response(text="Paris"), Sample("a/b é", "Where?", "Paris"))
        failed = Response("error", error=ErrorInfo("timeout", "no answer", Fault.AGENT))
        service.storage.put_response(ResponseKey(run, "c", 0), failed, Sample("c", "Where?", "Paris"))
        place = f"{GRADERS}/exact_match/preview"
        named = {"evaluation_id": run, "result_id": result_id("a/b é", 1)}
        assert call("POST", place, json=named).data["score_status"] == "pass"
        skipped = call("POST", place, json={"evaluation_id": run, "result_id": "c~0"}).data
        assert (skipped["score_status"], skipped["score_value"]) == ("skipped", None)
        for wrong in ({"evaluation_id": "nope"}, {"result_id": "c~1"}, {"result_id": "c"}, {"result_id": "\0~0"}):
            answer = call("POST", place, json={**named, **wrong})
            assert (answer.status, answer.error["code"]) == (404, "NOT_FOUND")
        both = call("POST", place, json={**named, "agent_response": "x"})
        assert (both.status, both.error["code"]) == (400, "INVALID_INPUT")
        half = call("POST", place, json={"evaluation_id": run})
        assert (half.error["code"], "'result_id'" in half.error["message"]) == ("MISSING_FIELD", True)

    def test_a_stored_conversation_is_graded_turn_by_turn_as_in_its_run(self, call: Call, service: Service) -> None:
        run = service.storage.save_run(Run(name="r", suite="s", suite_digest="d", target={}, graders={}))
        turns = Trajectory(((Message("assistant", "Paris"),), (Message("assistant", "Oslo"),)))
        sample = Sample("a", ["France?", "Norway?"], ["Paris", "(O)sl\\1"])
        service.storage.put_response(ResponseKey(run, "a", 0), Response(text="Oslo", trajectory=turns), sample)
        named = {"evaluation_id": run, "result_id": "a~0"}
        score = call("POST", f"{GRADERS}/exact_match/preview", json=named).data
        assert (score["score_value"], score["rationale"]) == (0.5, "1/2 passed: ✓ ✗")
        in_a_worker = call("POST", f"{GRADERS}/regex_match/preview", json=named).data
        assert (in_a_worker["score_value"], in_a_worker["rationale"]) == (0.5, "1/2 passed: ✓ ✗")

    def test_a_text_is_itself_what_a_tool_call_grader_grades(self, call: Call) -> None:
        sent = {
            "agent_response": '[{"name": "f", "arguments": {}}]',
            "expected_output": '[{"name": "f", "arguments": {}}]',
        }
        assert call("POST", f"{GRADERS}/tool_calls/preview", json=sent).data["score_status"] == "pass"

    def test_tool_use_of_a_text_is_unknown(self, call: Call) -> None:
        sent = {"agent_response": "done", "config": {"max_tool_calls": 0}}
        score = call("POST", f"{GRADERS}/trajectory/preview", json=sent).data
        assert (score["score_status"], score["error_type"]) == ("error", "missing")

    def test_an_unsaved_definition(self, call: Call) -> None:
        place = f"{GRADERS}/new/preview"
        sent = {"agent_response": "please", "definition": {"type": "custom-rules", "config": RULES}}
        assert call("POST", place, json=sent).data["score_value"] == 1.0
        assert len(listed(call)) == len(graders.registry.list())
        assert problems(call("POST", place, json={**sent, "definition": {"type": "custom-rules"}})) == ["config.rules"]
        assert call("POST", place, json={"agent_response": "x"}).error["code"] == "MISSING_FIELD"
        assert call("POST", f"{GRADERS}/string-match/preview", json=sent).status == 404

    @pytest.mark.parametrize(
        ("sent", "code"),
        [
            ({}, "MISSING_FIELD"),
            ({"agent_response": None}, "MISSING_FIELD"),
            ({"agent_response": 7}, "INVALID_INPUT"),
            ({"agent_response": "a\0"}, "INVALID_INPUT"),
            ({"agent_response": "a", "expected_output": "\0"}, "INVALID_INPUT"),
            ({"agent_response": "a", "config": 7}, "INVALID_INPUT"),
            ({"agent_response": "a", "more": 1}, "INVALID_INPUT"),
        ],
    )
    def test_wrong_requests(self, call: Call, sent: dict[str, Any], code: str) -> None:
        answer = call("POST", f"{GRADERS}/string-match/preview", json=sent)
        assert (answer.status, answer.error["code"]) == (400, code)

    def test_an_unknown_grader(self, call: Call) -> None:
        assert call("POST", f"{GRADERS}/nope/preview", json={"agent_response": "x"}).status == 404

    def test_an_empty_answer_is_a_fail(self, call: Call) -> None:
        score = call("POST", f"{GRADERS}/string-match/preview", json={"agent_response": "", "expected_output": "x"})
        assert (score.data["score_status"], score.data["score_value"]) == ("fail", 0.0)


class TestJudges:
    def test_a_judge_is_called_with_a_secret_bound_to_its_host(
        self, call: Call, judge: tuple[str, list[str | None]]
    ) -> None:
        url, seen = judge
        host = url.removeprefix("http://").removesuffix("/v1")
        call("PUT", "/api/secrets/GATEWAY", json={"value": "sk-very-secret", "host": host})
        config = {**JUDGE, "base_url": url, "api_key_env": "GATEWAY"}
        grader = created(call, type="model_judge", config=config)
        score = call("POST", f"{GRADERS}/{grader['id']}/preview", json={"agent_response": "Paris"})
        assert (score.data["score_value"], score.data["rationale"]) == (0.75, "mostly")
        assert seen == ["Bearer sk-very-secret"]
        assert "sk-very-secret" not in json.dumps(score.body)

    def test_a_secret_of_another_host_is_not_sent(self, call: Call, judge: tuple[str, list[str | None]]) -> None:
        url, seen = judge
        call("PUT", "/api/secrets/OTHER", json={"value": "sk-very-secret", "host": "api.example.com"})
        config = {**JUDGE, "base_url": url, "api_key_env": "OTHER"}
        grader = created(call, type="model_judge", config=config)
        answer = call("POST", f"{GRADERS}/{grader['id']}/preview", json={"agent_response": "Paris"})
        assert (answer.status, seen) == (400, [])

    def test_the_servers_environment_is_out_of_reach(
        self, call: Call, judge: tuple[str, list[str | None]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url, seen = judge
        monkeypatch.setenv("DATABASE_PASSWORD", "hunter2-hunter2")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-operator")
        for name in ("DATABASE_PASSWORD", "OPENAI_API_KEY"):
            definition = {"type": "model_judge", "config": {**JUDGE, "base_url": url, "api_key_env": name}}
            answer = call("POST", f"{GRADERS}/new/preview", json={"agent_response": "x", "definition": definition})
            assert answer.status == 400
        assert seen == []
        definition = {"type": "model_judge", "config": {**JUDGE, "base_url": url}}
        call("POST", f"{GRADERS}/new/preview", json={"agent_response": "x", "definition": definition})
        assert seen == [None]

    def test_the_operators_key_goes_to_the_operators_address(
        self, call: Call, judge: tuple[str, list[str | None]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        url, seen = judge
        monkeypatch.setenv("OPENAI_API_KEY", "sk-operator")
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        sent = {"agent_response": "x", "config": JUDGE}
        assert call("POST", f"{GRADERS}/model_judge/preview", json=sent).data["score_value"] == 0.75
        assert seen == ["Bearer sk-operator"]

    def test_a_judge_without_a_key_cannot_be_called(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        answer = call("POST", f"{GRADERS}/model_judge/preview", json={"agent_response": "x", "config": JUDGE})
        assert (answer.status, answer.error["code"]) == (400, "INVALID_GRADER")

    def test_the_egress_policy_holds_at_the_connection_too(
        self, service: Service, call: Call, judge: tuple[str, list[str | None]], call_with: Callable[[str], Any]
    ) -> None:
        url, seen = judge
        grader = created(call, type="model_judge", config={**JUDGE, "base_url": url, "max_retries": 0})
        headers = call_with("admin")  # from now on loopback is denied
        answer = call("POST", f"{GRADERS}/{grader['id']}/preview", json={"agent_response": "x"}, headers=headers)
        assert (answer.status, answer.error["code"], seen) == (400, "URL_NOT_ALLOWED", [])
