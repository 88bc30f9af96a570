"""Grades of judged runs in the quality ledger."""

from __future__ import annotations

from gradeline.engine.definition import RunDefinition, RunOptions, now
from gradeline.ledger import QualityLedger
from gradeline.ledger.judged_runs import record_run
from gradeline.model import Run, to_json
from gradeline.store import InMemoryStorage
from gradeline.store.database import SharedStorage
from gradeline.trust.calibration import calibrate
from gradeline.trust.calibration_data import judge_of, read_labels
from gradeline.trust.calibration_records import store_calibration
from judged_run import JudgedCase, store_run

CASES = [JudgedCase({"quality": case % 2 == 0}, case % 2 == 0) for case in range(100)]


def candidate_of(storage: SharedStorage) -> Run:
    """A run whose judge compares it with another."""
    baseline = store_run(storage, CASES)
    definition = RunDefinition("", RunOptions(), baselines={"quality": baseline.id})
    return storage.update_run(store_run(storage, CASES).id, definition=to_json(definition))


def test_observations_have_the_state_of_the_judge() -> None:
    with InMemoryStorage() as storage:
        run = candidate_of(storage)
        assert record_run(storage, run) == len(CASES)
        data = read_labels(storage, run, "quality", "quality")
        found = calibrate(judge_of(run, "quality", "quality"), data.labelled, data.results, now(), data.source)
        store_calibration(storage, found)
        assert record_run(storage, candidate_of(storage)) == len(CASES)
        ledger = QualityLedger(storage)
        states = [one.calibration_state for one in storage.observations()]
        assert states == ["uncalibrated"] * len(CASES) + ["calibrated"] * len(CASES)
        (row,) = ledger.query(calibration_state="calibrated")
        assert row.n == len(CASES)


def test_the_length_of_both_answers_is_known_to_the_calibration() -> None:
    with InMemoryStorage() as storage:
        run = candidate_of(storage)
        data = read_labels(storage, run, "quality", "quality")
        found = calibrate(judge_of(run, "quality", "quality"), data.labelled, data.results, now(), data.source)
        assert found.length_rule is not None
        assert (found.length_rule.kind, found.length_rule.agreement) == ("longer_wins", 0.5)
