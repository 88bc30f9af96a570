"""Which calls are repeated and which are not: after Ctrl-C, after edits, with a cache. The agent counts its calls."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Semaphore, Thread
from time import sleep
from typing import Any, NamedTuple

import pytest

from gradeline.model import Record
from gradeline.store import Run, SqliteStorage
from gradeline_command import COMMAND, AnyCommand, start_command

GUARD = 60
MARK = "GRADELINE_TEST_MARK"

URL = "http://127.0.0.1:9"
"""Stands for the agent's address."""
HTTP = 'target: {kind: http, url: "http://127.0.0.1:9/v1", timeout: 50}'
PYTHON = 'target: {kind: python, function: "asking.py:ask", timeout: 50}'
SUITE = """\
name: echo
dataset: cases.jsonl
target: {kind: http, url: "http://127.0.0.1:9/v1", timeout: 50}
graders:
  same: {kind: exact_match}
"""
CODE = """
import json, urllib.request
from gradeline import GradeResult, grader

def ask(text):
    with urllib.request.urlopen("http://127.0.0.1:9/v1", json.dumps({"input": text}).encode(), timeout=50) as answer:
        return json.load(answer)["response"]

@grader
def slow(sample, submission):
    return GradeResult(score=float(ask(submission) == sample.ground_truth))
"""


class Agent(ThreadingHTTPServer):
    """Echoes and records its inputs. It can be made to wait, and to refuse some inputs."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[str] = []
        self.arrived = Semaphore(0)
        self.may_answer = Event()
        self.may_answer.set()
        self.refused: set[str] = set()

    def wait_for(self, calls: int, running: AnyCommand) -> None:
        """Wait until this number of calls has arrived, or the calling process has ended."""
        for _ in range(calls):
            while not self.arrived.acquire(timeout=0.2):
                assert running.poll() is None, running.communicate()

    def handle_error(self, *_: object) -> None:
        """A caller that is gone does not matter."""


class _Handler(BaseHTTPRequestHandler):
    server: Agent

    def do_POST(self) -> None:
        text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        self.server.asked.append(text)
        self.server.arrived.release()
        self.server.may_answer.wait(GUARD)
        body = json.dumps({"response": text}).encode()
        self.send_response(400 if text in self.server.refused else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def agent() -> Iterator[Agent]:
    with Agent() as agent:
        thread = Thread(target=agent.serve_forever, args=(0.05,))
        thread.start()
        yield agent
        agent.may_answer.set()
        agent.shutdown()
        thread.join()


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


_STARTED: list[AnyCommand] = []


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """A test that fails leaves no process to the next one."""
    yield
    for running in _STARTED:
        if running.poll() is None:
            running.kill()
            running.communicate()
        for pipe in (running.stdout, running.stderr):
            if pipe is not None:
                pipe.close()
    _STARTED.clear()


def start(folder: Path, *arguments: str) -> AnyCommand:
    """As a terminal starts it: in a group of its own, which Ctrl-C goes to."""
    stored = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    running = start_command([COMMAND, *arguments], cwd=folder, env={**stored, "NO_COLOR": "1", MARK: str(folder)})
    _STARTED.append(running)
    return running


def end(running: AnyCommand) -> CommandResult:
    out, err = running.communicate(timeout=GUARD)
    return CommandResult(running.returncode, out, err)


def gradeline(folder: Path, *arguments: str) -> CommandResult:
    return end(start(folder, *arguments))


def latest(folder: Path) -> Run:
    with SqliteStorage(folder / ".gradeline" / "store.db") as storage:
        return storage.find_run("latest")


def records(folder: Path) -> list[Record]:
    with SqliteStorage(folder / ".gradeline" / "store.db") as storage:
        return list(storage.records(storage.find_run("latest").id))


def write(folder: Path, agent: Agent, target: str = HTTP, *lines: str) -> None:
    suite = "\n".join([SUITE.replace(HTTP, target), *lines])
    (folder / "suite.yaml").write_text(suite.replace(URL, agent.url))
    (folder / "asking.py").write_text(CODE.replace(URL, agent.url))


def write_cases(folder: Path, count: int, **edited: str) -> None:
    """``edited`` has new inputs for cases."""
    texts = {f"c{number}": f"q{number}" for number in range(count)} | edited
    rows = [{"id": case, "input": text, "ground_truth": text} for case, text in texts.items()]
    (folder / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def inputs(count: int) -> list[str]:
    return sorted(f"q{number}" for number in range(count))


def remaining_processes(folder: Path) -> list[int]:
    """Processes that were started for this folder and still run."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            environ, state = (
                (place / "environ").read_bytes(),
                (place / "stat").read_text().rpartition(")")[2].split()[0],
            )
        except OSError:
            continue
        if f"{MARK}={folder}\0".encode() in environ and state != "Z":
            found.append(int(place.name))
    return found


