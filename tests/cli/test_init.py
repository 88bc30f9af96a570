"""A new suite, begun from the command line as a user begins it."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import pytest
import yaml

from ci_checkout import Checkout
from gradeline.cli.init import AGENT_KINDS, AGENT_OPTIONS, FORGES
from gradeline.cli.starter.agents import KINDS, AgentChoice
from gradeline.cli.starter.pipelines import PIPELINES
from gradeline.cli.starter.suite import starter_files
from gradeline.suite.document import parse_document
from gradeline.suite.read import read_suite
from gradeline.suite.schema import schema_text, suite_schema
from gradeline_command import COMMAND, command_folder, run_command

VALIDATOR = jsonschema_rs.validator_for(suite_schema())
OPTION = re.compile(r"^( *)#(?=\S)", re.MULTILINE)
"""A comment that is an option as soon as its ``#`` is deleted."""
SUITE_FILES = ["suite.yaml", "cases.jsonl", "graders.py"]
WORKFLOW = ".github/workflows/gradeline.yml"


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def gradeline(folder: Path, *arguments: str, **variables: str) -> CommandResult:
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    done = run_command([COMMAND, *arguments], cwd=folder, env={**environment, "NO_COLOR": "1", **variables})
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.is_file()}


def created(folder: Path) -> list[str]:
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in paths if path.parts[0] not in (".git", ".gradeline"))


