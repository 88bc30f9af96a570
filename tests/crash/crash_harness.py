"""A real ``gradeline run`` that is killed and resumed, and the invariants after each end.

The agent is another process's HTTP server to the run, so that its calls are known whatever
happens to the run. What was stored is read from a copy of the store: opening the store itself would
recover it, and that is the next run's task.

A kill shows that a process may die at any instruction. What a power cut does to data that was not
synced it cannot show.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any, NamedTuple, TypeAlias

from counting_agent import Call, CountingAgent

from gradeline.engine.aggregate import conclude
from gradeline.errors import Outcome
from gradeline.model import Counts, GraderCounts, Record, Run, Storage
from gradeline.store import open_storage
from gradeline_command import COMMAND, AnyCommand, start_command

CASES, REPEATS, CONCURRENCY = 60, 2, 8
BROKEN = frozenset({7, 31})
"""Cases whose every call fails."""
FLAKY = frozenset({13, 47})
"""Cases whose first two calls fail."""
UNGRADABLE = 22
"""A case at which the custom grader raises."""

PATIENCE = 120.0
_NUMBER = re.compile(r"by call ([0-9]+)")
_SYNCS = "fsync,fdatasync"

SUITE = f"""\
name: crash
dataset: cases.jsonl
num_runs: {REPEATS}
max_concurrent: CONCURRENCY
coverage_floor: 0.8
target:
  kind: http
  url: URL
  request: {{case: "{{{{id}}}}"}}
  response: {{output: answer}}
  retries: 0
graders:
  right: {{kind: string-match, mode: contains}}
  reported: {{kind: custom-rules, rules: [{{condition: contains, value: "by call"}}]}}
  own: {{kind: tool, function: quarters}}
gate: {{kind: simple, metric_key: right, aggregation: avg_score, op: gte, value: 0.5}}
"""
GRADERS = f"""\
import os
from pathlib import Path
from gradeline import GradeResult, grader

