"""A store with the runs, labels, calibration and probes that a route needs, each of which can be left out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from gradeline.engine.judge_probes import save_probe_report
from gradeline.errors import Outcome
from gradeline.model import Grade, GradeKey, Response, ResponseKey, Run, RunGrader, Sample
from gradeline.model.calibration import AgreementTable, Calibration, KappaEstimate
from gradeline.model.label import HumanVerdict, LabelKey
from gradeline.model.probe import ProbeFinding, ProbeReport, ProbeVerdict
from gradeline.model.record import to_json
from gradeline.model.response import Usage
from gradeline.store import InMemoryStorage
from gradeline.store.database import SharedStorage
from gradeline.store.labels import create_label_tables, insert_label, label_row
from gradeline.store.rows import RecordRow, grade_row, response_row
from gradeline.store.trust_records import TrustRecord, put_record
from gradeline.trust.route_file import ArmEntry, RouteFile

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
CASES = 400
TRUTH = {("big", "easy"): 0.9, ("big", "hard"): 0.9, ("small", "easy"): 0.92, ("small", "hard"): 0.35}
JUDGE = {"big": (0.95, 0.9), "small": (0.97, 0.2)}
"""Sensitivity and specificity: the judge flatters the small model."""


def route(**changes: Any) -> RouteFile:
    options: dict[str, Any] = {
        "route": "support",
        "suite": "s",
        "grader": "quality",
        "baseline": ArmEntry(name="big", model="big", base_url="http://127.0.0.1:1/v1"),
        "candidates": (ArmEntry(name="small", model="small", base_url="http://127.0.0.1:2/v1"),),
    }
    return RouteFile(**{**options, **changes})


def filled_store(
    labels: dict[str, int] | None = None,
    *,
    calibrated: bool = True,
    probes: ProbeVerdict | None = "not_flagged",
    judges: tuple[str, ...] = ("openai:gpt-judge",),
    age_days: float = 1.0,
    cost: float | None = 0.01,
    storage: SharedStorage | None = None,
) -> SharedStorage:
    """Runs of a big and a small model on the same cases; both are labelled on the same ones."""
    storage = storage or InMemoryStorage()
    for arm in JUDGE:
        _run(storage, arm, (labels or {"big": 250, "small": 250}).get(arm, 0), judges, age_days, cost)
    if calibrated and judges:
        put_calibration(storage)
    if probes is not None:
        names = ("position", "length", "format", "self_preference")
        findings = tuple(ProbeFinding(probe=name, verdict=probes, sentence=f"{name}: {probes}") for name in names)
        report = ProbeReport(
            suite="s", grader="quality", judges=judges, judge="f1", at="2026-11-18T00:00:00Z", source="answers",
            run=None, probe_run="p", seed=0, pairs=200, answers=200, findings=findings,
        )  # fmt: skip
        save_probe_report(storage, report)
    return storage


def put_calibration(storage: SharedStorage, **changes: Any) -> None:
    fields: dict[str, Any] = {
        "suite": "s", "grader": "quality", "question": "quality", "run": "r", "judge": ("openai:gpt-judge",),
        "judge_fingerprint": "f1", "at": "2026-11-18T00:00:00Z", "state": "calibrated", "labels": 200,
        "positives": 120, "negatives": 80, "table": AgreementTable(tp=114, fp=8, fn=6, tn=72), "agreement": 0.93,
        "kappa": KappaEstimate(estimate=0.85, low=0.78, high=0.92), "kappa_lower": 0.79, "sensitivity": 0.95,
        "specificity": 0.9, "missing_rate": 0.0,
    }  # fmt: skip
    record = Calibration(**{**fields, **changes})
    put_record(
        storage, TrustRecord("calibration", "s", "quality", record.judge_fingerprint, record.at, to_json(record))
    )


def _run(
    storage: SharedStorage, arm: str, labels: int, judges: tuple[str, ...], age_days: float, cost: float | None
) -> None:
    at = (NOW - timedelta(days=age_days)).isoformat()
    grader = RunGrader("model_judge" if judges else "exact_match", "f1", judges)
    run = storage.save_run(
        Run(name=arm, suite="s", status="completed", target={"model": arm}, graders={"quality": grader},
            started_at=at, completed_at=at)
    )  # fmt: skip
    random = Random(arm)
    sensitivity, specificity = JUDGE[arm]
    rows, stored = [], list[RecordRow]()
    for case in range(CASES):
        family = "easy" if case % 2 else "hard"
        sample = Sample(f"c{case}", "question", metadata={"task_family": family})
        passes = Random(f"case {case}").random() < TRUTH[arm, family]  # what is hard for one is hard for the other
        verdict = random.random() < (sensitivity if passes else 1 - specificity) if judges else passes
        response = Response(text=f"{arm} {case}", usage=Usage(10, 10, cost=cost))
        key = ResponseKey(run, sample.case_key)
        grade = Grade("model_judge", "f1", Outcome.PASS if verdict else Outcome.FAIL, float(verdict), passed=verdict)
        stored += [
            response_row(key, response, sample, case, None),
            grade_row(GradeKey(*key, "quality"), grade, response.text),
        ]
        if case < labels:
            human = HumanVerdict("pass" if passes else "fail", probability=labels / CASES)
            rows.append(label_row(LabelKey(*key, "quality"), sample, response, grade, human, "anna", at))
    storage.put_rows(stored, lambda *_: None)
    create_label_tables(storage.database)
    storage.database.transact(lambda transaction: [insert_label(transaction, run, row) for row in rows])