class TestInit:
    def test_the_help_lists_what_exists(self) -> None:
        assert tuple(KINDS) == AGENT_KINDS
        assert set(AGENT_OPTIONS) == {option for kind in KINDS.values() for option in kind.options}
        assert tuple(PIPELINES) == FORGES

    def test_a_python_suite_runs_with_the_printed_commands(self, tmp_path: Path) -> None:
        begun = gradeline(tmp_path, "init", "my evals", "--json")
        names = [*SUITE_FILES, "agent.py", "suite.schema.json", WORKFLOW, ".gitignore"]
        assert begun.json == {
            "written": [f"my evals/{name}" for name in names],
            "next": [
                "gradeline validate 'my evals/suite.yaml'",
                "gradeline run 'my evals/suite.yaml'",
                "gradeline view",
            ],
            "notes": [
                "then replace the examples with your own: my evals/cases.jsonl, my evals/agent.py",
                "my evals is not in a git repository; a pipeline must be in the root of one",
            ],
        }
        assert created(tmp_path / "my evals") == sorted(names)
        validated, run = (gradeline(tmp_path, *shlex.split(command)[1:]) for command in begun.json["next"][:2])
        assert (validated.code, validated.out, validated.err) == (0, "my evals/suite.yaml: valid\n", "")
        assert (run.code, run.err) == (0, "")
        assert "5 responses graded" in run.out
        assert "verdict: pass" in run.out

    def test_the_printed_output(self, tmp_path: Path) -> None:
        assert gradeline(tmp_path, "init", "--ci", "none") == CommandResult(
            0,
            "wrote suite.yaml\nwrote cases.jsonl\nwrote graders.py\nwrote agent.py\nwrote suite.schema.json\n"
            "wrote .gitignore\n\n"
            "Next:\n  gradeline validate suite.yaml\n  gradeline run suite.yaml\n  gradeline view\n"
            "Then replace the examples with your own: cases.jsonl, agent.py.\n",
            "",
        )
        quiet = gradeline(tmp_path, "init", "other", "--target", "command", "--quiet")
        names = [*SUITE_FILES, "suite.schema.json", WORKFLOW, ".gitignore"]
        assert quiet.out.splitlines() == [f"other/{name}" for name in names]

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_written_suite_is_valid(self, tmp_path: Path, kind: str) -> None:
        assert gradeline(tmp_path, "init", "a/b", "--target", kind).code == 0
        found = content(tmp_path / "a" / "b")
        del found[".gitignore"]
        assert found == {**starter_files(AgentChoice(kind)), "suite.schema.json": schema_text()}
        keys = {one.key: "not-a-real-key" for one in KINDS.values() if one.key}
        assert gradeline(tmp_path, "validate", "a/b/suite.yaml", "--json", **keys).json == {
            "valid": True,
            "errors": [],
            "warnings": [],
        }

    @pytest.mark.parametrize("kind", ["command", "replay"])
    def test_a_suite_without_an_agent_runs_at_once(self, tmp_path: Path, kind: str) -> None:
        gradeline(tmp_path, "init", "evals", "--target", kind)
        assert gradeline(tmp_path, "run", "evals/suite.yaml", "--json").json["verdict"]["result"] == "pass"

    def test_an_http_suite_calls_the_agent_in_its_instructions(self, tmp_path: Path, agent: int) -> None:
        begun = gradeline(tmp_path, "init", "--target", "http")
        start = "python -m gradeline.demo.agent --port 9000"
        assert f"  {start}   # in another terminal\n  gradeline validate suite.yaml\n" in begun.out
        suite = (tmp_path / "suite.yaml").read_text(encoding="utf-8")
        assert start in suite
        (tmp_path / "suite.yaml").write_text(suite.replace("127.0.0.1:9000", f"127.0.0.1:{agent}"), encoding="utf-8")
        run = gradeline(tmp_path, "run", "suite.yaml", "--json")
        assert run.json["summary"]["responses"] == {"success": 5, "error": 0, "timeout": 0}
        assert run.json["summary"]["graders"]["right"]["mean"] == 1.0

    def test_a_key_that_is_not_set_is_one_of_the_next_commands(self, tmp_path: Path) -> None:
        begun = gradeline(tmp_path, "init", "--target", "openai", OPENAI_API_KEY="")
        assert "Next:\n  export OPENAI_API_KEY=…\n  gradeline validate suite.yaml\n" in begun.out
        begun = gradeline(tmp_path, "init", "b", "--target", "openai", OPENAI_API_KEY="sk-not-a-real-key")
        assert "export" not in begun.out

    def test_existing_files_are_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "agent.py").write_text("mine")
        (tmp_path / "suite.yaml").symlink_to("nowhere")
        refused = gradeline(tmp_path, "init")
        assert refused == CommandResult(
            2,
            "",
            "gradeline: \n  suite.yaml: already exists\n  agent.py: already exists\n"
            "  overwrite them with --force, or choose another folder\n",
        )
        assert content(tmp_path) == {"agent.py": "mine"}

    def test_an_agent_in_the_way_of_the_example_is_named(self, tmp_path: Path) -> None:
        mine = "def answer(text):\n    return 'Paris'\n"
        (tmp_path / "agent.py").write_text(mine)
        assert gradeline(tmp_path, "init", "--function", "agent.py:answer").code == 0
        assert content(tmp_path)["agent.py"] == mine

    def test_force_overwrites_existing_files(self, tmp_path: Path) -> None:
        (tmp_path / "agent.py").write_text("mine")
        (tmp_path / "other.py").write_text("mine")
        assert gradeline(tmp_path, "init", ".", "--force", "--ci", "none").code == 0
        found = content(tmp_path)
        del found[".gitignore"]
        assert found == {
            **starter_files(AgentChoice("python")),
            "suite.schema.json": schema_text(),
            "other.py": "mine",
        }

    def test_a_failure_leaves_no_new_file(self, tmp_path: Path) -> None:
        (tmp_path / ".gitignore").mkdir()
        failed = gradeline(tmp_path, "init")
        assert failed == CommandResult(
            2, "", "gradeline: .gitignore: cannot write: Is a directory; choose another path\n"
        )
        assert created(tmp_path) == []

    @pytest.mark.parametrize(
        ("folder", "message"),
        [
            ("file", "gradeline: file: is a file; choose a folder\n"),
            ("a\nb", "gradeline: 'a\\nb': contains a control character; choose another folder\n"),
            ("file/below", "gradeline: file/below/suite.yaml: cannot write: Not a directory; choose another"),
            ("/proc/evals", "gradeline: /proc/evals/suite.yaml: cannot write: No such file or directory; choose"),
        ],
    )
    def test_an_unwritable_path_is_reported(self, tmp_path: Path, folder: str, message: str) -> None:
        (tmp_path / "file").write_text("")
        refused = gradeline(tmp_path, "init", folder)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.startswith(message)

    def test_an_unknown_target_is_refused_with_the_known_ones(self, tmp_path: Path) -> None:
        refused = gradeline(tmp_path, "init", "--target", "ftp")
        assert refused.code == 2
        assert "'ftp' is not one of 'python', 'http', 'openai', 'anthropic', 'command', 'langgraph'" in refused.err
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("options", "messages"),
        [
            (["--target", "http", "--model", "m"], ["--model: is not an option of --target http, only of openai"]),
            (["--url", "localhost:80"], ["--url: 'localhost:80' is not a URL; write it as http://127.0.0.1:8000/path"]),
            (["--url", "http://me:s3cret@host/"], ["--url: contains a password, which would be stored in the suite"]),
            (["--url", ""], ["--url: is empty; leave the option out for its default"]),
            (["--url", "http://a\x1b[31m/"], ["--url: 'http://a\\x1b[31m/' contains a control character"]),
            (["--request", "{"], ["--request: '{' is not JSON; write it as"]),
            (["--request", "[" * 100_000], ["is not JSON; write it as"]),
            (["--request", "{}"], ["--request: contains no {{input}}"]),
            (["--response", "a..b"], ["--response: 'a..b' is not a valid JMESPath"]),
            (["--function", "answer"], ["--function: 'answer' is not a function; write file.py:name or module:name"]),
            (["--function", "no.py:answer"], ["--function: no file 'no.py' in "]),
            (["--command", "a 'b"], ['--command: "a \'b" cannot be split']),
            (["--function", "a:b", "--url", "http://a"], ["no kind of agent takes all these options"]),
            (["--target", "mcp", "--url", "http://a", "--command", "b"], ["--command: conflicts with --url"]),
            (["--target", "mcp", "--tool", "t"], ["--tool: is for your own server; add --url or --command"]),
            (["--target", "langgraph", "--function", "a-b:c"], ["--function: 'a-b' cannot be imported by name"]),
            (["--target", "langgraph", "--function", "a:class"], ["--function: 'class' cannot be imported by name"]),
            (["--target", "http", "--url", "x", "--response", "a."], ["--url: 'x' is not", "--response: 'a.' is not"]),
        ],
    )
    def test_an_invalid_option_is_refused_with_a_remedy(
        self, tmp_path: Path, options: list[str], messages: list[str]
    ) -> None:
        refused = gradeline(tmp_path, "init", "evals", *options)
        assert (refused.code, refused.out) == (2, "")
        assert [message for message in messages if message not in refused.err] == []
        assert "s3cret" not in refused.err
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "text",
        [
            "it's",
            'a "b" \\n',
            "a: b # c",
            "{{input}}",
            "null",
            "1e3",
            "ä ${X} 本",
            "- x",
            "!tag",
            "*a",
            "%d {0}",
            "'''",
        ],
    )
    def test_a_value_of_any_form_is_written_as_it_is(self, tmp_path: Path, text: str) -> None:
        gradeline(tmp_path, "init", "a", "--target", "openai", "--model", text)
        assert yaml.safe_load((tmp_path / "a" / "suite.yaml").read_text(encoding="utf-8"))["target"]["model"] == text
        gradeline(
            tmp_path, "init", "b", "--target", "mcp", "--url", "http://a/", f"--tool={text}", f"--argument={text}"
        )
        tree = ast.parse((tmp_path / "b" / "target.py").read_text(encoding="utf-8"))
        constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        assert constants.count(text) == 2