def no_process_left(folder: Path) -> bool:
    for _ in range(100):
        if not remaining_processes(folder):
            return True
        sleep(0.05)  # there is no notification of the end of a process that is not a child
    return False


SLOW_GRADER = '  slow: {kind: tool, function: "asking.py:slow", timeout: 50}'


class TestInterrupts:
    CASES = 10

    def started(self, folder: Path, agent: Agent, target: str, at_once: int) -> AnyCommand:
        """A run whose agent has received the maximum number of concurrent calls, and does not answer."""
        write(folder, agent, target)
        write_cases(folder, self.CASES)
        agent.may_answer.clear()
        running = start(folder, "run", "suite.yaml", "--concurrency", str(at_once))
        agent.wait_for(at_once, running)
        return running

    @pytest.mark.parametrize(
        ("target", "at_once", "sent"),
        [(HTTP, 3, signal.SIGINT), (HTTP, 3, signal.SIGTERM), (PYTHON, 1, signal.SIGINT)],
        ids=["http", "http-term", "python"],
    )
    def test_the_first_interrupt_finishes_calls_in_flight(
        self, tmp_path: Path, agent: Agent, target: str, at_once: int, sent: signal.Signals
    ) -> None:
        running = self.started(tmp_path, agent, target, at_once)
        os.killpg(running.pid, sent)
        assert running.stderr is not None
        assert running.stderr.readline() == "finishing calls in flight; press Ctrl-C again to stop now\n"
        agent.may_answer.set()
        ran = end(running)
        assert ran.code == 130
        assert f"interrupted; continue with: gradeline resume {latest(tmp_path).id}" in ran.err
        assert "Traceback" not in ran.err
        assert no_process_left(tmp_path)
        stored = records(tmp_path)
        assert (latest(tmp_path).status, len(stored), len(agent.asked)) == ("cancelled", at_once, at_once)
        assert all(record.grades["same"].passed for record in stored)
        resumed = gradeline(tmp_path, "resume", "latest", "--json")
        assert (resumed.code, resumed.json["run"]["status"]) == (0, "completed")
        assert resumed.json["summary"]["graders"]["same"]["passed"] == self.CASES
        assert sorted(agent.asked) == inputs(self.CASES)

    @pytest.mark.parametrize(("target", "at_once"), [(HTTP, 3), (PYTHON, 1)], ids=["http", "python"])
    def test_the_second_interrupt_ends_at_once(self, tmp_path: Path, agent: Agent, target: str, at_once: int) -> None:
        running = self.started(tmp_path, agent, target, at_once)
        assert running.stderr is not None
        os.killpg(running.pid, signal.SIGINT)
        running.stderr.readline()
        os.killpg(running.pid, signal.SIGINT)
        ran = end(running)  # although the agent has not answered
        assert ran.code == 130
        assert "Traceback" not in ran.err
        assert no_process_left(tmp_path)
        assert records(tmp_path) == []
        agent.may_answer.set()
        resumed = gradeline(tmp_path, "resume", "latest", "--json")
        assert (resumed.code, resumed.json["summary"]["graders"]["same"]["passed"]) == (0, self.CASES)
        assert len(agent.asked) == self.CASES + at_once
        assert sorted(set(agent.asked)) == inputs(self.CASES)

    @pytest.mark.parametrize("times", [1, 2])
    def test_slow_grading_loses_no_response(self, tmp_path: Path, agent: Agent, times: int) -> None:
        write(tmp_path, agent, "target: {kind: command, command: [cat]}", SLOW_GRADER)
        write_cases(tmp_path, self.CASES)
        agent.may_answer.clear()
        running = start(tmp_path, "run", "suite.yaml")
        agent.wait_for(1, running)
        assert running.stderr is not None
        os.killpg(running.pid, signal.SIGINT)
        running.stderr.readline()
        if times == 2:
            os.killpg(running.pid, signal.SIGINT)
            ran = end(running)
            agent.may_answer.set()
        else:
            agent.may_answer.set()
            ran = end(running)
        assert ran.code == 130
        assert "Traceback" not in ran.err
        assert no_process_left(tmp_path)
        answered = {record.case for record in records(tmp_path)}
        assert answered
        resumed = gradeline(tmp_path, "resume", "latest", "--json")
        assert (resumed.code, resumed.json["run"]["status"]) == (0, "completed")
        graded = resumed.json["summary"]["graders"]
        assert (graded["same"]["passed"], graded["slow"]["passed"]) == (self.CASES, self.CASES)
        if times == 1:
            assert sorted(agent.asked) == inputs(self.CASES)  # no grade is made twice


