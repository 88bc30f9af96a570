"""Chat models as targets from the command line: a local server replaces the provider."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest

from gradeline_command import COMMAND, run_command

KEY = "sk-cli-0123456789abcdef"
CITIES = {"France": "Paris", "Spain": "Madrid", "Kenya": "Nairobi", "Peru": "Lima"}
KNOWN = {"small": {"France", "Spain"}, "large": set(CITIES)}

SUITE = """\
name: capitals
dataset: cases.jsonl
target:
  kind: openai
  base_url: URL/v1
  api_key: ${MODEL_KEY}
  models: [small, large]
  system: Answer about {{metadata.country}}.
graders:
  right: {kind: contains}
gate: {kind: simple, metric_key: right, aggregation: accuracy, op: gte, value: 0.75}
"""


class Provider(ThreadingHTTPServer):
    """Serves chat completions; its models know some capitals."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            return self._reply({"error": {"message": "Incorrect API key provided."}}, 401)
        if body["model"] not in KNOWN:
            return self._reply({"error": {"message": "no such model", "code": "model_not_found"}}, 404)
        country = body["messages"][-1]["content"].split()[-1]
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


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path: Path, provider: Provider) -> Path:
    rows = [
        {"id": country, "input": f"The capital of {country}", "ground_truth": city, "metadata": {"country": country}}
        for country, city in CITIES.items()
    ]
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "suite.yaml").write_text(SUITE.replace("URL", provider.url))
    return tmp_path


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def gradeline(folder: Path, *arguments: str, **variables: str) -> CommandResult:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GRADELINE_STORE", "MODEL_KEY") and not name.startswith("OPENAI_")
    }
    done = run_command(
        [COMMAND, *arguments],
        cwd=folder,
        env={**environment, "NO_COLOR": "1", **variables},
        text=True,
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


def test_several_models_make_a_run_each(folder: Path, provider: Provider) -> None:
    ran = gradeline(folder, "run", "suite.yaml", "--json", MODEL_KEY=KEY)
    assert (ran.code, ran.err) == (1, "")
    reason = {one["run"]["name"]: one for one in ran.json["runs"]}
    assert {name: one["summary"]["graders"]["right"]["mean"] for name, one in reason.items()} == {
        "capitals [small]": 0.5,
        "capitals [large]": 1.0,
    }
    assert len({one["run"]["group"] for one in reason.values()}) == 1
    assert {one["summary"]["cost"]["agent"] for one in reason.values()} == {None}
    assert Counter(body["model"] for body in provider.asked) == {"small": 4, "large": 4}
    # calls in flight together arrive in any order
    sent = [body["messages"] for body in provider.asked]
    about_france = [
        {"role": "system", "content": "Answer about France."},
        {"role": "user", "content": "The capital of France"},
    ]
    assert sent.count(about_france) == 2
    assert KEY not in ran.out + (folder / ".gradeline" / "store.db").read_bytes().decode("latin-1")


def test_a_refused_key_ends_the_run_and_a_right_one_resumes_it(folder: Path, provider: Provider) -> None:
    run = ("run", "suite.yaml", "--model", "large", "--concurrency", "1")
    ran = gradeline(folder, *run, MODEL_KEY="sk-wrong-0123456789")
    assert (ran.code, len(provider.asked)) == (4, 1)
    assert "refused it: 'Incorrect API key provided.' (HTTP 401); check the key and its permissions" in ran.err
    assert "sk-wrong" not in ran.err + ran.out
    resumed = gradeline(folder, "resume", "latest", "--json", MODEL_KEY=KEY)
    assert (resumed.code, resumed.json["summary"]["graders"]["right"]["mean"]) == (0, 1.0)
    assert len(provider.asked) == 5


def test_an_unknown_model_ends_the_run(folder: Path, provider: Provider) -> None:
    ran = gradeline(folder, "run", "suite.yaml", "--model", "huge", "--concurrency", "1", MODEL_KEY=KEY)
    assert (ran.code, len(provider.asked)) == (4, 1)
    assert f"{provider.url}/v1 refused 'huge': 'no such model' (HTTP 404); check model and base_url" in ran.err


def test_a_missing_key_is_reported_before_the_first_call(folder: Path, provider: Provider) -> None:
    suite = folder / "suite.yaml"
    suite.write_text(suite.read_text().replace(f"  base_url: {provider.url}/v1\n  api_key: ${{MODEL_KEY}}\n", ""))
    for command in ("validate", "run"):
        ran = gradeline(folder, command, "suite.yaml")
        assert ran.code == 2
        assert "requires a key; set OPENAI_API_KEY, or pass api_key" in ran.err + ran.out
    assert provider.asked == []


def test_the_key_and_the_address_are_read_from_the_env_file(folder: Path, provider: Provider) -> None:
    suite = folder / "suite.yaml"
    suite.write_text(suite.read_text().replace(f"  base_url: {provider.url}/v1\n  api_key: ${{MODEL_KEY}}\n", ""))
    (folder / ".env").write_text(f"OPENAI_API_KEY={KEY}\nOPENAI_BASE_URL={provider.url}/v1\n")
    ran = gradeline(folder, "run", "suite.yaml", "--model", "large", "--json")
    assert (ran.code, len(provider.asked)) == (0, 4), ran.err


def test_missing_template_metadata_is_reported_before_the_first_call(folder: Path, provider: Provider) -> None:
    with (folder / "cases.jsonl").open("a") as cases:
        cases.write('\n{"id": "bare", "input": "x", "ground_truth": "y"}\n')
    ran = gradeline(folder, "validate", "suite.yaml", MODEL_KEY=KEY)
    assert ran.code == 2
    assert "case 'bare' has no metadata 'country'" in ran.out + ran.err
    assert provider.asked == []
