"""Runs of the command line in the service."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gradeline.engine.definition import now
from gradeline.engine.orchestrate import RunRequest, run_suite
from gradeline.model import Run
from gradeline.service.run_cache import VerdictCache
from gradeline.store import SqliteStorage
from gradeline.trust.calibration import calibrate
from gradeline.trust.calibration_data import judge_of, read_labels
from gradeline.trust.calibration_records import store_calibration
from judged_run import JudgedCase, store_run

SUITE = """\
name: echo
dataset: [{id: a, input: yes, ground_truth: "yes"}, {id: b, input: no, ground_truth: "yes"}]
target: {kind: command, command: [cat]}
graders: {same: {kind: exact_match}}
"""
GATE = "gate: {kind: simple, metric_key: same, aggregation: accuracy, op: gte, value: 0.9}\n"


def ran(folder: Path, storage: SqliteStorage, text: str) -> Run:
    file = folder / "suite.yaml"
    file.write_text(text)
    return asyncio.run(run_suite(storage, RunRequest(file))).runs[0].report.run


@pytest.mark.parametrize(("gate", "result"), [(GATE, "fail"), (GATE.replace("0.9", "0.4"), "pass")])
def test_a_run_of_the_command_line_has_the_verdict_that_was_printed(tmp_path: Path, gate: str, result: str) -> None:
    with SqliteStorage(tmp_path / "store.db") as storage:
        run = ran(tmp_path, storage, SUITE + gate)
        verdicts = VerdictCache(storage)
        found = verdicts.get(run)
        assert found is not None
        assert found["result"] == result
        assert verdicts.get(run) is found


def test_a_run_that_was_continued_has_its_new_verdict(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "store.db") as storage:
        run = ran(tmp_path, storage, SUITE + GATE)
        verdicts = VerdictCache(storage)
        before = verdicts.get(run)
        after = verdicts.get(storage.update_run(run.id, total=3))
        assert before is not None
        assert after is not None
        assert before["reasons"] == ("same: accuracy 0.5 ≥ 0.9 is false",)
        assert after["reasons"][1:] == ("same: only 2 of 3 have a score, below the floor of 0.95",)


def test_a_run_without_a_gate_has_none(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "store.db") as storage:
        assert VerdictCache(storage).get(ran(tmp_path, storage, SUITE)) is None


def test_a_judged_run_has_another_verdict_once_its_judge_is_calibrated(tmp_path: Path) -> None:
    gate = {"metric_key": "quality", "aggregation": "accuracy", "op": "gte", "value": 0.4}
    rules = {"rules": {"gate": gate, "require_calibrated": True}}
    with SqliteStorage(tmp_path / "store.db") as storage:
        cases = [JudgedCase({"quality": case % 2 == 0}, case % 2 == 0) for case in range(100)]
        run = storage.update_run(store_run(storage, cases).id, definition=json.dumps(rules))
        verdicts = VerdictCache(storage)
        before = verdicts.get(run)
        data = read_labels(storage, run, "quality", "quality")
        assert verdicts.get(run) is before
        judge = judge_of(run, "quality", "quality")
        store_calibration(storage, calibrate(judge, data.labelled, data.results, now(), data.source))
        after = verdicts.get(run)
    assert before is not None
    assert after is not None
    assert (before["result"], after["result"]) == ("undecided", "pass")
