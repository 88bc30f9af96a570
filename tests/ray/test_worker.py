"""What a worker does with the chunks that it has in hand. It is one of this process: nothing of Ray is in it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gradeline.engine.execute import Stop
from gradeline.engine.lifecycle import ExecutedCases, ExecutionResult, RunLock, run_under_lock
from gradeline.engine.orchestrate import RunRequest, run_suite
from gradeline.engine.pipeline import RunTask
from gradeline.engine.plan import Work
from gradeline.engine.prepare import PreparedRun
from gradeline.engine.ray.chunks import Chunk, ChunkResult
from gradeline.engine.ray.worker import ChunkWorker, RunJob
from gradeline.model import Run, Storage
from gradeline.model.calibration import CALIBRATION, AgreementTable, Calibration
from gradeline.model.learned_judging import LabelledConfidences
from gradeline.store import open_storage
from gradeline.store.trust_records import TrustRecord, put_record
from gradeline.testing.fake_judge import FakeJudge
from gradeline.transport import EgressPolicy, PublicOnly

CASES, CHUNK, SHARE = 40, 10, 4

AGENT = """
import asyncio
from pathlib import Path

HERE = Path(__file__).parent
ASKED = []

async def answer(sample):
    ASKED.append(sample.id)
    (HERE / "asked").write_text(" ".join(ASKED))
    async with asyncio.timeout(30):
        while (wanted := {waits}.get(sample.id)) is not None and wanted not in ASKED:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.002)
    return sample.input