CHANGING = """
from pathlib import Path
FOLDER = Path(__file__).parent
def answer(text):
    with (FOLDER / "calls").open("a") as calls:
        calls.write(text + "\\n")
    change = FOLDER / "change.py"
    if text == "q150" and change.exists():
        exec(change.read_text(), {"cases": FOLDER / "cases.jsonl", "new": FOLDER / "new.jsonl"})
        change.unlink()
    return text
"""


class TestChangedData:
    CASES = 400

    def changed(self, folder: Path, agent: Agent, change: str) -> CommandResult:
        """A run whose dataset is changed, by its own agent, at the 151st case."""
        write(folder, agent, 'target: {kind: python, function: "agent.py:answer", isolation: none}')
        (folder / "agent.py").write_text(CHANGING)
        write_cases(folder, self.CASES)
        (folder / "change.py").write_text(change)
        return gradeline(folder, "run", "suite.yaml", "--concurrency", "1")

    def calls(self, folder: Path) -> list[str]:
        return (folder / "calls").read_text().splitlines()

    @pytest.mark.parametrize(
        "change",
        [
            'cases.open(\'a\').write(\'{"id": "late", "input": "late", "ground_truth": "late"}\\n\')',
            "new.replace(cases)",
        ],
        ids=["appended", "replaced"],
    )
    def test_a_dataset_that_changes_ends_the_run_and_resume_reads_it_again(
        self, tmp_path: Path, agent: Agent, change: str
    ) -> None:
        # one case before the change and one far behind it are edited
        write_cases(tmp_path, self.CASES, c7="edited seven", c390="edited far behind")
        (tmp_path / "cases.jsonl").rename(tmp_path / "new.jsonl")
        ran = self.changed(tmp_path, agent, change)
        assert ran.code == 2, ran.err
        assert "cases.jsonl: changed while the run read it; check what changed" in ran.err
        assert "Traceback" not in ran.err
        assert latest(tmp_path).status == "failed"
        number_of_calls = len(self.calls(tmp_path))
        assert len(records(tmp_path)) > 150
        resumed = gradeline(tmp_path, "resume", "latest", "--json")
        assert (resumed.code, resumed.json["run"]["status"]) == (0, "completed"), resumed.err
        rows = [json.loads(line) for line in (tmp_path / "cases.jsonl").read_text().splitlines()]
        stored = {record.case: (record.sample.input, record.response.text) for record in records(tmp_path)}
        assert stored == {row["id"]: (row["input"], row["input"]) for row in rows}
        assert resumed.json["summary"]["graders"]["same"]["passed"] == len(rows)
        again = self.calls(tmp_path)[number_of_calls:]
        if "new" in change:
            assert "edited seven" in again
        assert len(again) < 100

    @pytest.mark.parametrize(
        "change",
        ["import os; os.truncate(cases, 3000)", "cases.write_text('[' + cases.read_text())"],
        ids=["cut", "shifted"],
    )
    def test_a_dataset_overwritten_during_a_run_is_not_reported_as_a_bad_row(
        self, tmp_path: Path, agent: Agent, change: str
    ) -> None:
        ran = self.changed(tmp_path, agent, change)
        assert ran.code == 2
        assert "cases.jsonl: changed while the run read it" in ran.err
        assert "Traceback" not in ran.err
        assert latest(tmp_path).status == "failed"
        write_cases(tmp_path, self.CASES)
        resumed = gradeline(tmp_path, "resume", "latest", "--json")
        assert (resumed.code, resumed.json["summary"]["graders"]["same"]["passed"]) == (0, self.CASES)

    def test_resume_calls_only_an_edited_case_again(self, tmp_path: Path, agent: Agent) -> None:
        write(tmp_path, agent)
        write_cases(tmp_path, 5)
        assert gradeline(tmp_path, "run", "suite.yaml", "--quiet").code == 0
        write_cases(tmp_path, 5, c2="edited")
        assert gradeline(tmp_path, "resume", "latest", "--quiet").code == 0
        assert sorted(agent.asked) == sorted([*inputs(5), "edited"])
        assert [record.response.text for record in records(tmp_path)] == ["q0", "q1", "edited", "q3", "q4"]


