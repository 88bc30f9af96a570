"""One caller cannot exhaust shared resources: threads for previews and trials, and calls in flight."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from gradeline.service import trials
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings

from .conftest import MASTER_KEY, Call
from .live import EchoAgent, Server, new_key, suite_of, with_keys


class SilentJudge:
    """A model server that does not answer until it is released."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = Event()
        judge = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                judge.asked += 1
                judge.may_answer.wait(60)
                with suppress(ConnectionError):  # who asked may have given up
                    self.send_error(500)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def definition(self) -> dict[str, Any]:
        config = {"prompt": "Right? {submission}", "model": "m", "base_url": self.url, "max_retries": 0, "timeout": 120}
        return {"name": "Silent", "type": "model_judge", "config": config}

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def judge() -> Iterator[SilentJudge]:
    opened = SilentJudge()
    yield opened
    opened.close()


def test_60_previews_and_trials_of_one_key_do_not_delay_others(tmp_path: Path, judge: SilentJudge) -> None:
    store = tmp_path / "store.db"
    (_, greedy), (_, other) = new_key(store, "admin"), new_key(store, "admin")
    options = (*with_keys(tmp_path), "--allow-agent-net", "127.0.0.1")
    look = {"agent_response": "x", "definition": judge.definition()}
    ask = {"agent_endpoint_url": judge.url, "input": "q", "timeout_s": 60}
    calls = [("/api/graders/new/preview", look), ("/api/evaluations/try", ask)] * 30
    with Server(store, *options) as server, ThreadPoolExecutor(60) as threads:
        sent = [threads.submit(server.call, "POST", path, body, **greedy) for path, body in calls]
        while sum(one.done() for one in sent) < 56:  # all but those that have a place
            time.sleep(0.05)
        assert server.call("GET", "/api/test-cases", **greedy)[0] == 200
        refused = [one.result() for one in sent if one.done()]
        assert Counter(status for status, _ in refused) == {429: 56}
        assert "4 previews and trials of this caller are in progress" in refused[0][1]["error"]["message"]
        # another key has places of its own, and both share one number of them
        for _ in range(2):
            assert server.call("POST", "/api/graders/contains/preview", {"agent_response": "x"}, **other)[0] < 500
        judge.may_answer.set()
        assert all(one.result()[0] == 200 for one in sent if one.result()[0] != 429)
        assert server.call("POST", "/api/evaluations/try", ask, **greedy)[0] == 200


def test_a_slow_judge_times_out(
    service: Service, call: Call, judge: SilentJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "MAX_PREVIEW_S", 0.3)
    answer = call("POST", "/api/graders/new/preview", json={"agent_response": "x", "definition": judge.definition()})
    score = answer.data
    assert (score["score_status"], score["score_value"], score["error_type"]) == ("error", None, "timeout")
    assert score["error_message"] == "no score within 0.3 s, the maximum of a preview"
    assert service.local


class TestConcurrency:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> ServeSettings:
        return ServeSettings(store=str(tmp_path / "store.db"), secret_key=MASTER_KEY, max_concurrency=7)

    @pytest.fixture
    def agent(self) -> Iterator[EchoAgent]:
        with EchoAgent() as opened:
            yield opened

    @pytest.mark.parametrize("where", ["suite", "max_concurrent", "target", "body", "parts"])
    def test_the_maximum_applies_to_every_source_of_concurrency(self, call: Call, agent: EchoAgent, where: str) -> None:
        for number, status in ((8, 400), (10**30, 400), (7, 201)):
            suite = suite_of(agent, 1)
            del suite["concurrency"]
            body: dict[str, Any] = {"suite": suite}
            if where == "suite":
                suite["concurrency"] = number
            elif where == "max_concurrent":
                suite["max_concurrent"] = number
            elif where == "target":
                suite["target"]["concurrency"] = number
            elif where == "body":
                body["concurrency"] = number
            else:
                case = call("POST", "/api/test-cases", json={"input": "q", "expected_output": "q"}).data["id"]
                body = {"test_case_ids": [case], "agent_endpoint_url": agent.url, "grader_ids": ["contains"]}
                body["concurrency"] = number
            answer = call("POST", "/api/evaluations", json=body)
            assert answer.status == status, answer.body
            if status == 400:
                assert answer.error["code"] == "INVALID_INPUT"
            if number == 8:
                assert "8 calls in flight are more than the maximum of 7; use 7 or fewer" in answer.error["message"]

    def test_a_suite_without_concurrency_gets_the_default_or_the_maximum(self, call: Call, agent: EchoAgent) -> None:
        suite = suite_of(agent, 1)
        del suite["concurrency"]
        assert call("POST", "/api/evaluations", json={"suite": suite}).status == 201

    def test_an_earlier_run_continues_within_a_lowered_maximum(self, tmp_path: Path) -> None:
        store = tmp_path / "lowered.db"
        with EchoAgent() as agent:
            agent.may_answer.clear()
            with Server(store, lease_s=1) as server:
                run = server.data("POST", "/api/evaluations", {"suite": suite_of(agent, 30, concurrency=20)})["id"]
                agent.wait_for(20)
            with Server(store, "--max-concurrency", "3", lease_s=1) as server:
                agent.wait_for(23)
                agent.may_answer.set()
                assert server.until_ended(run)["status"] == "completed"
