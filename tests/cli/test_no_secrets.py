"""Keys are set, servers echo them wherever they can, and every command is run: no output or file contains them."""

from __future__ import annotations

import base64
import csv
import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gradeline.cli.commands import COMMANDS
from gradeline_command import COMMAND, run_command

MODEL_KEY = "sk-planted-model-6f1d2c3b4a59"
JUDGE_KEY = "sk-planted-judge-0a9b8c7d6e5f"
AGENT_KEY = "planted/agent+token==77aa"
STORED_KEY = "planted~stored/secret+5c4d"
SERVICE_KEY = "gl_planted-service-9d8c7b6a5f4e"
PLANTED = (MODEL_KEY, JUDGE_KEY, AGENT_KEY, STORED_KEY, SERVICE_KEY)
WITHOUT_RUNS = {"init", "schema", "graders", "extractors", "demo", "dataset", "import"}
"""Commands that meet no key: they make files, read files of others, or list what there is."""
SERVERS = {"serve", "keys", "view"}
"""Commands whose own tests look for keys."""

SUITE = """\
name: secrets
dataset:
  - {id: a, input: "say it", ground_truth: nothing}
  - {id: b, input: "fail with it", ground_truth: nothing}
target: {kind: openai, model: subject, base_url: URL/v1, api_key: "${MODEL_KEY}", retries: 0}
graders:
  said: {kind: contains}
  judged: {kind: model_judge, prompt: "Is {submission} fine?", model: judge, base_url: URL/v1, api_key_env: JUDGE_KEY, max_retries: 0}
"""
AGENT = """\
name: agent
dataset:
  - {id: a, input: "say it", ground_truth: nothing}
  - {id: b, input: "fail with it", ground_truth: nothing}
target:
  kind: http
  url: URL/agent?token=${AGENT_KEY}
  headers: {Authorization: "Bearer ${AGENT_KEY}"}
  request: {input: "{{input}}"}
  response: {output: said}
  retries: 0
graders:
  said: {kind: contains}
"""
MANY = """\
name: many
dataset: many.jsonl
target: {kind: openai, model: subject, base_url: URL/v1, api_key: "${MODEL_KEY}", retries: 0}
graders:
  judged: {kind: model_judge, prompt: "Is {submission} fine?", model: judge, base_url: URL/v1, api_key_env: JUDGE_KEY, max_retries: 0}
"""
ROUTE = """\
route: many
suite: many
grader: judged
baseline: {name: main, model: subject, base_url: URL/v1, api_key_env: JUDGE_KEY, cost: 0.01}
candidates:
  - {name: other, model: other, base_url: URL/v1, api_key_env: JUDGE_KEY, cost: 0.001}
"""


def fill(file: Path) -> None:
    """Label every other row of a template as pass, the rest as fail."""
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    with file.open("w", newline="") as text:
        writer = csv.DictWriter(text, rows[0].keys())
        writer.writeheader()
        writer.writerows({**row, "verdict": "fail" if place % 2 else "pass"} for place, row in enumerate(rows))


