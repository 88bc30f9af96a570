"""The service and the command line share one engine and one store."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from gradeline.cli import run_cli as gradeline
from gradeline.model import Record
from gradeline.service.settings import ServeSettings
from gradeline.store import open_storage
from gradeline.testing.fake_judge import FakeJudge, Truth, with_mark

from .conftest import Call

sys.path.insert(0, str(Path(__file__).parent))

from live import EchoAgent, suite_of


@pytest.fixture
def agent() -> Iterator[EchoAgent]:
    with EchoAgent() as started:
        yield started


@pytest.fixture
def judge() -> Iterator[FakeJudge]:
    with FakeJudge(items={"good": Truth(quality=0.9), "bad": Truth(quality=0.2)}, seed=7).in_thread() as started:
        yield started


def done(call: Call, body: dict[str, Any], path: str = "/api/evaluations") -> str:
    """Start it, and follow its events to their end."""
    run: str = call("POST", path, json=body).data["id"]
    assert "event: done" in call("GET", f"/api/evaluations/{run}/events").body
    assert call("GET", f"/api/evaluations/{run}").data["status"] == "completed"
    return run


def records(store: str, run: str | None = None) -> list[Record]:
    """The records of a run, or of the only one."""
    with open_storage(store) as storage:
        return list(storage.records(run or storage.list_runs()[0].id))


def grades(found: list[Record]) -> dict[tuple[str, int, str], tuple[Any, ...]]:
    """A grade without its times and without the random parts of the judge's reply."""
    return {
        (record.case, record.repeat, key): (
            record.submissions.get(key),
            grade.outcome.value,
            grade.score,
            grade.rationale,
            grade.fingerprint,
        )
        for record in found
        for key, grade in record.grades.items()
    }


class TestSameSuite:
    def suite(self, agent: EchoAgent, judge: FakeJudge) -> dict[str, Any]:
        texts = [
            (with_mark("The capital is Paris.", "good"), "Paris"),
            (with_mark("No idea: 17, 3.50 or None?", "bad"), "Rome"),
            ('{"city": "Oslo", "people": 709037}', '{"people": 709037, "city": "Oslo"}'),
            ("  ünïcödé \u2028 line, \U0001f600 'quotes' \"and\" # a comment: yes", "yes"),
            ("on", "off"),
        ]
        return {
            "name": "both doors: 'ünï'",
            "target": {"kind": "http", "url": agent.url, "retries": 0},
            "repeats": 2,
            "concurrency": 3,
            "graders": {
                "exact": {"kind": "exact_match"},
                "within": {"kind": "contains"},
                "near": {"kind": "similarity", "config": {"threshold": 0.4}},
                "json": {"kind": "json_match"},
                "rules": {
                    "kind": "custom-rules",
                    "config": {
                        "rules": [
                            {"condition": "contains", "value": "Paris"},
                            {"condition": "word_count_min", "value": 3},
                        ],
                    },
                },
                "judge": {
                    "kind": "model_judge",
                    "config": {
                        "model": "any",
                        "base_url": judge.base_url(),
                        "prompt": "Is it right? Say no: more.\n- yes\n",
                    },
                },
            },
            "gate": {"kind": "simple", "metric_key": "within", "aggregation": "avg_score", "op": "gte", "value": 0.2},
            "dataset": [
                {"id": str(n), "input": text, "ground_truth": expected, "tags": ["even"] if n % 2 == 0 else []}
                for n, (text, expected) in enumerate(texts)
            ],
        }

    def test_sent_by_rest_and_run_from_its_yaml_gives_the_same_grades(
        self, call: Call, settings: ServeSettings, tmp_path: Path, agent: EchoAgent, judge: FakeJudge
    ) -> None:
        run = done(call, {"suite": self.suite(agent, judge)})
        file, other = tmp_path / "suite.yaml", str(tmp_path / "other.db")
        file.write_text(call("GET", f"/api/evaluations/{run}/suite").body, encoding="utf-8")
        assert gradeline(["--store", other, "run", str(file), "--quiet"]) == 0
        here, there = grades(records(settings.store, run)), grades(records(other))
        assert here == there
        assert len(here) == 5 * 2 * 6
        assert {outcome for (_, _, key), (_, outcome, *_) in here.items() if key == "judge"} == {"pass", "fail"}
        assert {outcome for (_, _, key), (_, outcome, *_) in here.items() if key == "rules"} == {"pass", "fail"}
        mine = call("GET", f"/api/evaluations/{run}").data["verdict"]
        with open_storage(other) as storage:
            theirs = storage.list_runs()[0]
        assert (mine["result"], theirs.status) == ("pass", "completed")

    def test_a_stored_judge_sees_the_answer_that_its_rubric_leaves_out(self, call: Call, judge: FakeJudge) -> None:
        config = {"model": "any", "base_url": judge.base_url(), "prompt": "The question was: {input}"}
        body = {"id": "judge", "name": "Judge", "type": "model_judge", "config": config}
        assert call("POST", "/api/graders", json=body).status == 201
        judge.reset()
        answer = with_mark("It is Paris.", "good")
        preview = {"agent_response": answer, "input": "The capital of France?"}
        assert call("POST", "/api/graders/judge/preview", json=preview).data["score_value"] == 0.9
        definition = {"type": "model_judge", "config": config}
        unsaved = call("POST", "/api/graders/new/preview", json={**preview, "definition": definition})
        assert unsaved.data["score_value"] == 0.9
        assert [decision.items for decision in judge.decisions] == [("good",), ("good",)]

    def test_stored_graders_and_cases_make_the_same_suite(
        self, call: Call, settings: ServeSettings, tmp_path: Path, agent: EchoAgent
    ) -> None:
        rules = {"rules": [{"condition": "contains", "value": "blue"}]}
        body = {"id": "blue", "name": "Says blue", "type": "custom-rules", "config": rules}
        assert call("POST", "/api/graders", json=body).status == 201
        for text in ("the sky is blue", "the grass is green", "null"):
            call("POST", "/api/test-cases", json={"input": text, "expected_output": "blue", "tags": ["sky"]})
        asked = {
            "tag": "sky",
            "agent_endpoint_url": agent.url,
            "grader_ids": ["blue", "contains", {"id": "similarity", "config": {"threshold": 0.9}, "name": "near"}],
            "repeats": 2,
        }
        run = done(call, asked)
        file, other = tmp_path / "suite.yaml", str(tmp_path / "other.db")
        file.write_text(call("GET", f"/api/evaluations/{run}/suite").body, encoding="utf-8")
        gradeline(["--store", other, "run", str(file), "--quiet"])
        assert grades(records(settings.store, run)) == grades(records(other))


