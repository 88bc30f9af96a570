"""``gradeline pair``: a local server replaces the provider of both models and of the judge."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import pytest

from gradeline.stats import wilson
from gradeline_command import COMMAND, run_command

KEY = "sk-pair-0123456789abcdef"
CITIES = {"France": "Paris", "Spain": "Madrid", "Kenya": "Nairobi", "Peru": "Lima"}
KNOWN = {"small": {"France", "Spain"}, "large": set(CITIES)}

SUITE = """\
name: capitals
dataset: cases.jsonl
target: {kind: openai, base_url: URL/v1, api_key: "${MODEL_KEY}", retries: 0}
graders:
  right: {kind: contains}
gate: {kind: simple, metric_key: right, aggregation: accuracy, op: gte, value: 0.75}
"""
PAIRWISE = """\
  better: {kind: pairwise, model: judge, base_url: URL/v1, api_key_env: MODEL_KEY, max_retries: 0}
"""


class Provider(ThreadingHTTPServer):
    """Serves chat completions: two models that know some capitals, and a judge that knows them all."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: Counter[str] = Counter()
        self.lock = Lock()
        self.judge_may_speak = Event()
        self.judge_may_speak.set()
        self.judge_was_asked = Event()


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked[body["model"]] += 1
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            return self._reply({"error": {"message": "Incorrect API key provided."}}, 401)
        question = body["messages"][-1]["content"]
        if body["model"] == "judge":
            self.server.judge_was_asked.set()
            self.server.judge_may_speak.wait(30)
            content = judgement(question)
        else:
            country = question.split()[-1]
            content = CITIES[country] if country in KNOWN[body["model"]] else "I do not know."
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        return self._reply({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})

    def _reply(self, body: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def judgement(prompt: str) -> str:
    """1.0 for an answer that names a capital, else 0.0, in the form that the prompt asks for."""
    fenced = dict(re.findall(r"<fenced-([a-z-]+)-[0-9a-f]+>\n(.*?)\n</fenced", prompt, re.DOTALL))
    worth = {name: float(text in CITIES.values()) for name, text in fenced.items()}
    if "candidate" in worth:
        return json.dumps({"quality_score": worth["candidate"], "notes": "by the atlas"})
    first, second = worth["first-answer"], worth["second-answer"]
    winner = "tie" if first == second else "first" if first > second else "second"
    return json.dumps({"score_first": first, "score_second": second, "winner": winner, "rationale": "by the atlas"})


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def suite(tmp_path: Path, provider: Provider) -> Path:
    return write_suite(tmp_path, provider, SUITE)


def write_suite(folder: Path, provider: Provider, text: str) -> Path:
    cases = [
        {"id": land, "input": f"The capital of {land}", "ground_truth": city, "metadata": {"task_family": "geography"}}
        for land, city in CITIES.items()
    ]
    (folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    file = folder / "suite.yaml"
    file.write_text(text.replace("URL", provider.url))
    return file


def gradeline(folder: Path, *arguments: object, key: str = KEY) -> subprocess.CompletedProcess[str]:
    return run_command([COMMAND, *map(str, arguments)], cwd=folder, env=environment(key), text=True, timeout=120)


def environment(key: str = KEY) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "MODEL_KEY": key, "NO_COLOR": "1"}


def judge_of(provider: Provider, kind: str = "llm") -> str:
    options = {"kind": "baseline", "judge": kind, "model": "judge", "base_url": f"{provider.url}/v1"}
    return json.dumps({**options, "api_key_env": "MODEL_KEY", "max_retries": 0})


class TestModels:
    def test_both_models_get_every_case_and_the_judge_every_pair(
        self, tmp_path: Path, provider: Provider, suite: Path
    ) -> None:
        done = gradeline(
            tmp_path, "pair", suite, "--baseline", "small", "--candidate", "large", "--judge", "exact-match", "--json"
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert dict(provider.asked) == {"small": 4, "large": 4}
        assert report["run"]["parent"] == report["candidate"]
        assert report["run"]["name"] == "capitals [large against small]"
        column = report["summary"]["graders"]["pair"]
        assert (column["kind"], column["mean"], column["scored"], column["total"]) == ("baseline", 0.5, 4, 4)

    def test_the_judge_uses_the_suites_grader_in_both_orders(self, tmp_path: Path, provider: Provider) -> None:
        suite = write_suite(tmp_path, provider, SUITE.replace("gate:", PAIRWISE + "gate:"))
        done = gradeline(tmp_path, "pair", suite, "--baseline", "small", "--candidate", "large", "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        column = report["summary"]["graders"]["better"]
        assert column["judges"] == ["openai:judge"]
        # equal answers are a tie without a judge: two pairs differ, each is judged in both orders
        assert provider.asked["judge"] == 4
        assert column["mean"] == pytest.approx((0.5 + 0.5 + 1.0 + 1.0) / 4)
        assert report["verdict"]["uncalibrated"] is True

    def test_each_judgment_is_in_the_ledger_once(self, tmp_path: Path, provider: Provider, suite: Path) -> None:
        call = ["pair", suite, "--judge", "exact-match", "--json"]
        first = json.loads(gradeline(tmp_path, *call, "--baseline", "small", "--candidate", "large").stdout)
        sides = ["--baseline-run", first["baseline"], "--candidate-run", first["candidate"]]
        again = json.loads(gradeline(tmp_path, *call, *sides).stdout)
        assert again["run"]["id"] == first["run"]["id"]
        (row,) = json.loads(gradeline(tmp_path, "ledger", "--json").stdout)["rows"]
        assert (row["task_family"], row["adapter"], row["n"], row["mean"]) == ("geography", "openai:large", 4, 0.5)
        assert dict(provider.asked) == {"small": 4, "large": 4}

    def test_judging_a_case_again_adds_no_evidence(self, tmp_path: Path, provider: Provider, suite: Path) -> None:
        call = ["pair", suite, "--baseline", "small", "--candidate", "large", "--quiet"]
        for _ in range(3):
            gradeline(tmp_path, *call, "--judge", "exact-match")
        gradeline(tmp_path, *call, "--set", f"graders.quality={judge_of(provider)}")
        exact, model = json.loads(gradeline(tmp_path, "ledger", "--json").stdout)["rows"]
        assert re.fullmatch(r"exact-match@[0-9a-f]{8}", exact["grader_id"])
        assert (exact["n"], exact["mean"], exact["observations"]) == (4, 0.5, 12)
        assert exact["interval"] == pytest.approx(wilson(2, 4))
        assert re.fullmatch(r"llm:openai:judge@[0-9a-f]{8}", model["grader_id"])
        assert (model["n"], model["mean"], model["observations"]) == (4, 1.0, 4)

    def test_nothing_is_added_to_the_ledger_when_disabled(self, tmp_path: Path, suite: Path) -> None:
        call = ["--baseline", "small", "--candidate", "large", "--judge", "exact-match", "--no-ledger"]
        assert gradeline(tmp_path, "pair", suite, *call).returncode == 0
        assert json.loads(gradeline(tmp_path, "ledger", "--json").stdout) == {"rows": []}


class TestStoredRuns:
    def test_stored_responses_are_judged_without_calls(self, tmp_path: Path, provider: Provider, suite: Path) -> None:
        gradeline(tmp_path, "run", suite, "--model", "small", "--name", "old")
        gradeline(tmp_path, "run", suite, "--model", "large", "--name", "new")
        provider.asked.clear()
        sides = ["--baseline-run", "old", "--candidate-run", "new"]
        override = f"graders.quality={judge_of(provider)}"
        done = gradeline(tmp_path, "pair", suite, *sides, "--set", override, "--json")
        assert done.returncode == 0, done.stderr
        assert dict(provider.asked) == {"judge": 4}
        assert json.loads(done.stdout)["summary"]["graders"]["quality"]["mean"] == 1.0

    def test_judging_continues_after_a_kill(self, tmp_path: Path, provider: Provider, suite: Path) -> None:
        gradeline(tmp_path, "run", suite, "--model", "small", "--name", "old")
        gradeline(tmp_path, "run", suite, "--model", "large", "--name", "new")
        sides = ["--baseline-run", "old", "--candidate-run", "new", "--concurrency", "1"]
        call = ["pair", str(suite), *sides, "--set", f"graders.quality={judge_of(provider)}", "--json"]
        provider.judge_may_speak.clear()
        began = subprocess.Popen([COMMAND, *call], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
        assert provider.judge_was_asked.wait(30)
        began.send_signal(signal.SIGKILL)
        began.communicate()
        provider.judge_may_speak.set()
        done = gradeline(tmp_path, *call)
        assert done.returncode == 0, done.stderr
        column = json.loads(done.stdout)["summary"]["graders"]["quality"]
        assert (column["scored"], column["total"]) == (4, 4)
        runs = json.loads(gradeline(tmp_path, "list", "--json").stdout)["runs"]
        assert sum(run["parent"] is not None for run in runs) == 1

    def test_judging_again_on_request(self, tmp_path: Path, provider: Provider, suite: Path) -> None:
        call = ["pair", suite, "--judge", "exact-match", "--json"]
        first = json.loads(gradeline(tmp_path, *call, "--baseline", "small", "--candidate", "large").stdout)
        sides = ["--baseline-run", first["baseline"], "--candidate-run", first["candidate"]]
        again = json.loads(gradeline(tmp_path, *call, *sides, "--again").stdout)
        assert again["run"]["id"] != first["run"]["id"]


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ((), "either --baseline MODEL or --baseline-run RUN"),
            (("--baseline", "small"), "either --candidate MODEL or --candidate-run RUN"),
            (("--baseline", "a", "--baseline-run", "b", "--candidate", "c"), "either --baseline MODEL"),
            (("--baseline", "small", "--candidate", "large"), "name a judge with --judge"),
            (("--baseline", "small", "--candidate", "large", "--judge", "best"), "invalid judge"),
            (("--baseline-run", "none", "--candidate", "large", "--judge", "exact-match"), "no run 'none'"),
        ],
    )
    def test_missing_arguments_are_named(
        self, tmp_path: Path, suite: Path, options: tuple[str, ...], reason: str
    ) -> None:
        done = gradeline(tmp_path, "pair", suite, *options)
        assert done.returncode == 2
        assert reason in done.stderr

    def test_a_judge_that_is_a_judged_model_has_a_warning(
        self, tmp_path: Path, provider: Provider, suite: Path
    ) -> None:
        text = suite.read_text().replace("gate:", PAIRWISE.replace("URL", provider.url) + "gate:")
        suite.write_text(text.replace("model: judge", "model: large"))
        gradeline(tmp_path, "run", suite, "--model", "small", "--grader", "right", "--name", "old")
        done = gradeline(tmp_path, "run", suite, "--model", "large", "--baseline", "old", "--limit", "1")
        assert "better: the judge is large, the very model it judges" in done.stderr

    def test_a_wrong_key_is_reported_once_and_resume_uses_the_right_one(
        self, tmp_path: Path, provider: Provider, suite: Path
    ) -> None:
        gradeline(tmp_path, "run", suite, "--model", "small", "--name", "old")
        gradeline(tmp_path, "run", suite, "--model", "large", "--name", "new")
        override = f"graders.quality={judge_of(provider)}"
        call = ["pair", suite, "--baseline-run", "old", "--candidate-run", "new", "--set", override]
        wrong = gradeline(tmp_path, *call, key="sk-wrong-0123456789")
        assert wrong.returncode == 4
        assert wrong.stderr.count("Incorrect API key provided") == 1
        assert "sk-wrong" not in wrong.stderr + wrong.stdout
        assert gradeline(tmp_path, *call).returncode == 0