class TestChangedSuite:
    def begun(self, folder: Path, agent: Agent, *lines: str) -> None:
        """A run that has called the agent for two of its five cases."""
        write(folder, agent, HTTP, *lines)
        write_cases(folder, 5)
        assert gradeline(folder, "run", "suite.yaml", "--quiet", "--budget", "2calls").code == 3
        assert len(agent.asked) == 2

    def edit(self, folder: Path, name: str, old: str, new: str) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    def refused(self, folder: Path, agent: Agent, *arguments: str) -> str:
        number_of_calls = len(agent.asked)
        ran = gradeline(folder, "resume", "latest", "--budget", "100calls", *arguments)
        assert (ran.code, len(agent.asked), ran.out) == (2, number_of_calls, "")
        return ran.err

    def test_an_edited_suite_is_refused_unless_allowed(self, tmp_path: Path, agent: Agent) -> None:
        self.begun(tmp_path, agent)
        self.edit(tmp_path, "suite.yaml", "kind: exact_match", "kind: contains")
        message = self.refused(tmp_path, agent)
        assert f"{tmp_path / 'suite.yaml'}: changed since the run began" in message
        run = latest(tmp_path).id
        assert f"grade the stored responses with: gradeline regrade {run}," in message
        assert f"continue all the same with: gradeline resume {run} --allow-changed" in message
        ran = gradeline(tmp_path, "resume", "latest", "--budget", "100calls", "--allow-changed", "--json")
        assert (ran.code, ran.json["summary"]["graders"]["same"]["kind"]) == (0, "contains")
        assert ran.json["summary"]["graders"]["same"]["scored"] == 5
        assert sorted(agent.asked) == inputs(5)

    def test_edited_grader_code_is_refused_with_the_graders_name(self, tmp_path: Path, agent: Agent) -> None:
        (tmp_path / "grading.py").write_text(
            "from gradeline import GradeResult, grader\n@grader\ndef half(sample, submission):\n    return GradeResult(score=0.5)\n"
        )
        self.begun(tmp_path, agent, '  own: {kind: tool, function: "grading.py:half"}')
        self.edit(tmp_path, "grading.py", "0.5", "0.25")
        message = self.refused(tmp_path, agent)
        assert "own changed since the run began" in message
        assert "--allow-changed" in message
        ran = gradeline(tmp_path, "resume", "latest", "--budget", "100calls", "--allow-changed", "--json")
        own = ran.json["summary"]["graders"]["own"]
        assert (ran.code, own["mean"], own["scored"]) == (0, 0.25, 5)
        assert sorted(agent.asked) == inputs(5)

    def test_another_target_is_refused_and_noted_where_allowed(self, tmp_path: Path, agent: Agent) -> None:
        self.begun(tmp_path, agent)
        before = latest(tmp_path).target["fingerprint"]
        self.edit(tmp_path, "suite.yaml", "/v1", "/v2")
        assert "--allow-changed" in self.refused(tmp_path, agent)
        ran = gradeline(tmp_path, "resume", "latest", "--budget", "100calls", "--allow-changed", "--quiet")
        assert ran.code == 0
        assert "the target changed; this run has responses of both" in ran.err
        assert latest(tmp_path).target["earlier_fingerprints"] == [before]
        assert sorted(agent.asked) == inputs(5)

    def test_edited_target_code_is_refused(self, tmp_path: Path, agent: Agent) -> None:
        write(tmp_path, agent, PYTHON)
        write_cases(tmp_path, 1)
        assert gradeline(tmp_path, "run", "suite.yaml", "--quiet").code == 0
        self.edit(tmp_path, "asking.py", "/v1", "/v2")
        message = self.refused(tmp_path, agent)
        assert "the target changed since the run began" in message
        assert "--allow-changed" in message


class TestCache:
    def test_a_cached_response_is_paid_for_once(self, tmp_path: Path, agent: Agent) -> None:
        def run(code: int = 0) -> list[str]:
            """The inputs that the agent receives in one more run."""
            agent.asked.clear()
            ran = gradeline(tmp_path, "run", "suite.yaml", "--quiet")
            assert ran.code == code, ran.err
            return sorted(agent.asked)

        write(tmp_path, agent, HTTP, "cache: true", "coverage_floor: 0.7")
        write_cases(tmp_path, 4)
        agent.refused.add("q3")
        assert run() == inputs(4)
        assert run() == ["q3"], "only the call that failed is made again"
        agent.refused.clear()
        assert run() == ["q3"]
        assert run() == []
        cases = (tmp_path / "cases.jsonl").read_text()
        (tmp_path / "cases.jsonl").write_text(cases.replace('"ground_truth": "q1"', '"ground_truth": "z"'))
        assert run() == [], "the agent does not see what is expected of it"
        assert [record.grades["same"].passed for record in records(tmp_path)] == [True, False, True, True]
        write_cases(tmp_path, 4, c2="another")
        assert run() == ["another"]
        write(tmp_path, agent, HTTP.replace("/v1", "/v2"), "cache: true")
        assert run() == sorted(["q0", "q1", "another", "q3"])
