"""The scores of a run as they are read column by column: the same as record by record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from gradeline.engine.comparison import RunScores, read_scores
from gradeline.errors import Fault
from gradeline.model import ErrorInfo, Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample, Storage
from gradeline.store import open_storage

KEYS = ["exact", "judge"]


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    monkeypatch.setattr("gradeline.store.sqlite_records.COLUMNS_AT_ONCE", 3)
    with open_storage("memory://" if request.param == "memory" else str(tmp_path / "store.db")) as opened:
        yield opened


def stored(storage: Storage, random: Random, *, repeats: int, spoilt: float) -> Run:
    """A run of cases in no order of their names, some calls failed and some grades missing or without a score."""
    graders = {key: RunGrader("k", "f") for key in (*KEYS, "another")}
    run = storage.get_run(storage.save_run(Run(name="r", suite="s", graders=graders, repeats=repeats)))
    assert run is not None
    for position, case in enumerate(random.sample([f"c{number}" for number in range(12)], 12)):
        for repeat in range(repeats):
            key = ResponseKey(run.id, case, repeat)
            failed = random.random() < spoilt
            error = ErrorInfo("status", "503", Fault.AGENT) if failed else None
            response = Response(status="error" if failed else "success", error=error)
            storage.put_response(key, response, Sample(case, f"question {case}"), position)
            for grader in graders:
                if random.random() >= spoilt:
                    storage.put_grade(GradeKey(*key, grader), grade(random, failed=failed))
    return run


def grade(random: Random, *, failed: bool) -> Grade:
    if failed:
        return Grade("k", "f", Outcome.SKIPPED)
    score = round(random.random(), 3)
    return Grade("k", "f", Outcome.PASS if score > 0.5 else Outcome.FAIL, score, score > 0.5)


def one_by_one(storage: Storage, run: Run) -> RunScores:
    found = RunScores([], [], {key: [] for key in KEYS})
    for measure in storage.measures(run.id, digests=True):
        if not found.cases or found.cases[-1] != measure.case:
            found.cases.append(measure.case)
            found.digests.append(measure.digest)
            for tries in found.graders.values():
                tries.append(())
        for key, tries in found.graders.items():
            score = measure.grades[key].score if key in measure.grades else None
            if score is not None or measure.status != "success":
                tries[-1] += (score,)
    return found


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("spoilt", [0.0, 0.3])
def test_all_scores_are_read_in_the_order_of_the_cases(storage: Storage, repeats: int, spoilt: float) -> None:
    run = stored(storage, Random(repeats), repeats=repeats, spoilt=spoilt)
    found, expected = read_scores(storage, run, KEYS), one_by_one(storage, run)
    assert found[:2] == expected[:2]
    for key in KEYS:  # the tries of a case are in no order
        assert [sorted(map(str, tries)) for tries in found.graders[key]] == [
            sorted(map(str, tries)) for tries in expected.graders[key]
        ]


def test_a_run_without_answers_has_no_scores(storage: Storage) -> None:
    run = storage.get_run(storage.save_run(Run(name="r", suite="s")))
    assert run is not None
    assert read_scores(storage, run, KEYS) == RunScores([], [], {key: [] for key in KEYS})
