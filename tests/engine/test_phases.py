"""A run logs one record per phase, with its id, its counts and how long it took."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from gradeline import run_suite
from gradeline.api import RunResult
from gradeline.engine.lifecycle import ExecutedCases, run_under_lock
from gradeline.engine.pipeline import RunTask
from gradeline.engine.plan import Work
from gradeline.graders import create
from gradeline.model import Response, Run, RunGrader, Sample
from gradeline.store import InMemoryStorage

SUITE = {
    "name": "phases",
    "dataset": [{"id": "a", "input": "a", "ground_truth": "a"}, {"id": "b", "input": "b", "ground_truth": "x"}],
    "target": lambda text: text,
    "graders": {"same": {"kind": "exact_match"}, "number": {"kind": "numeric"}},
}
PHASES = ["initialise", "execute", "grade", "aggregate"]


def phases(records: Iterable[logging.LogRecord]) -> list[dict[str, Any]]:
    return [record.gradeline_phase for record in records if hasattr(record, "gradeline_phase")]


def ran(caplog: pytest.LogCaptureFixture, **changes: Any) -> tuple[RunResult, list[dict[str, Any]]]:
    caplog.clear()
    with caplog.at_level(logging.INFO, "gradeline"):
        result = run_suite({**SUITE, **changes}, store="memory://")
    return result, phases(caplog.records)


def test_each_phase_is_logged_once_with_its_counts(caplog: pytest.LogCaptureFixture) -> None:
    result, found = ran(caplog)
    run = result.run.id
    assert [(one["run"], one["phase"]) for one in found] == [(run, phase) for phase in PHASES]
    figures = [
        {key: value for key, value in one.items() if key not in ("run", "phase", "seconds", "status")} for one in found
    ]
    assert figures == [
        {"graders": 2},
        {"called": 2, "reused": 0, "failed": 0},
        {"pass": 1, "fail": 1, "error": 2, "skipped": 0, "not_applicable": 0},
        {"responses": 2, "graders": 2},
    ]
    assert all(one["seconds"] >= 0.0 for one in found)
    assert found[0]["seconds"] > 0.0
    assert found[-1]["status"] == "completed"
    (text,) = [message for message in caplog.messages if ": execute: " in message]
    assert text.startswith(f"run {run}: execute: 2 called, 0 reused, 0 failed in 0.")
    assert {record.name for record in caplog.records if hasattr(record, "gradeline_phase")} == {"gradeline.run"}


def test_failed_calls_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    def fails(text: str) -> str:
        raise ValueError(text)

    _, found = ran(caplog, target=fails)
    assert (found[1]["called"], found[1]["failed"]) == (2, 2)
    assert found[2]["skipped"] == 4


def test_nothing_is_logged_below_the_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gradeline"):
        run_suite(SUITE, store="memory://")
    assert phases(caplog.records) == []


def test_cases_executed_by_other_processes_share_the_time_of_both_phases(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class NoOwner:
        fingerprint = "t"

        async def respond(self, sample: Sample) -> Response:
            raise AssertionError(sample)

        def cache_key(self, sample: Sample, repeat: int) -> str:
            return f"{sample.id} {repeat}"

    async def work_through(*_: object) -> ExecutedCases:
        return ExecutedCases(Counter({Work.RERUN: 3}))

    same = create("exact_match")
    storage = InMemoryStorage()
    run = Run(id="r", name="n", suite="s", graders={"same": RunGrader(same.kind, same.fingerprint)})
    storage.save_run(run)
    task = RunTask(run, lambda: (), NoOwner(), (), prepared_s=100.0)
    with caplog.at_level(logging.INFO, "gradeline"):
        asyncio.run(run_under_lock(storage, task, None, work_through))
    found = phases(caplog.records)
    assert [one["phase"] for one in found] == PHASES
    assert found[0]["seconds"] >= 100.0
    assert found[1]["called"] == 3
    assert found[1]["seconds"] == found[2]["seconds"]