class TestOneStore:
    def printed(self, capsys: pytest.CaptureFixture[str], settings: ServeSettings, *arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = gradeline(["--store", settings.store, *arguments])
        return code, capsys.readouterr().out

    def test_a_run_started_here_shows_in_the_command_line(
        self, call: Call, settings: ServeSettings, agent: EchoAgent, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first = done(call, {"suite": suite_of(agent, 20, prefix="first")})
        agent.says = "not {}"
        second = done(call, {"suite": suite_of(agent, 20, prefix="first"), "name": "second"})
        _, listed = self.printed(capsys, settings, "list", "--json")
        assert {(run["id"], run["name"]) for run in json.loads(listed)["runs"]} == {
            (first, "first"),
            (second, "second"),
        }
        code, shown = self.printed(capsys, settings, "show", second, "--json")
        assert (code, json.loads(shown)["run"]["id"]) == (0, second)
        _, exported = self.printed(capsys, settings, "export", second, "--format", "jsonl")
        assert len(exported.splitlines()) == 20
        _, table = self.printed(capsys, settings, "export", second, "--format", "csv")
        assert len(list(csv.DictReader(StringIO(table)))) == 20
        code, compared = self.printed(capsys, settings, "compare", first, second, "--json")
        theirs = json.loads(compared)["graders"]["exact"]
        params = {"baseline": first, "candidate": second}
        ours = call("GET", "/api/evaluations/compare", params=params).data["graders"]["exact"]
        assert (code, theirs["decision"]) == (1, "worse")
        assert (ours["decision"], ours["difference"], [ours["low"], ours["high"]], ours["n"]) == (
            theirs["decision"],
            theirs["difference"],
            theirs["difference_ci"],
            theirs["improved"] + theirs["worse"] + theirs["same"],
        )

    def test_a_run_of_the_command_line_shows_here(
        self, call: Call, settings: ServeSettings, agent: EchoAgent, tmp_path: Path
    ) -> None:
        runs = []
        file = tmp_path / "suite.json"
        file.write_text(json.dumps(suite_of(agent, 20, wrong=5)))
        for name, content in (("before", "{}"), ("after", "not {}")):
            agent.says = content
            gradeline(["--store", settings.store, "run", str(file), "--name", name, "--quiet"])
            (found,) = call("GET", f"/api/evaluations?q={name}").data["evaluations"]
            runs.append(found["id"])
        assert [one["name"] for one in call("GET", "/api/evaluations").data["evaluations"]] == ["after", "before"]
        shown = call("GET", f"/api/evaluations/{runs[1]}").data
        assert (shown["status"], shown["result_count"]) == ("completed", 20)
        assert shown["progress"] == {"total": 20, "answered": 20, "graded": 20, "errors": 0}
        page = call("GET", f"/api/evaluations/{runs[0]}/results", params={"outcome": "fail", "limit": 1000}).data
        assert [one["test_case_id"] for one in page["results"]] == [f"q{n}" for n in range(5)]
        assert page["summary"]["grader_pass_counts"] == {"exact": 15}
        one = page["results"][0]
        whole = call("GET", f"/api/evaluations/{runs[0]}/results/{one['result_id']}").data
        assert (whole["test_case_input"], whole["agent_response"]) == ("q 0", "q 0")
        for kind in ("json", "csv", "jsonl", "junit", "html"):
            assert call("GET", f"/api/evaluations/{runs[1]}/export?format={kind}").status == 200
        events = call("GET", f"/api/evaluations/{runs[1]}/events").body
        assert "event: snapshot" in events
        params = {"baseline": runs[0], "candidate": runs[1]}
        compared = call("GET", "/api/evaluations/compare", params=params).data
        assert compared["graders"]["exact"]["decision"] == "worse"
        regraded = done(call, {"grader_ids": ["contains"]}, f"/api/evaluations/{runs[1]}/regrade")
        assert call("GET", f"/api/evaluations/{regraded}").data["parent"] == runs[1]
        assert agent.total == 40