class TestRepository:
    """The pipeline and ``.gitignore`` belong to the repository."""

    @pytest.fixture
    def repository(self, tmp_path: Path) -> Path:
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
        return tmp_path

    def test_the_pipeline_and_the_ignored_files_are_in_its_root(self, repository: Path) -> None:
        (repository / "packages").mkdir()
        begun = gradeline(repository / "packages", "init", "my evals", "--json").json
        assert begun["written"][-2:] == [f"../{WORKFLOW}", "../.gitignore"]
        assert begun["notes"] == ["then replace the examples with your own: my evals/cases.jsonl, my evals/agent.py"]
        ignored = ["git", "check-ignore", "packages/.gradeline/store.db", "packages/my evals/.env"]
        assert subprocess.run(ignored, cwd=repository, check=True, capture_output=True).stdout.count(b"\n") == 2
        assert "gradeline ci 'packages/my evals/suite.yaml'" in (repository / WORKFLOW).read_text()

    @pytest.mark.parametrize("text", ["", "build/", "build/\n.gradeline/\n", "/.gradeline\n.env\n"])
    def test_lines_of_gitignore_are_added_once(self, repository: Path, text: str) -> None:
        path = repository / ".gitignore"
        path.write_text(text)
        gradeline(repository, "init", "a")
        once = path.read_text()
        gradeline(repository, "init", "b")
        assert path.read_text() == once
        assert once.startswith(text)
        lines = [line.strip("/") for line in once.splitlines() if not line.startswith("#")]
        assert sorted(lines) == sorted({*text.replace("/", "").split(), ".gradeline", ".env"})

    def test_an_existing_pipeline_is_kept(self, repository: Path) -> None:
        gradeline(repository, "init", "a")
        before = (repository / WORKFLOW).read_text()
        second = gradeline(repository, "init", "b", "--target", "command", "--force")
        assert f"Kept {WORKFLOW}; to run this suite too, add to it: gradeline ci b/suite.yaml.\n" in second.out
        assert (repository / WORKFLOW).read_text() == before
        assert f"{WORKFLOW}: already exists" in gradeline(repository, "init", "c", "--ci", "github").err

    def test_gitlab(self, repository: Path) -> None:
        gradeline(repository, "init", "a", "--ci", "gitlab")
        assert yaml.safe_load((repository / ".gitlab-ci.yml").read_text()) == {
            "include": [{"local": ".gitlab/gradeline.yml"}]
        }
        job = yaml.safe_load((repository / ".gitlab" / "gradeline.yml").read_text())["gradeline"]
        assert "gradeline ci a/suite.yaml || code=$?\n" in job["script"]

    def test_an_existing_gitlab_pipeline_is_extended_by_hand(self, repository: Path) -> None:
        (repository / ".gitlab-ci.yml").write_text("test: {script: [make]}\n")
        begun = gradeline(repository, "init", "a", "--json").json
        assert begun["notes"][0] == (
            "to start the pipeline, add to .gitlab-ci.yml: include: [{local: .gitlab/gradeline.yml}]"
        )
        assert (repository / ".gitlab-ci.yml").read_text() == "test: {script: [make]}\n"

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_workflow_installs_and_has_the_key_of_each_kind(self, repository: Path, kind: str) -> None:
        gradeline(repository, "init", "evals", "--target", kind)
        workflow = yaml.safe_load((repository / WORKFLOW).read_text())
        steps = {
            step.get("name", step.get("run", step.get("uses"))): step for step in workflow["jobs"]["evals"]["steps"]
        }
        assert shlex.join(["pip", "install", "gradeline", *KINDS[kind].requires.values()]) in steps
        assert ("python -m gradeline.demo.agent --port 9000 &" in steps) == (kind == "http")
        key = KINDS[kind].key
        assert steps["Run the suite"].get("env") == ({key: f"${{{{ secrets.{key} }}}}"} if key else None)
        assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}

    def test_linters_find_nothing_in_a_pipeline(self, tmp_path: Path) -> None:
        paths: dict[str, list[str]] = {forge: [] for forge in PIPELINES}
        for kind in KINDS:
            for forge, found in paths.items():
                (tmp_path / kind / ".git").mkdir(parents=True, exist_ok=True)
                gradeline(tmp_path, "init", f"{kind}/my {forge}", "--target", kind, "--ci", forge)
                found.append(str(tmp_path / kind / PIPELINES[forge].path))
        config = tmp_path / "zizmor.yml"
        policies = {"actions/*": "ref-pin"}  # GitHub's own actions are named by their major version
        config.write_text(json.dumps({"rules": {"unpinned-uses": {"config": {"policies": policies}}}}))
        for command in (
            ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", *paths["github"]],
            ["zizmor", "--offline", "--no-progress", "--config", str(config), *paths["github"]],
            ["check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", *paths["gitlab"]],
        ):
            linter = str(Path(sys.executable).with_name(command[0]))
            done = subprocess.run([linter, *command[1:]], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr

    def test_a_model_on_an_own_server_does_not_get_the_providers_key(self, repository: Path) -> None:
        gradeline(repository, "init", "evals", "--target", "openai", "--url", "http://127.0.0.1:1/v1")
        assert "OPENAI" not in (repository / WORKFLOW).read_text()

    def test_the_workflow_compares_a_pull_request_with_the_main_branch(self, tmp_path: Path) -> None:
        checkout = Checkout(tmp_path)
        assert gradeline(tmp_path, "init", "my evals", "--target", "replay").code == 0
        workflow = yaml.safe_load((tmp_path / WORKFLOW).read_text())
        (command,) = (step["run"] for step in workflow["jobs"]["evals"]["steps"] if step.get("name") == "Run the suite")

        def run_job(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
            ours = {key: value for key, value in os.environ.items() if not key.startswith(("GITHUB_", "GRADELINE_"))}
            path = f"{command_folder()}{os.pathsep}{ours['PATH']}"
            environment = {**ours, **variables, "PATH": path}
            return subprocess.run(
                ["bash", "-e", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )

        base = checkout.commit()
        first = run_job(checkout.push_job())
        assert first.returncode == 0, first
        answers = tmp_path / "my evals" / "answers.jsonl"
        answers.write_text(answers.read_text().replace("Paris", "Rome").replace("Madrid", "Rome"))
        checkout.commit(detached=True)
        second = run_job(checkout.pull_request_job(base))
        assert second.returncode == 1, second
        assert [line for line in second.stdout.splitlines() if line.startswith("::error file=")] == [
            "::error file=my evals/cases.jsonl,line=1::case 'france' regressed: right 1.000 → 0.000",
            "::error file=my evals/cases.jsonl,line=2::case 'spain' regressed: right 1.000 → 0.000",
        ]


@pytest.fixture
def agent() -> Iterator[int]:
    """The port of an agent that answers as the built-in one does: {"input": …} gets {"response": …}."""
    answers = {"France": "Paris", "Spain": "Madrid", "Peru": "Lima", "Kenya": "Nairobi", "19 + 23": "42"}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            body = json.dumps({"response": next(city for name, city in answers.items() if name in question)}).encode()
            self.send_response(200 if self.path == "/evaluate" else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", KINDS)
class TestStarter:
    @pytest.fixture
    def folder(self, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("AGENT_KEY", "s3cret")
        for name, text in starter_files(AgentChoice(kind)).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path

    def check(self, folder: Path, text: str) -> None:
        (folder / "suite.yaml").write_text(text, encoding="utf-8")
        assert read_suite(folder / "suite.yaml").warnings == ()
        assert VALIDATOR.is_valid(parse_document(text.encode(), "suite.yaml").data)

    def test_each_option_works_once_it_is_uncommented(self, folder: Path, kind: str) -> None:
        text = starter_files(AgentChoice(kind))["suite.yaml"]
        options = list(OPTION.finditer(text))
        assert len(options) >= 8
        before = parse_document(text.encode(), "suite.yaml").data
        for option in options:
            changed = text[: option.start()] + option[1] + text[option.end() :]
            assert parse_document(changed.encode(), "suite.yaml").data != before
            self.check(folder, changed)

    def test_all_options_work_together(self, folder: Path, kind: str) -> None:
        self.check(folder, OPTION.sub(r"\1", starter_files(AgentChoice(kind))["suite.yaml"]))

    def test_the_editor_finds_the_schema(self, folder: Path, kind: str) -> None:
        first = starter_files(AgentChoice(kind))["suite.yaml"].splitlines()[0]
        assert first == "# yaml-language-server: $schema=suite.schema.json"

    def test_no_line_is_too_long_to_read(self, folder: Path, kind: str) -> None:
        lines = [line for text in starter_files(AgentChoice(kind)).values() for line in text.splitlines()]
        assert max(map(len, lines)) <= 120


class TestSchema:
    def test_it_is_printed_with_and_without_json(self, tmp_path: Path) -> None:
        assert gradeline(tmp_path, "schema") == CommandResult(0, schema_text(), "")
        assert gradeline(tmp_path, "schema", "--json") == CommandResult(0, schema_text(), "")

    def test_it_is_written_to_a_file(self, tmp_path: Path) -> None:
        assert gradeline(tmp_path, "schema", "--output", "new/suite.schema.json") == CommandResult(0, "", "")
        assert content(tmp_path / "new") == {"suite.schema.json": schema_text()}
        again = gradeline(tmp_path, "schema", "--output", "new/suite.schema.json", "--json")
        assert again.json == {"written": ["new/suite.schema.json"], "next": [], "notes": []}

    def test_an_unwritable_path_is_reported(self, tmp_path: Path) -> None:
        refused = gradeline(tmp_path, "schema", "--output", ".")
        assert refused == CommandResult(2, "", "gradeline: .: cannot write: Is a directory; choose another path\n")


@pytest.mark.parametrize("arguments", [["--help"], ["init", "--help"], ["schema", "--help"]])
def test_help_loads_no_grader(arguments: list[str]) -> None:
    script = (
        "import contextlib, io, sys\nfrom gradeline.cli import run_cli\n"
        f"with contextlib.redirect_stdout(io.StringIO()):\n    assert run_cli({arguments!r}) == 0\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    heavy = (
        "gradeline.graders",
        "gradeline.cli.starter",
        "gradeline.model",
        "gradeline.targets",
        "msgspec",
        "yaml",
        "rich",
        "asyncio",
    )
    assert [name for name in done.stdout.split() if name.startswith(heavy)] == []