"""


class SingleWorkerEngine:
    """An engine that gives all chunks of a run to one worker at once."""

    def __init__(self, store: str, stop_after: int | None = None, policy: EgressPolicy | None = None) -> None:
        self._store = store
        self._stop_after = stop_after
        self._policy = policy
        self.done: Sequence[ChunkResult] = ()

    async def __call__(
        self, storage: Storage, prepared: PreparedRun, task: RunTask, stop: Stop | None = None
    ) -> ExecutionResult:
        async def work_through(lock: RunLock, run: Run, stop: Stop) -> ExecutedCases:
            planned = list(task._replace(run=run).plan(storage))
            chunks = [Chunk(n, tuple(planned[n : n + CHUNK])) for n in range(0, len(planned), CHUNK)]
            job = RunJob.of(prepared, task, run, self._store, lock.remote_writer(), shipped=False)
            worker = ChunkWorker(job._replace(policy=self._policy), SHARE)
            assert not (await worker.open()).problems
            working = [asyncio.create_task(worker.work(chunk)) for chunk in chunks]
            if self._stop_after is not None:
                await working[self._stop_after]
                await worker.stop("enough")
            self.done = await asyncio.gather(*working)
            await worker.close()
            for done in self.done:
                if done.refused is not None:
                    stop.set(done.refused, failed=True)
            return ExecutedCases(sum((Counter(done.work) for done in self.done), Counter()))

        return await run_under_lock(storage, task, stop, work_through)


def run(
    folder: Path,
    engine: SingleWorkerEngine,
    store: str,
    waits: dict[str, str] | None = None,
    graders: dict[str, Any] | None = None,
) -> tuple[int, list[str]]:
    """The number of stored records, and the cases in the order in which they were called."""
    (folder / "agent.py").write_text(AGENT.replace("{waits}", repr(waits or {})))
    rows = ({"id": f"c{n}", "input": f"q{n}", "ground_truth": f"q{n}"} for n in range(CASES))
    (folder / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    suite = {
        "name": "in hand",
        "dataset": "cases.jsonl",
        "target": {"kind": "python", "function": "agent.py:answer", "isolation": "none"},
        "graders": graders or {"exact": {"kind": "exact_match"}},
    }
    (folder / "suite.json").write_text(json.dumps(suite))
    with open_storage(store) as storage:
        ran = asyncio.run(run_suite(storage, RunRequest(folder / "suite.json"), engine=engine)).runs[0]
        records = list(storage.records(ran.report.run.id))
    assert all(record.response.error is None for record in records)
    return len(records), (folder / "asked").read_text().split()


def test_chunks_are_executed_one_after_the_other(tmp_path: Path) -> None:
    """If the chunks ran one after the other, all calls would end together, and the agent would be idle until the next."""
    store = str(tmp_path / "runs.db")
    engine = SingleWorkerEngine(store)
    stored, called = run(tmp_path, engine, store)
    assert stored == CASES
    assert sorted(called) == sorted(f"c{n}" for n in range(CASES))
    # calls in flight at the same time may overtake each other, and no others
    assert all(abs(place - int(case[1:])) < SHARE for place, case in enumerate(called)), called
    assert [done.work for done in engine.done] == [{Work.RERUN: CHUNK}] * (CASES // CHUNK)


def test_the_next_chunk_starts_while_calls_of_the_previous_one_are_in_flight(tmp_path: Path) -> None:
    """The last case of each chunk is answered only after the second case of the next chunk was called."""
    store = str(tmp_path / "runs.db")
    waits = {f"c{n - 1}": f"c{n + 1}" for n in range(CHUNK, CASES, CHUNK)}
    stored, _ = run(tmp_path, SingleWorkerEngine(store), store, waits)
    assert stored == CASES


def test_a_refusal_of_the_judge_is_reported_with_its_chunk(tmp_path: Path) -> None:
    """Whether it ends the run is the driver's to decide: calls of another worker may have succeeded."""
    store = str(tmp_path / "runs.db")
    engine = SingleWorkerEngine(store)
    with FakeJudge("403").in_thread() as judge:
        options = {"prompt": "{submission}", "model": "m", "base_url": judge.base_url(), "max_retries": 0}
        run(tmp_path, engine, store, graders={"quality": {"kind": "model_judge", "config": options}})
    assert [done.stopped for done in engine.done] == [None] * (CASES // CHUNK)
    assert all("HTTP 403" in str(done.refused) for done in engine.done)


class CalibratedMeanwhile(SingleWorkerEngine):
    """A judge is calibrated after the run was planned, and before its worker opens."""

    async def __call__(
        self, storage: Storage, prepared: PreparedRun, task: RunTask, stop: Stop | None = None
    ) -> ExecutionResult:
        grader = prepared.run_graders()["quality"]
        record = Calibration(
            suite="in hand",
            grader="quality",
            question="quality",
            run="r",
            judge=grader.judges,
            judge_fingerprint=grader.calibrated_as,
            at="2026-11-19T10:00:00Z",
            state="calibrated",
            labels=60,
            positives=30,
            negatives=30,
            table=AgreementTable(tp=30, fp=0, fn=0, tn=30),
            missing_rate=0.0,
            selective=LabelledConfidences(confidences=(1.0,) * 60, agreed=(True,) * 60),
        )
        body = msgspec.json.encode(record).decode()
        names = (record.suite, record.grader, record.judge_fingerprint, record.at)
        put_record(storage, TrustRecord(CALIBRATION, *names, body))
        return await super().__call__(storage, prepared, task, stop)


def test_a_worker_uses_the_calibrations_of_its_driver(tmp_path: Path) -> None:
    """With those of its own, the judge would be another one than that of the run, and the worker would refuse."""
    store = str(tmp_path / "runs.db")
    with FakeJudge("perfect").in_thread() as judge:
        options = {"prompt": "{submission}", "model": "m", "base_url": judge.base_url(), "agreement": 0.9}
        run(
            tmp_path, CalibratedMeanwhile(store), store, graders={"quality": {"kind": "model_judge", "config": options}}
        )
    with open_storage(store) as storage:
        grades = [record.grades["quality"] for record in storage.records(storage.find_run("latest").id)]
    assert len(grades) == CASES
    assert {grade.metadata["selective"]["measured"] for grade in grades} == {False}


def test_a_stopped_worker_drops_waiting_chunks(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    engine = SingleWorkerEngine(store, stop_after=0)
    stored, called = run(tmp_path, engine, store)
    assert CHUNK <= stored == len(called) < CASES
    assert [done.stopped for done in engine.done][-1] == "enough"


def test_a_worker_reports_processes_that_died_and_addresses_that_were_refused(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.db")
    (tmp_path / "fatal.py").write_text(
        "import os\nfrom gradeline import grader\n\n@grader\ndef fatal(sample, submission): os._exit(3)\n"
    )
    with FakeJudge("perfect").in_thread() as judge:
        options = {"prompt": "{submission}", "model": "m", "base_url": judge.base_url(), "max_retries": 0}
        suite = {
            "name": "incidents",
            "dataset": [{"id": f"c{n}", "input": f"q{n}", "ground_truth": f"q{n}"} for n in range(3)],
            "target": {"kind": "python", "function": "agent.py:answer", "isolation": "none"},
            "graders": {
                "fatal": {"kind": "tool", "function": "fatal.py:fatal"},
                "judged": {"kind": "model_judge", "config": options},
            },
        }
        (tmp_path / "agent.py").write_text("def answer(text):\n    return text\n")
        (tmp_path / "suite.json").write_text(json.dumps(suite))
        engine = SingleWorkerEngine(store, policy=PublicOnly())
        with open_storage(store) as storage:
            asyncio.run(run_suite(storage, RunRequest(tmp_path / "suite.json"), engine=engine))
    (done,) = engine.done
    assert set(done.deaths) == {"crashed"}
    assert done.refusals == 3


def test_an_agent_that_is_down_is_noticed_over_several_chunks(tmp_path: Path) -> None:
    """The limit of 20 is more than a chunk has; whether it ends the run is the driver's to decide."""
    store = str(tmp_path / "runs.db")
    engine = SingleWorkerEngine(store)
    rows = [{"id": f"c{n}", "input": f"q{n}", "ground_truth": f"q{n}"} for n in range(CASES)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        target = {"kind": "http", "url": f"http://127.0.0.1:{probe.getsockname()[1]}/", "retries": 0}
    suite = {"name": "down", "dataset": rows, "target": target, "graders": {"exact": {"kind": "exact_match"}}}
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    with open_storage(store) as storage:
        ran = asyncio.run(run_suite(storage, RunRequest(tmp_path / "suite.json"), engine=engine)).runs[0]
        stored = len(list(storage.records(ran.report.run.id)))
    assert engine.done[0].refused is None
    assert "the agent cannot be reached" in str(engine.done[-1].refused)
    assert 20 <= stored < CASES
