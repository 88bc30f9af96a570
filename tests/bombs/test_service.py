"""A server under a memory limit stays ready with expensive inputs, and other runs continue."""

from __future__ import annotations

import json
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "service"))

from attack import attack, limited, run_of
from corpus import DOUBLING, doubled_references, file_bombs
from live import EchoAgent, Server

from gradeline.service.queue import QUARANTINED

MEMORY = 3 * 1024**3
NEVER_S = 600.0
"""A short deadline for tests."""


def test_the_service_answers_while_the_corpus_is_evaluated(tmp_path: Path) -> None:
    with EchoAgent() as agent, Server(tmp_path / "store.db", through=limited(MEMORY, 0.3)) as server:
        pid = server.pid
        attacked = attack(server, agent, count=35, at_once=8)
        assert (attacked["ready failed"], attacked["other run"]) == ([], "completed")
        assert [name for name in attacked["outcomes"] if name.startswith("HTTP")] == []
        assert attacked["outcomes"]["timeout"] >= 10
        assert (server.pid, server.call("GET", "/api/health")[0]) == (pid, 200)


@pytest.mark.parametrize("path", ["/api/test-cases/import", "/api/evaluations", "/api/graders/new/preview"])
def test_a_server_refuses_every_file_of_the_corpus(tmp_path: Path, path: str) -> None:
    kinds = ("application/json", "text/csv", "application/x-ndjson", "application/yaml")
    with Server(tmp_path / "store.db", through=limited(1024**3, 0.3)) as server:
        for bomb in file_bombs():
            coding = {"Content-Encoding": "gzip"} if bomb.name == "a gzip file" else {}
            for headers in ({"Content-Type": kind} | more for kind in kinds for more in ({}, coding)):
                connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
                connection.request("POST", path, bomb.content, headers)
                status = connection.getresponse().status
                connection.close()
                assert 400 <= status < 500, (bomb.name, headers, status)
        assert server.call("GET", "/api/test-cases")[1]["data"]["test_cases"] == []
        assert server.call("GET", "/api/ready")[0] == 200


def test_a_run_with_bombs_is_graded_and_no_case_is_lost(tmp_path: Path) -> None:
    graders = {
        "schema": {"kind": "json_schema", "config": {"schema": doubled_references(60)}},
        "path": {"kind": "contains", "extractor": "json", "extractor_config": {"path": DOUBLING}},
        "plain": {"kind": "contains"},
    }
    with EchoAgent() as agent, Server(tmp_path / "store.db", through=limited(MEMORY, 0.3)) as server:
        agent.says = "[1]"
        run = server.data("POST", "/api/evaluations", {"suite": run_of(agent, 4, graders)})["id"]
        assert server.until_ended(run)["status"] == "completed"
        results = server.data("GET", f"/api/evaluations/{run}/results")["results"]
        found = [{score["grader_id"]: score["error_type"] for score in result["scores"]} for result in results]
        assert found == [{"schema": "timeout", "path": "timeout", "plain": None}] * 4


def test_an_answer_that_its_path_makes_too_large_is_an_error_of_that_case(tmp_path: Path) -> None:
    suite = {"response": {"output": f"[response]|{DOUBLING}"}}
    with EchoAgent() as agent, Server(tmp_path / "store.db", through=limited(MEMORY, 0.3)) as server:
        made = run_of(agent, 2, {"plain": {"kind": "contains"}}, **suite)
        run = server.data("POST", "/api/evaluations", {"suite": made})["id"]
        assert server.until_ended(run)["status"] == "completed"
        results = server.data("GET", f"/api/evaluations/{run}/results")["results"]
        assert [
            (result["response_status"], "cannot be searched in this response" in result["error_message"])
            for result in results
        ] == [("error", True)] * 2


def test_a_run_is_cancelled_while_one_is_evaluated(tmp_path: Path) -> None:
    graders = {"schema": {"kind": "json_schema", "config": {"schema": doubled_references(60)}}}
    with EchoAgent() as agent, Server(tmp_path / "store.db", through=limited(MEMORY, NEVER_S)) as server:
        agent.says = "[1]"
        run = server.data("POST", "/api/evaluations", {"suite": run_of(agent, 2, graders)})["id"]
        agent.wait_for(2)
        server.call("POST", f"/api/evaluations/{run}/cancel", {})
        assert server.until_ended(run)["status"] == "cancelled"


def test_a_run_whose_server_died_twice_waits_for_a_person(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    with EchoAgent() as agent:
        agent.may_answer.clear()
        with Server(store) as first:
            suite = run_of(agent, 2, {"plain": {"kind": "contains"}})
            run = first.data("POST", "/api/evaluations", {"suite": suite})["id"]
            agent.wait_for(2)
        with Server(store):
            agent.wait_for(4)
        with Server(store) as third:
            ended = third.until_ended(run)
            assert (ended["status"], ended["error_message"]) == ("failed", QUARANTINED)
            listed = third.data("GET", "/api/evaluations")["evaluations"]
            assert [(one["id"], one["error_message"]) for one in listed] == [(run, QUARANTINED)]
            agent.may_answer.set()
            assert third.call("POST", f"/api/evaluations/{run}/resume", {})[0] == 202
            ended = third.until_ended(run)
            assert (ended["status"], ended["error_message"]) == ("completed", None)


@pytest.mark.parametrize("schema", [doubled_references(2_000), {"allOf": [{"pattern": "(a{1000}){50}"}] * 200}])
def test_a_stored_grader_is_checked_without_compiling_what_costs_much(tmp_path: Path, schema: object) -> None:
    with Server(tmp_path / "store.db", through=limited(1024**3, 0.3)) as server:
        body = {"name": "Schema", "type": "json_schema", "config": {"schema": schema}}
        status, answer = server.call("POST", "/api/graders", body)
        assert status == 201, json.dumps(answer)[:500]
