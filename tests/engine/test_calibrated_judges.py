"""Judges of a run use what they learned from labels, and keep it while the run lasts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gradeline import extractors
from gradeline.engine.calibrated_judges import CalibrationLookup, learning_notes, with_calibration
from gradeline.engine.grade import GraderUse
from gradeline.errors import ConfigError
from gradeline.graders import create
from gradeline.judges.model_judge import ModelJudge
from gradeline.judges.panel import PanelGrader
from gradeline.model.calibration import CALIBRATION, AgreementTable, Calibration
from gradeline.model.learned_judging import LabelledConfidences, PanelModel, PanelWeights
from gradeline.model.resources import Resources
from gradeline.store import InMemoryStorage, SqliteStorage
from gradeline.store.trust_records import TrustRecord, put_record
from gradeline.testing import ScriptedAdapter

RESOURCES = Resources(environment={"OPENAI_API_KEY": "none", "SECOND": "none"})
SUITE, KEY = "suite", "quality"


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SqliteStorage]:
    with SqliteStorage(tmp_path / "runs.db") as storage:
        yield storage


def use_of(pass_threshold: float | None = None, **options: Any) -> GraderUse:
    config = {"prompt": "Is it right?", "model": "m", **options}
    grader = ModelJudge(config=config, adapter=ScriptedAdapter([], "openai:m")).bind(RESOURCES)
    return GraderUse(KEY, grader, extractors.create("last_assistant"), pass_threshold)


def sure_from(confidence: float, labels: int = 60) -> LabelledConfidences:
    return LabelledConfidences(confidences=(confidence,) * labels, agreed=(True,) * labels)


def put(storage: SqliteStorage, judge: str, suite: str = SUITE, grader: str = KEY, **learned: Any) -> int:
    record = Calibration(
        suite=suite,
        grader=grader,
        question=grader,
        run="r",
        judge=("openai:m",),
        judge_fingerprint=judge,
        at="2026-11-19T10:00:00Z",
        state="calibrated",
        labels=60,
        positives=30,
        negatives=30,
        table=AgreementTable(tp=30, fp=0, fn=0, tn=30),
        missing_rate=0.0,
        **learned,
    )
    body = msgspec.json.encode(record).decode()
    return put_record(storage, TrustRecord(CALIBRATION, suite, grader, judge, record.at, body))


def threshold_of(use: GraderUse, lookup: CalibrationLookup) -> float | None:
    judge = with_calibration(use, lookup, RESOURCES).grader
    assert isinstance(judge, ModelJudge)
    assert judge.selective is not None
    return judge.selective.threshold


def test_a_judge_uses_the_latest_calibration_of_its_suite_and_grader(storage: SqliteStorage) -> None:
    use = use_of(agreement=0.9)
    put(storage, use.judge_fingerprint, selective=sure_from(0.1))
    latest = put(storage, use.judge_fingerprint, selective=sure_from(0.3))
    put(storage, use.judge_fingerprint, grader="other", selective=sure_from(0.5))
    put(storage, use.judge_fingerprint, suite="other", selective=sure_from(0.7))
    put(storage, "another judge", selective=sure_from(0.9))
    lookup = CalibrationLookup(storage, SUITE)
    assert threshold_of(use, lookup) == 0.3
    assert lookup.used == {use.judge_fingerprint: latest}


def test_a_run_keeps_the_calibration_that_it_began_with(storage: SqliteStorage) -> None:
    use = use_of(agreement=0.9)
    first = put(storage, use.judge_fingerprint, selective=sure_from(0.1))
    began = CalibrationLookup(storage, SUITE)
    before = with_calibration(use, began, RESOURCES)
    put(storage, use.judge_fingerprint, selective=sure_from(0.3))
    after = with_calibration(use, CalibrationLookup(storage, SUITE, began.used), RESOURCES)
    assert began.used == {use.judge_fingerprint: first}
    assert after.fingerprint == before.fingerprint
    assert with_calibration(use, CalibrationLookup(storage, SUITE), RESOURCES).fingerprint != before.fingerprint


def test_a_run_that_began_without_a_calibration_continues_without(storage: SqliteStorage) -> None:
    use = use_of(agreement=0.9)
    began = CalibrationLookup(storage, SUITE)
    assert threshold_of(use, began) is None
    put(storage, use.judge_fingerprint, selective=sure_from(0.3))
    assert threshold_of(use, CalibrationLookup(storage, SUITE, began.used)) is None
    assert threshold_of(use, CalibrationLookup(storage, SUITE)) == 0.3


def test_another_prompt_is_another_judge(storage: SqliteStorage) -> None:
    put(storage, use_of(agreement=0.9).judge_fingerprint, selective=sure_from(0.3))
    assert threshold_of(use_of(agreement=0.9, prompt="Is it kind?"), CalibrationLookup(storage, SUITE)) is None
    assert threshold_of(use_of(0.8, agreement=0.9), CalibrationLookup(storage, SUITE)) is None
    assert threshold_of(use_of(agreement=0.85), CalibrationLookup(storage, SUITE)) == 0.3


def test_a_second_judge_uses_its_own_calibration_in_the_same_suite(storage: SqliteStorage) -> None:
    second = ModelJudge(config={"prompt": "Is it right?", "model": "big"})
    put(storage, second.judge_fingerprint, grader="by_the_big_one", selective=sure_from(0.4))
    use = use_of(agreement=0.9, escalate={"model": "big"})
    judge = with_calibration(use, CalibrationLookup(storage, SUITE), RESOURCES).grader
    assert isinstance(judge, ModelJudge)
    assert judge.second is not None
    assert judge.second.selective is not None
    assert (judge.second.judges, judge.second.selective.threshold) == (("openai:big",), 0.4)


def test_judges_that_learn_nothing_are_left_alone(storage: SqliteStorage) -> None:
    lookup = CalibrationLookup(storage, SUITE)
    for use in (use_of(), use_of()._replace(grader=create("contains"))):
        assert with_calibration(use, lookup, RESOURCES) is use
    assert lookup.used == {}


@pytest.mark.parametrize("storage_of", [InMemoryStorage, lambda: None])
def test_without_a_database_there_are_no_calibrations(storage_of: Any) -> None:
    assert threshold_of(use_of(agreement=0.9), CalibrationLookup(storage_of(), SUITE)) is None


def test_problems_name_the_grader(storage: SqliteStorage) -> None:
    use = use_of(agreement=0.9, escalate={"model": "big", "api_key_env": "SECOND"})
    with pytest.raises(ConfigError, match=r"graders\.quality\.escalate\.api_key_env: the environment has no SECOND"):
        with_calibration(use, CalibrationLookup(storage, SUITE), Resources(environment={"OPENAI_API_KEY": "none"}))


def test_a_panel_with_weights_is_another_grader_than_one_without(storage: SqliteStorage) -> None:
    judges = [{"model": "a"}, {"model": "b"}]
    config = {"prompt": "Is it right?", "judges": judges}
    panel = PanelGrader(config={**config, "weights": "calibrated"}).bind(RESOURCES)
    use = GraderUse(KEY, panel, extractors.create("last_assistant"))
    assert panel.judge_fingerprint != PanelGrader(config=config).judge_fingerprint
    (note,) = learning_notes([use])
    assert note.startswith("quality: weights: calibrated has no effect yet, all judges count equally")
    scores = {"means": (0.5, 0.5), "deviations": (0.5, 0.5), "correlations": ((1.0, 0.0), (0.0, 1.0)), "results": 60}
    weights = msgspec.convert(
        {
            "members": ["openai:a", "openai:b"],
            "models": [PanelModel((1.0, 0.0), 0.0)],
            "scores": scores,
            "labels": 60,
            "positives": 30,
            "ridge": 1.5,
            "agreement": 0.9,
            "unweighted_agreement": 0.8,
        },
        PanelWeights,
        from_attributes=True,
    )
    put(storage, use.judge_fingerprint, panel=weights)
    learned = with_calibration(use, CalibrationLookup(storage, SUITE), RESOURCES)
    assert isinstance(learned.grader, PanelGrader)
    assert learned.grader.weighting == "learned"
    assert learned.judge_fingerprint == use.judge_fingerprint != learned.fingerprint
    assert list(learning_notes([learned])) == []