class _Echo(BaseHTTPRequestHandler):
    """Echoes its credentials: in responses, in errors, in headers."""

    def do_GET(self) -> None:
        let_in = f"{self.headers.get('Authorization')} {self.headers.get('X-API-Key')} {self.path}"
        self._reply(400, {"error": {"code": let_in, "message": f"not with {let_in}"}}, let_in)

    do_PUT = do_GET  # noqa: N815

    def do_POST(self) -> None:
        if self.path.startswith("/api/"):
            return self.do_GET()
        request_body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        let_in = f"{self.headers.get('Authorization')} {self.path}"
        if "fail with it" in request_body:
            return self._reply(500, {"error": {"message": f"not with {let_in}"}}, let_in)
        if self.path.startswith("/agent"):
            return self._reply(200, {"said": let_in}, let_in)
        judging = json.loads(request_body)["model"] == "judge"
        content = json.dumps({"score": 0.5, "rationale": f"because {let_in}"}) if judging else f"I was sent {let_in}"
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        return self._reply(200, {"choices": [choice], "usage": {"prompt_tokens": 1}, "echo": let_in}, let_in)

    def _reply(self, status: int, body: dict[str, Any], let_in: str) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Echo", let_in)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Shell:
    """Runs commands in a folder with keys in ``.env`` and the environment, and records their output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed: dict[str, str] = {}

    def __call__(self, *arguments: str, stdin: str = "") -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "JUDGE_KEY": JUDGE_KEY, "NO_COLOR": "1"}
        environment |= {"GRADELINE_SECRET_KEY": "a master key of the tests", "STORED_KEY": STORED_KEY}
        environment["GRADELINE_API_KEY"] = SERVICE_KEY
        environment["GITHUB_STEP_SUMMARY"] = str(self.folder / "summary.md")
        done = run_command(
            [COMMAND, *arguments],
            cwd=self.folder,
            env=environment,
            text=True,
            timeout=120,
            input=stdin,
        )
        self.printed[" ".join(arguments).partition(" --config")[0]] = done.stdout + done.stderr


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, url: str) -> Shell:
    """Runs everything once; the tests inspect the result."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "suite.yaml").write_text(SUITE.replace("URL", url))
    (folder / "agent.yaml").write_text(AGENT.replace("URL", url))
    (folder / ".env").write_text(f"MODEL_KEY={MODEL_KEY}\nAGENT_KEY={AGENT_KEY}\n")
    (folder / "many.yaml").write_text(MANY.replace("URL", url))
    (folder / "route.yaml").write_text(ROUTE.replace("URL", url))
    (folder / "rubric.txt").write_text("Is {submission} what was asked for?")
    cases = [json.dumps({"id": f"c{n}", "input": f"say it {n}"}) for n in range(80)]
    (folder / "many.jsonl").write_text("\n".join(cases))
    shell = Shell(folder)
    shell("validate", "suite.yaml", "--json")
    shell("validate", "agent.yaml")
    for suite in ("suite.yaml", "agent.yaml"):
        shell("run", suite, "--json", "--name", f"{suite} as data")
        shell("run", suite, "--output", f"letta-{suite}", "--name", suite)
    shell("run", "suite.yaml", "--set", f"target.api_key={MODEL_KEY}")
    shell("run", "agent.yaml", "--set", "target.url=http://127.0.0.1:1/${AGENT_KEY}", "--name", "nobody there")
    for name in ("suite.yaml", "agent.yaml", "nobody there"):
        shell("resume", name)
        shell("show", name)
        shell("show", name, "--records")
        shell("show", name, "--json")
        for form in ("jsonl", "csv", "junit", "markdown", "html"):
            shell("export", name, "--format", form, "--output", f"{form}-{name}".replace(" ", "-"))
    shell("regrade", "suite.yaml", "--json")
    shell("compare", "suite.yaml as data", "suite.yaml", "--json")
    shell("compare", "suite.yaml as data", "suite.yaml", "agent.yaml", "--json", "--output", "scores.csv")
    shell("trend", "secrets", "--json")
    shell("ci", "suite.yaml", "--baseline", "suite.yaml as data")
    shell("push", "suite.yaml", "--to", url)
    shell("baseline", "set", "main", "suite.yaml")
    shell("baseline", "list", "--json")
    shell("run", "suite.yaml", "--baseline", "main", "--name", "against main")
    shell("ci", "suite.yaml", "--baseline", "main")
    shell("ci", "agent.yaml", "--json", "--output", "agent-ci.json", "--junit", "agent-ci.xml")
    shell("ci", "comment")
    shell("baseline", "clear", "main", "--suite", "secrets")
    shell("plan", "suite.yaml", "--json")
    shell("list", "--json")
    judge = "{kind: baseline, judge: llm, model: judge, base_url: BASE/v1, api_key_env: JUDGE_KEY, max_retries: 0}"
    pair = ["--baseline-run", "suite.yaml as data", "--candidate-run", "suite.yaml"]
    shell("pair", "suite.yaml", *pair, "--set", f"graders.beside={judge.replace('BASE', url)}")
    shell("ledger", "--export", "ledger.jsonl")
    shell("ledger", "--json")
    shell("secrets", "set", "TOKEN", "--host", "agent.test", stdin=f"{STORED_KEY}\n")
    shell("secrets", "set", "KEY", "--host", "agent.test", "--from-env", "STORED_KEY", "--json")
    shell("secrets", "set", "REFUSED", "--host", "https://agent.test", stdin=STORED_KEY)
    shell("secrets", "list")
    shell("secrets", "list", "--json")
    shell("secrets", "delete", "KEY")
    shell("store", "backup", "backup.db")
    shell("store", "check", "--json")
    shell("store", "usage")
    shell("run", "many.yaml", "--name", "many")
    shell("run", "many.yaml", "--name", "many again")
    shell("label", "many", "--template", "labels.csv")
    fill(folder / "labels.csv")
    shell("label", "many", "--import", "labels.csv", "--rater", "ada")
    shell("label", "many", "--export", "labels.jsonl", "--history")
    shell("label", "many", "--status", "--json")
    shell("calibrate", "many", "--json")
    shell("calibrate", "many", "--export", "calibrations.json")
    shell("show", "many", "--json")
    shell("probe", "judged", "many.yaml", "--run", "many", "--json")
    shell("anchors", "freeze", "many", "--n", "10", "--json")
    shell("anchors", "check", "--json")
    shell("anchors", "show")
    shell("judge", "tune", "many", "--rubric", "rubric.txt", "--json")
    shell("judge", "tune", "many", "--propose", "1")
    for act in ("plan", "status", "evaluate"):
        shell("route", act, "route.yaml", "--json")
    config = {"prompt": "Is it?", "model": "judge", "base_url": f"{url}/v1", "api_key_env": "JUDGE_KEY"}
    shell("grade", "model_judge", "--config", json.dumps(config), stdin="it is")
    return shell


