"""Kill a run anywhere: nothing that was finished is lost, and nothing is called or stored twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from counting_agent import Answer, CountingAgent
from crash_harness import (
    GRADERS,
    REPEATS,
    SUITE,
    After,
    AtCall,
    AtFailpoint,
    AtSyscall,
    FinishedProcess,
    KillPoint,
    Once,
    Rig,
    answer,
    correct_answer,
    until,
    why_no_strace,
)

from gradeline.engine.execute import CallLimits
from gradeline.engine.lifecycle import run_local
from gradeline.engine.pipeline import RunTask
from gradeline.errors import StoreError
from gradeline.failpoints import FAILPOINTS
from gradeline.model import Response, Run, Sample
from gradeline.store import SqliteStorage
from gradeline.store.rows import RecordRow
from gradeline.store.writer import Writer

ONE_PASS = (1, 1, 1)
BATCHES = (1, 7, 4)
PASSES = {
    "run-saved": ONE_PASS,
    "run-ending": ONE_PASS,
    "run-ended": ONE_PASS,
    "batch-begun": BATCHES,
    "batch-written": BATCHES,
    "batch-committed": BATCHES,
}
"""At the how-manieth pass three processes in a row are killed: at the beginning, in the middle, near the end."""
CASE_PASSES = (1, 60, 40)

MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[MakeRig]:
    with ExitStack() as stack:

        def make(answers: Answer = answer, **options: Any) -> Rig:
            agent = stack.enter_context(CountingAgent(answers))
            return stack.enter_context(closing(Rig(tmp_path, agent, **options)))

        yield make


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig()


def reliable(case: str, number_of_calls: int) -> str:
    """An agent that never fails."""
    return correct_answer(case)


def at_first_down(case: str, number_of_calls: int) -> str | None:
    """An agent that fails both repeats of one case, and answers when it is called again."""
    return None if case == "1" and number_of_calls <= REPEATS else correct_answer(case)


class TestKilledRun:
    @pytest.mark.parametrize("name", FAILPOINTS)
    def test_continues_after_a_kill_at_a_named_point(self, rig: Rig, name: str) -> None:
        for nth in PASSES.get(name, CASE_PASSES):
            assert rig.run_until(AtFailpoint(name, nth)).killed
        rig.finish()

    def test_continues_after_kills_at_successive_points(self, rig: Rig) -> None:
        for name, nth in (("batch-written", 3), ("response-stored", 30), ("run-saved", 1), ("graded", 20)):
            assert rig.run_until(AtFailpoint(name, nth)).killed
        rig.finish()

    def test_continues_after_kills_during_a_call(self, rig: Rig) -> None:
        for nth in (1, 40, 30):
            assert rig.run_until(AtCall(nth)).killed
        assert rig.finish().json == rig.call("show", "latest").json

    def test_continues_after_kills_at_any_time(self, rig: Rig) -> None:
        moments = random.Random(5)
        for _ in range(3):
            rig.run_until(After(moments.uniform(0.1, 0.9)))
        rig.finish()

    def test_continues_although_the_killed_process_was_not_reaped(self, rig: Rig) -> None:
        process = rig.start("run", "suite.yaml", as_child=True)
        until(lambda: len(rig.agent.calls) >= 10)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        rig.check_calls(0)
        rig.finish()

    @pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="/proc tells which processes live")
    def test_leaves_no_worker_behind(self, make_rig: MakeRig) -> None:
        noting_graders = (
            GRADERS + "\nwith Path(__file__).with_name('workers').open('a') as file: file.write(f'{os.getpid()}\\n')"
        )
        rig = make_rig(graders=noting_graders)
        assert rig.run_until(AtFailpoint("graded", 50)).killed
        workers = (rig.folder / "workers").read_text().split()
        assert workers
        until(lambda: not any(is_alive(pid) for pid in workers))


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


class TestReplacedResponse:
    """Between its commit and that of its grades a kill must not leave it with the grades of the other."""

    def test_is_graded_where_the_first_call_had_failed(self, make_rig: MakeRig) -> None:
        rig = make_rig(at_first_down, cases=10)
        assert rig.run_until().code == 0
        assert rig.run_until(AtFailpoint("response-stored")).killed
        rig.finish()

    def test_is_graded_where_the_case_was_edited(self, make_rig: MakeRig) -> None:
        rig = make_rig(reliable, cases=10)
        assert rig.run_until().code == 0
        edit_case(rig)
        assert rig.call("resume", "latest", kill_point=AtFailpoint("response-stored", REPEATS)).killed
        assert rig.call("resume", "latest").code == 0
        assert rights_of_the_edited_case(rig) == ["fail"] * REPEATS

    def test_leaves_no_other_repeat_with_the_case_as_it_was(self, make_rig: MakeRig) -> None:
        rig = make_rig(reliable, cases=10, concurrency=1)
        assert rig.run_until().code == 0
        edit_case(rig)
        assert rig.call("resume", "latest", kill_point=AtFailpoint("response-stored")).killed
        assert rig.call("resume", "latest").code == 0
        assert rights_of_the_edited_case(rig) == ["fail"] * REPEATS
        asked_again = len(rig.agent.calls) - len(rig.places)
        assert REPEATS <= asked_again <= REPEATS + rig.concurrency


def edit_case(rig: Rig) -> None:
    """Expect something else of a case that was answered as it was expected to be."""
    cases = rig.folder / "cases.jsonl"
    cases.write_text(cases.read_text().replace('"<1>"', '"<one>"'))


def rights_of_the_edited_case(rig: Rig) -> list[str]:
    records = map(json.loads, rig.call("export", "latest").out.splitlines())
    return [record["grades"]["right"]["outcome"] for record in records if record["case"] == "1"]


SLOW = (
    GRADERS
    + """