SEEN = os.open(Path(__file__).with_name("seen"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@grader
def quarters(sample, submission):
    os.write(SEEN, f"{{submission}}\\n".encode())
    if sample.id == {UNGRADABLE}:
        raise RuntimeError("not this one")
    return GradeResult(score=sample.id % 5 / 4)
"""


class AtFailpoint(NamedTuple):
    """The run ends itself when it passes a named place the n-th time."""

    name: str
    nth: int = 1


class AtCall(NamedTuple):
    """The run is killed while it waits for the answer to its n-th call."""

    nth: int


class After(NamedTuple):
    """The run is killed this number of seconds after its start."""

    seconds: float


class Once(NamedTuple):
    """The run is killed as soon as that is so."""

    condition: Callable[[], bool]


class AtSyscall(NamedTuple):
    """Something befalls one thread's n-th sync, or another system call, by strace's means."""

    when: str
    what: str = "signal=SIGKILL"
    calls: str = _SYNCS


KillPoint: TypeAlias = AtFailpoint | AtCall | After | Once | AtSyscall


class FinishedProcess(NamedTuple):
    """How a process ended."""

    code: int
    out: str
    err: str

    @classmethod
    def of(cls, process: subprocess.Popen[str]) -> FinishedProcess:
        out, err = process.communicate(timeout=PATIENCE)
        return cls(process.returncode, out, err)

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Place: TypeAlias = tuple[str, int]


class Stored(NamedTuple):
    """All that the store has of the run, byte for byte."""

    run: Run | None = None
    responses: dict[Place, str] = {}
    answered: frozenset[Place] = frozenset()
    """Places whose call did not fail."""
    grades: dict[Place, dict[str, tuple[str, str]]] = {}
    """Each grader's outcome and grade."""
    numbers: dict[Place, int] = {}
    """The call that each response is the answer to."""


def answer(case: str, calls_by_case: int) -> str | None:
    """The agent's response; some calls fail."""
    if int(case) in BROKEN or (int(case) in FLAKY and calls_by_case <= REPEATS):
        return None
    return correct_answer(case)


def correct_answer(case: str) -> str:
    """Its response if it succeeds: every third case is answered wrong."""
    return "<?>" if int(case) % 3 == 0 else f"<{case}>"


def expected(case: str, failed: bool) -> dict[str, tuple[str, float | None]]:
    """The expected grades of the answer to a case."""
    if failed:
        return dict.fromkeys(("right", "reported", "own"), ("skipped", None))
    number = int(case)
    right = ("fail", 0.0) if number % 3 == 0 else ("pass", 1.0)
    score = number % 5 / 4
    own = ("error", None) if number == UNGRADABLE else ("pass" if score >= 0.5 else "fail", score)
    return {"right": right, "reported": ("pass", 1.0), "own": own}


class Rig:
    """A suite in a folder, its agent, and the run that is worked on by one process after the other."""

    def __init__(
        self,
        folder: Path,
        agent: CountingAgent,
        *,
        cases: int = CASES,
        concurrency: int = CONCURRENCY,
        suite: str = SUITE,
        graders: str = GRADERS,
    ) -> None:
        self.folder = folder
        self.agent = agent
        self.store = folder / "store.db"
        self.places = [(str(case), repeat) for case in range(cases) for repeat in range(REPEATS)]
        self.concurrency = concurrency
        self.stored = Stored()
        self._started: list[subprocess.Popen[str]] = []
        self.disk: AtSyscall | None = None
        """What befalls the disk all the time."""
        self.lost = 0
        """Calls that were in flight when a process ended."""
        self.repeated = 0
        """Calls that were made again because they had failed."""
        (folder / "suite.yaml").write_text(suite.replace("URL", agent.url).replace("CONCURRENCY", str(concurrency)))
        (folder / "graders.py").write_text(graders)
        rows = ({"id": number, "input": f"case {number}", "ground_truth": f"<{number}>"} for number in range(cases))
        (folder / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run_until(self, kill_point: KillPoint | None = None) -> FinishedProcess:
        """Execute the run until it ends or is killed, and check the invariants after either."""
        arguments = ["run", "suite.yaml"] if self.stored.run is None else ["resume", "latest"]
        first = len(self.agent.calls)
        before = self.stored
        ended = self.call(*arguments, "--quiet", kill_point=kill_point)
        self.check_calls(first)
        if ended.killed and isinstance(kill_point, AtFailpoint):
            check_acknowledged(before, self.stored, kill_point)
        return ended

    def check_calls(self, first: int) -> None:
        """Inspect the calls from this one on, and check the invariants."""
        self.agent.settle()
        before, self.stored = self.stored, self.look()
        lost = check_step(before, self.stored, self.places, self.agent.calls[first:], self.seen())
        assert lost <= self.concurrency, f"{lost} calls were in flight"
        self.lost += lost
        self.repeated += sum(self.stored.numbers[place] != number for place, number in before.numbers.items())

    def finish(self) -> FinishedProcess:
        """Work on the run to its end, and check everything."""
        missing = len(self.places) - len(self.stored.answered)
        first = len(self.agent.calls)
        ended = self.run_until()
        assert ended.code == 0, ended.err
        assert len(self.agent.calls) - first == missing, "each missing answer is asked for once"
        self.check_finished(ended)
        return ended

    def check_finished(self, ended: FinishedProcess) -> None:
        """Everything is stored once, equals the agent's responses, and adds up."""
        assert len(self.agent.calls) == len(self.places) + self.repeated + self.lost
        with open_storage(str(self.store)) as storage:
            (run,) = storage.list_runs()
            assert (run.status, run.total) == ("completed", len(self.places))
            records = list(storage.records(run.id))
            assert [(record.case, record.repeat) for record in records] == self.places
            check_records(records, self.agent.calls)
            counts = storage.counts(run.id)
            assert counts == recomputed(records)
            assert ended.json == json.loads(json.dumps(conclude(storage, run).to_data()))
        summary = ended.json["summary"]
        assert summary["responses"] == counts.responses
        names = {"passed": "pass", "failed": "fail", "errors": "error", "skipped": "skipped"}
        for key, column in summary["graders"].items():
            outcomes = {name: counts.graders[key].outcomes[outcome] for name, outcome in names.items()}
            assert {name: column[name] for name in names} == outcomes

    def call(self, *arguments: str, kill_point: KillPoint | None = None) -> FinishedProcess:
        """A command on the store, to its end."""
        process = self.start(*arguments, kill_point=kill_point)
        if isinstance(kill_point, AtCall):
            last = len(self.agent.calls) + kill_point.nth
            self.agent.on_call = lambda number: process.kill() if number == last else None
        try:
            if isinstance(kill_point, Once):
                until(lambda: process.poll() is not None or kill_point.condition())
                process.kill()
            out, err = process.communicate(timeout=kill_point.seconds if isinstance(kill_point, After) else PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            assert isinstance(kill_point, After), f"{arguments} did not end within {PATIENCE:g} s: {err}"
        finally:
            self.agent.on_call = lambda _: None
        return FinishedProcess(process.returncode, out, err)

    def start(self, *arguments: str, kill_point: KillPoint | None = None, as_child: bool = False) -> AnyCommand:
        """A command on the store, with what is to befall it from inside; ``as_child``: only this process reaps it."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GRADELINE_")}
        command = [COMMAND, *arguments, "--json", "--store", self.store.name]
        if isinstance(kill_point, AtFailpoint):
            environment["GRADELINE_FAILPOINT"] = f"{kill_point.name}:{kill_point.nth}"
        disk = kill_point if isinstance(kill_point, AtSyscall) else self.disk
        if disk is not None:
            command = [*_strace(disk, self.folder / "trace"), *command]
        if as_child:
            command = [sys.executable, "-m", "gradeline", *command[1:]]
        process = start_command(command, cwd=self.folder, env={**environment, "NO_COLOR": "1"})
        self._started.append(process)
        return process

    def close(self) -> None:
        """End what a failed check has left running."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def seen(self) -> set[int]:
        """The calls whose answers the custom grader got to see."""
        path = self.folder / "seen"
        return set(map(int, _NUMBER.findall(path.read_text()))) if path.exists() else set()

    def look(self) -> Stored:
        """The content of the store, read from a copy."""
        if not self.store.exists():
            return Stored()
        with TemporaryDirectory(dir=self.folder) as copy:
            for name in (self.store.name, f"{self.store.name}-wal"):
                if (self.folder / name).exists():
                    shutil.copy(self.folder / name, copy)
            return _read(Path(copy) / self.store.name)


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = monotonic() + PATIENCE
    while not condition():
        assert monotonic() < deadline, "waited in vain"
        sleep(0.005)


def check_step(before: Stored, after: Stored, places: Sequence[Place], calls: Sequence[Call], seen: set[int]) -> int:
    """The invariants after any end of a process; returns the number of its calls in flight at that time."""
    for place in before.answered:
        assert after.responses.get(place) == before.responses[place], f"the answer to {place} is lost or another"
    for place, grades in before.grades.items():
        if place in before.answered:
            stored_grades = {key: grade for key, grade in grades.items() if grade[0] != "skipped"}
            assert {key: after.grades[place].get(key) for key in stored_grades} == stored_grades, (
                f"a grade of {place} is another"
            )
    missing = Counter(case for case, repeat in places if (case, repeat) not in before.answered)
    calls_by_case = Counter(call.case for call in calls)
    assert calls_by_case <= missing, f"asked again: {calls_by_case - missing}"
    assert len(set(after.numbers.values())) == len(after.numbers), "an answer is stored twice"
    new = set(after.numbers.values()) - set(before.numbers.values())
    assert new <= {call.number for call in calls}
    assert seen <= set(after.numbers.values()), "a grader saw an answer that is not stored"
    return len(calls) - len(new)


def check_acknowledged(before: Stored, after: Stored, kill_point: AtFailpoint) -> None:
    """What a process knew to be stored when it died, is stored."""
    if kill_point.name == "response-stored":
        assert sum(before.numbers.get(place) != number for place, number in after.numbers.items()) >= kill_point.nth
    elif kill_point.name in ("run-ending", "run-ended"):
        assert {place: len(after.grades.get(place, ())) for place in after.numbers} == dict.fromkeys(after.numbers, 3)


def check_records(records: Sequence[Record], calls: Sequence[Call]) -> None:
    """Each record has the agent's response to a call of that case, and the grades of this response."""
    for record in records:
        error = record.response.error
        call = calls[_number((record.response.text or "") if error is None else error.message) - 1]
        place = f"case {record.case}, repeat {record.repeat}, call {call.number}"
        assert (call.case, call.failed) == (record.case, record.response.status == "error"), place
        grades = {key: (grade.outcome.value, grade.score) for key, grade in record.grades.items()}
        assert grades == expected(record.case, call.failed), place
        assert set(record.submissions.values()) == (set() if call.failed else {record.response.text}), place


def recomputed(records: Sequence[Record]) -> Counts:
    """The counts of a run computed only from its records; their scores are quarters, which add up exactly."""
    statuses = dict.fromkeys(("success", "error", "timeout"), 0)
    grades: dict[str, list[tuple[Outcome, float | None]]] = {}
    for record in records:
        statuses[record.response.status] += 1
        for key, grade in record.grades.items():
            grades.setdefault(key, []).append((grade.outcome, grade.score))
    return Counts(
        statuses,
        {
            key: GraderCounts(
                {outcome.value: sum(one is outcome for one, _ in column) for outcome in Outcome},
                sum(score or 0.0 for _, score in column),
                sum((score or 0.0) ** 2 for _, score in column),
            )
            for key, column in grades.items()
        },
    )


@cache
def why_no_strace() -> str | None:
    """Why system calls cannot be tampered with here; None where they can."""
    if shutil.which("strace") is None:
        return "strace is absent (Debian: apt-get install strace)"
    probe = [*_strace(AtSyscall("1", "error=EIO"), Path(os.devnull)), sys.executable, "-c", _PROBE]
    done = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=PATIENCE)
    return None if done.returncode == 0 else f"strace cannot tamper with system calls: {done.stderr.strip()[-200:]}"


_PROBE = """
import os
try:
    os.fsync(os.open(".", os.O_RDONLY))
except OSError:
    raise SystemExit(0)
raise SystemExit("a sync went through")
"""


def _strace(kill_point: AtSyscall, trace: Path) -> list[str]:
    # workers are detached at their execve: they do not write to the store
    options = ["-f", "-b", "execve", "-o", str(trace), "-e", f"trace={kill_point.calls}"]
    return ["strace", *options, "-e", f"inject={kill_point.calls}:{kill_point.what}:when={kill_point.when}"]


def _read(path: Path) -> Stored:
    with open_storage(str(path)) as storage:
        runs = storage.list_runs()
        assert len(runs) <= 1, "a run was begun twice"
        run = runs[0] if runs else None
        if run is not None:
            _check_sums(storage, run)
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        rows = connection.execute("SELECT case_key, repeat, status, response FROM responses").fetchall()
        grades: dict[Place, dict[str, tuple[str, str]]] = {}
        for case, repeat, key, outcome, grade in connection.execute(
            "SELECT case_key, repeat, grader, outcome, grade FROM grades"
        ):
            grades.setdefault((case, repeat), {})[key] = (outcome, grade)
    finally:
        connection.close()
    return Stored(
        run,
        {(case, repeat): response for case, repeat, _, response in rows},
        frozenset((case, repeat) for case, repeat, status, _ in rows if status == "success"),
        grades,
        {(case, repeat): _number(response) for case, repeat, _, response in rows},
    )


def _check_sums(storage: Storage, run: Run) -> None:
    """The sums hold at every moment, not only at the end."""
    records = list(storage.records(run.id))
    assert storage.counts(run.id) == recomputed(records)
    for record in records:
        for key, text in record.submissions.items():
            assert text == record.response.text, f"{key} of case {record.case} is the grade of another answer"


def _number(text: str) -> int:
    found = _NUMBER.search(text)
    assert found is not None, f"no call is named in {text!r}"
    return int(found[1])
