"""Breaks where a judge drifted: in the ledger's judges and in the runs that come after."""

from __future__ import annotations

import msgspec
import pytest

from gradeline.engine.judge_breaks import breaks_before, judge_breaks
from gradeline.ledger.judged_runs import observed_judge
from gradeline.model import Run, RunGrader
from gradeline.model.anchors import ANCHOR_CHECK, AnchorCheck
from gradeline.store import SqliteStorage
from gradeline.store.trust_records import TrustRecord, put_record

JUDGE = RunGrader("pairwise", "f1", ("openai:m",), judge_id="pairwise:openai:m:f1")


def run(storage: SqliteStorage, day: int, grader: RunGrader = JUDGE) -> Run:
    new = Run(name="r", suite="s", graders={"g": grader}, started_at=f"2026-11-{day:02}T10:00:00Z", status="completed")
    found = storage.get_run(storage.save_run(new))
    assert found is not None
    return found


def look(storage: SqliteStorage, of: Run | None, day: int, answer: str = "none", onset: int | None = None) -> None:
    check = AnchorCheck(
        set="a",
        run=None if of is None else of.id,
        at=f"2026-11-{day:02}T11:00:00.000000Z",
        answer=answer,
        onset=None if onset is None else f"2026-11-{onset:02}T11:00:00.000000Z",
    )
    put_record(storage, TrustRecord(ANCHOR_CHECK, "s", "g", "f1", check.at, msgspec.json.encode(check).decode()))


@pytest.fixture
def storage(tmp_path):
    with SqliteStorage(tmp_path / "store.db") as store:
        yield store


def test_a_break_is_at_the_start_of_the_first_run_that_contributed(storage: SqliteStorage) -> None:
    runs = [run(storage, day) for day in (1, 2, 3, 4)]
    for day, one in enumerate(runs, 1):
        look(storage, one, day, *(("judge", 2) if day >= 3 else ()))
    (found,) = judge_breaks(storage, "s", "g")
    assert (found.judge_fingerprint, found.at[:16], found.found[:10]) == ("f1", "2026-11-02T10:00", "2026-11-03")
    assert [len(breaks_before([found], one, "g")) for one in runs] == [0, 1, 1, 1]


def test_the_ledger_has_another_judge_from_the_break_on(storage: SqliteStorage) -> None:
    before, after = run(storage, 1), run(storage, 3)
    other = run(storage, 4, msgspec.structs.replace(JUDGE, fingerprint="f2", judge_id="pairwise:openai:m:f2"))
    look(storage, None, 2, "judge", 2)
    assert [observed_judge(storage, one, "g") for one in (before, after, other)] == [
        "pairwise:openai:m:f1",
        "pairwise:openai:m:f1:drift1",
        "pairwise:openai:m:f2",
    ]


def test_without_a_drift_there_are_no_breaks(storage: SqliteStorage) -> None:
    look(storage, run(storage, 1), 1)
    look(storage, None, 2, "system", 1)
    assert judge_breaks(storage, "s", "g") == []
