"""The state of a run's judges follows from the store's records about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gradeline.engine.judge_trust import judge_states
from gradeline.model import Run, RunGrader
from gradeline.model.anchors import ANCHOR_CHECK
from gradeline.model.calibration import CALIBRATION, AgreementTable, Calibration, KappaEstimate
from gradeline.store import InMemoryStorage, PostgresStorage, SqliteStorage
from gradeline.store.database import SharedStorage
from gradeline.store.trust_records import TrustRecord, put_record
from judged_run import JudgedCase, store_run

STORES: dict[str, Callable[[pytest.FixtureRequest], SharedStorage]] = {
    "memory": lambda request: InMemoryStorage(),
    "sqlite": lambda request: SqliteStorage(request.getfixturevalue("tmp_path") / "store.db"),
    "postgresql": lambda request: PostgresStorage(request.getfixturevalue("postgres_url")),
}
NOW = datetime(2026, 11, 20, tzinfo=UTC)
JUDGE = RunGrader("model_judge", "f1", ("openai:m",), prompt_hash="p1", rubric_version="factuality@1")
RECORD = Calibration(
    suite="capitals",
    grader="quality",
    question="quality",
    run="run1",
    judge=("openai:m",),
    judge_fingerprint="f1",
    prompt_hash="p1",
    rubric_version="factuality@1",
    at="2026-11-01T10:00:00Z",
    state="calibrated",
    labels=200,
    positives=120,
    negatives=80,
    table=AgreementTable(tp=110, fp=8, fn=10, tn=72),
    agreement=0.91,
    kappa=KappaEstimate(estimate=0.814, low=0.73, high=0.9),
    kappa_lower=0.745,
    missing_rate=0.0,
)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[SharedStorage]:
    storage = STORES[request.param](request)
    yield storage
    storage.close()


@pytest.fixture
def memory() -> Iterator[SharedStorage]:
    with InMemoryStorage() as storage:
        yield storage


def run_of(**graders: RunGrader) -> Run:
    return Run(id="run9", name="r", suite="capitals", graders=graders or {"quality": JUDGE})


def file(storage: SharedStorage, record: Calibration, **changes: Any) -> None:
    changed = msgspec.structs.replace(record, **changes)
    body = msgspec.json.encode(changed).decode()
    put_record(
        storage,
        TrustRecord(CALIBRATION, changed.suite, changed.grader, changed.judge_fingerprint, changed.at, body),
    )


def state_of(storage: SharedStorage, grader: RunGrader = JUDGE, now: datetime = NOW) -> tuple[str, str]:
    trust = judge_states(storage, run_of(quality=grader), now)["quality"]
    return trust.state, trust.reason


def test_a_judge_without_a_record_is_uncalibrated(store: SharedStorage) -> None:
    never = "never compared with labels: gradeline label run9 --sample 100, then gradeline calibrate run9"
    assert state_of(store) == ("uncalibrated", never)
    file(store, RECORD, suite="another")
    file(store, RECORD, grader="tone")
    assert state_of(store) == ("uncalibrated", never)


def test_the_remedy_is_to_label_unless_there_are_labels(store: SharedStorage) -> None:
    graders = {"quality": JUDGE, "the tone": JUDGE}
    run = store_run(store, [JudgedCase({"quality": True, "the tone": True}, label=True)], graders)
    reasons = {key: trust.reason for key, trust in judge_states(store, run, NOW).items()}
    assert reasons == {
        "quality": f"never compared with labels: gradeline calibrate {run.id} --grader quality",
        "the tone": f"never compared with labels: gradeline label {run.id} --grader 'the tone' --sample 100, then"
        f" gradeline calibrate {run.id} --grader 'the tone'",
    }


def test_only_graders_with_a_judge_have_a_state(memory: SharedStorage) -> None:
    assert judge_states(memory, run_of(exact=RunGrader("exact_match", "f0"))) == {}


def test_a_record_of_this_judge_gives_its_state(store: SharedStorage) -> None:
    file(store, RECORD)
    trust = judge_states(store, run_of(), NOW)["quality"]
    assert trust.state == "calibrated"
    assert trust.reason == "agreement 0.910, kappa 0.81 (0.73–0.90) on 200 labels, 2026-11-01"
    assert trust.calibration == RECORD


def test_a_failed_record_gives_its_reasons(memory: SharedStorage) -> None:
    file(memory, RECORD, state="failed", reasons=("too few labels", "kappa too low"))
    assert state_of(memory) == ("failed", "too few labels; kappa too low")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt_hash": "p2"}, "the prompt changed since 2026-11-01"),
        ({"judges": ("openai:n",)}, "the model changed from openai:m to openai:n since 2026-11-01"),
        (
            {"rubric_version": "factuality@2", "prompt_hash": "p2"},
            "the rubric changed from factuality@1 to factuality@2 since 2026-11-01",
        ),
        ({"rubric_version": ""}, "the rubric changed from factuality@1 to the suite's own since 2026-11-01"),
        ({}, "the judge's options changed since 2026-11-01"),
    ],
)
def test_a_change_of_the_judge_expires_its_record(memory: SharedStorage, changes: dict[str, Any], reason: str) -> None:
    file(memory, RECORD)
    changed = msgspec.structs.replace(JUDGE, fingerprint="f2", **changes)
    assert state_of(memory, changed) == ("expired", reason)


def test_what_a_judge_learned_from_labels_does_not_expire_its_record(memory: SharedStorage) -> None:
    file(memory, RECORD)
    learned = msgspec.structs.replace(JUDGE, fingerprint="f1+weights", judge_fingerprint="f1")
    assert state_of(memory, learned)[0] == "calibrated"


def test_a_change_back_finds_the_older_record(memory: SharedStorage) -> None:
    file(memory, RECORD)
    file(memory, RECORD, judge_fingerprint="f2", state="failed", reasons=("no",))
    assert state_of(memory)[0] == "calibrated"
    assert state_of(memory, msgspec.structs.replace(JUDGE, fingerprint="f2"))[0] == "failed"


def test_a_record_expires_after_ninety_days(memory: SharedStorage) -> None:
    file(memory, RECORD)
    assert state_of(memory, now=datetime(2027, 1, 30, 9, tzinfo=UTC))[0] == "calibrated"
    expired = ("expired", "calibrated on 2026-11-01, more than 90 days ago")
    assert state_of(memory, now=datetime(2027, 1, 30, 11, tzinfo=UTC)) == expired


def test_the_latest_record_counts_and_labels_of_people_before_any_method(memory: SharedStorage) -> None:
    file(memory, RECORD, state="failed", reasons=("first",))
    file(memory, RECORD)
    assert state_of(memory)[0] == "calibrated"
    file(memory, RECORD, state="failed", reasons=("last",))
    file(memory, RECORD, against="exact")
    assert state_of(memory) == ("failed", "last")


def drift(storage: SharedStorage, answer: str, judge: str = "f1") -> None:
    body = msgspec.json.encode({"answer": answer, "onset": "2026-11-12T08:00:00Z"}).decode()
    put_record(storage, TrustRecord(ANCHOR_CHECK, "capitals", "quality", judge, "2026-11-15T08:00:00Z", body))


def test_a_judge_that_grades_frozen_answers_differently_has_drifted(store: SharedStorage) -> None:
    file(store, RECORD)
    for answer in ("none", "system"):
        drift(store, answer)
        assert state_of(store)[0] == "calibrated"
    drift(store, "judge", judge="f2")
    assert state_of(store)[0] == "calibrated"
    drift(store, "judge")
    assert state_of(store) == ("drifted", "its scores of frozen answers changed by 2026-11-12; calibrate it again")
    file(store, RECORD, at="2026-11-16T10:00:00Z")
    assert state_of(store)[0] == "calibrated"


def test_a_record_of_a_later_version_is_not_read(memory: SharedStorage) -> None:
    put_record(memory, TrustRecord(CALIBRATION, "capitals", "quality", "f1", "2026-11-01T10:00:00Z", '{"schema": 2}'))
    assert state_of(memory)[0] == "uncalibrated"