import time

@grader
def slow(sample, submission):
    Path(__file__).with_name("began").touch()
    while not Path(__file__).with_name("hurry").exists():
        time.sleep(0.01)
    return GradeResult(score=1.0)
"""
)
PEEKING = (
    GRADERS
    + """
import sqlite3

@grader
def peek(sample, submission):
    store = sqlite3.connect(f"file:{Path(__file__).with_name('store.db')}?mode=ro", uri=True)
    query = "SELECT count(*) FROM responses WHERE case_key = ? AND json_extract(response, '$.text') = ?"
    (found,) = store.execute(query, (str(sample.id), submission)).fetchone()
    store.close()
    return GradeResult(score=float(found))
"""
)


def with_grader(name: str) -> str:
    return SUITE.replace("gate:", f"  {name}: {{kind: tool, function: {name}, timeout: 300}}\ngate:")


class TestGrading:
    def test_starts_after_the_response_is_stored(self, make_rig: MakeRig) -> None:
        rig = make_rig(reliable, suite=with_grader("peek"), graders=PEEKING)
        ran = rig.run_until()
        column = ran.json["summary"]["graders"]["peek"]
        assert (column["passed"], column["total"]) == (len(rig.places), len(rig.places))

    def test_slow_grading_is_killed_without_losing_a_response(self, make_rig: MakeRig) -> None:
        rig = make_rig(reliable, cases=10, suite=with_grader("slow"), graders=SLOW)
        slow = Once(lambda: (rig.folder / "began").exists() and responses_in(rig.store) == len(rig.places))
        assert rig.run_until(slow).killed
        assert (len(rig.stored.answered), rig.stored.grades) == (len(rig.places), {})
        (rig.folder / "hurry").touch()
        resumed = rig.run_until()
        assert len(rig.agent.calls) == len(rig.places)
        columns = resumed.json["summary"]["graders"]
        assert [columns[key]["scored"] for key in ("right", "reported", "own", "slow")] == [len(rig.places)] * 4


def responses_in(store: Path) -> int:
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM responses").fetchone()[0])


class TestResumes:
    def test_concurrent_resumes_leave_the_run_to_one_process(self, rig: Rig) -> None:
        assert rig.run_until(AtFailpoint("response-stored", 20)).killed
        first = len(rig.agent.calls)
        rig.agent.may_answer.clear()
        racing = [rig.start("resume", "latest", "--quiet") for _ in range(3)]
        until(lambda: sum(process.poll() is not None for process in racing) == 2)
        rig.agent.may_answer.set()
        ends = [FinishedProcess.of(process) for process in racing]
        (winner,) = [end for end in ends if end.code == 0]
        refused = [end for end in ends if end is not winner]
        assert [(end.code, end.out) for end in refused] == [(2, "")] * 2
        assert all("is still running, in process" in end.err or "claimed by another" in end.err for end in refused)
        assert not any("when this is fixed" in end.err for end in refused)
        rig.check_calls(first)
        rig.check_finished(winner)


class TestRegrade:
    def test_a_killed_regrade_continues_without_the_agent(self, rig: Rig) -> None:
        assert rig.run_until().code == 0
        number_of_calls = len(rig.agent.calls)
        suite = rig.folder / "suite.yaml"
        suite.write_text(suite.read_text().replace("mode: contains", "mode: exact"))
        assert rig.call("regrade", "latest", kill_point=AtFailpoint("graded", 40)).killed
        resumed = rig.call("resume", "latest")
        assert (resumed.code, len(rig.agent.calls)) == (1, number_of_calls)
        summary = resumed.json["summary"]
        assert summary["responses"] == {"success": 112, "error": 8, "timeout": 0}
        assert {key: column["total"] for key, column in summary["graders"].items()} == dict.fromkeys(
            summary["graders"], 120
        )


@pytest.mark.skipif(why_no_strace() is not None, reason=str(why_no_strace()))
class TestDisk:
    def test_a_kill_at_a_sync_loses_nothing(self, rig: Rig) -> None:
        """The first ones occur while the store is created, the others while batches are committed."""
        for nth in ("3", "9", "8", "1", "6"):
            assert rig.run_until(AtSyscall(nth)).killed
        rig.finish()

    def test_a_slow_disk_uses_a_thread_and_loses_nothing(self, rig: Rig) -> None:
        """Each sync takes longer than a commit in the event loop may; the kills occur while the thread commits."""
        rig.disk = AtSyscall("1+", "delay_exit=8000")
        for name in ("batch-written", "response-stored", "batch-committed", "grade-queued"):
            assert rig.run_until(AtFailpoint(name, 9)).killed
        rig.finish()

    @pytest.mark.parametrize(
        ("kill_point", "remedy"),
        [
            (AtSyscall("10", "error=EIO"), "the disk reports an error; check it"),
            (AtSyscall("10+", "error=EIO"), "the disk reports an error; check it"),
            (AtSyscall("90+", "error=ENOSPC", "pwrite64"), "the disk is full; free some space, then resume"),
        ],
        ids=["a sync fails", "every sync fails from then on", "the disk is full"],
    )
    def test_a_disk_error_ends_the_run_and_loses_nothing(self, rig: Rig, kill_point: KillPoint, remedy: str) -> None:
        SqliteStorage(rig.store).close()  # created first, so that the fault occurs while responses are stored
        ended = rig.run_until(kill_point)
        assert (ended.code, ended.out) == (4, "")
        assert ended.err.startswith("gradeline: ")
        assert remedy in ended.err
        assert "Traceback" not in ended.err
        assert rig.stored.answered
        rig.finish()


class CountingTarget:
    """A target that counts its calls."""

    fingerprint = "asked"

    def __init__(self) -> None:
        self.times = 0

    async def respond(self, sample: Sample) -> Response:
        self.times += 1
        await asyncio.sleep(0)
        return Response(text="an answer")

    def cache_key(self, sample: Sample, repeat: int) -> str:
        return f"{sample.case_key}/{repeat}"


class FullDisk(SqliteStorage):
    """A store that opens, and then cannot write a row."""

    def writer(self) -> Writer:
        def refuse(rows: Sequence[RecordRow]) -> Sequence[StoreError | None]:
            raise StoreError("the disk is full")

        return Writer(refuse)


def test_no_calls_are_made_after_a_failed_write(tmp_path: Path) -> None:
    target = CountingTarget()
    with FullDisk(tmp_path / "store.db") as storage:
        run = storage.get_run(storage.save_run(Run(name="full", suite="full")))
        assert run is not None
        cases = [Sample(number, "q") for number in range(50)]
        task = RunTask(run, lambda: cases, target, (), CallLimits(concurrency=3))
        with pytest.raises(StoreError, match="the disk is full"):
            asyncio.run(run_local(storage, task))
    assert target.times <= 3