def forms(secret: str) -> list[bytes]:
    """A key as it is, as JSON and HTML and URLs write it, and in base64."""
    quoted = json.dumps(secret)[1:-1]
    percent = secret.replace("/", "%2F").replace("+", "%2B").replace("=", "%3D")
    spelt = {secret, quoted, percent, secret.replace("+", "&#43;"), base64.b64encode(secret.encode()).decode()}
    return [form.encode() for form in spelt]


def test_every_command_is_tested(shell: Shell) -> None:
    used = {call.split()[0] for call in shell.printed}
    assert used == set(COMMANDS) - WITHOUT_RUNS - SERVERS


def test_the_servers_received_the_keys(shell: Shell) -> None:
    records = [json.loads(line) for line in shell.printed["show suite.yaml --records"].splitlines()]
    assert "I was sent ***" in records[0]["response"]["text"]
    assert records[0]["grades"]["judged"]["rationale"].startswith("because ***")
    agents = [json.loads(line) for line in shell.printed["show agent.yaml --records"].splitlines()]
    assert agents[0]["response"]["text"] == "*** /agent?token=***"
    assert shell.printed["grade model_judge"].startswith("pass")
    assert json.loads(shell.printed["secrets list --json"])["secrets"][1]["name"] == "TOKEN"


@pytest.mark.parametrize("secret", PLANTED)
def test_no_command_prints_a_key(shell: Shell, secret: str) -> None:
    telling = [call for call, text in shell.printed.items() if any(form in text.encode() for form in forms(secret))]
    assert telling == []


@pytest.mark.parametrize("secret", PLANTED)
def test_no_file_contains_a_key(shell: Shell, secret: str) -> None:
    files = [path for path in shell.folder.rglob("*") if path.is_file() and path.name != ".env"]
    assert len(files) > 20
    holding = [
        str(path.relative_to(shell.folder))
        for path in files
        if any(form in path.read_bytes() for form in forms(secret))
    ]
    assert holding == []
