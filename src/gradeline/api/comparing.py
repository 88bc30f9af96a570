"""Runs compared from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import overload

import msgspec

from gradeline.api.results import RunResult
from gradeline.api.stores import OpenStore
from gradeline.engine.comparison import Comparison
from gradeline.engine.comparison import compare as compare_runs
from gradeline.engine.ranking import ManyComparison, compare_many
from gradeline.model import GradeKey, ResponseKey, Run, Storage
from gradeline.store import InMemoryStorage
from gradeline.verdict.paired_decision import MARGIN


@overload
def compare(
    baseline: str | RunResult,
    candidate: str | RunResult,
    *,
    store: str | Path | Storage | None = None,
    margin: float = MARGIN,
    force: bool = False,
) -> Comparison: ...


@overload
def compare(
    baseline: str | RunResult,
    candidate: str | RunResult,
    third: str | RunResult,
    /,
    *others: str | RunResult,
    store: str | Path | Storage | None = None,
    margin: float = MARGIN,
    force: bool = False,
) -> ManyComparison: ...


def compare(
    baseline: str | RunResult,
    candidate: str | RunResult,
    *others: str | RunResult,
    store: str | Path | Storage | None = None,
    margin: float = MARGIN,
    force: bool = False,
) -> Comparison | ManyComparison:
    """Is the candidate better than the baseline, worse, or is it undecided? Paired by case.

    Runs are results, or named as on the command line: by id, the start of an id, name, ``latest``, ``latest~1``. A
    name is looked for in ``store``, else in the store of the other run's result, else where the command line looks.
    ``margin`` is how much worse on average is still not worse. Runs whose graders differ are not comparable, and
    not compared unless ``force`` says so. Three or more runs are ranked on the cases that all of them have.
    """
    wanted = (baseline, candidate, *others)
    results = [one for one in wanted if isinstance(one, RunResult)]
    if store is None and results:
        store = results[0].store
    opened = OpenStore(store)
    try:
        runs = [_run(one, opened.storage) for one in wanted]
        home = opened.storage
        if any(result.store is not home for result in results):
            home = _together(wanted, opened.storage)
        if others:
            return compare_many(home, runs, margin=margin, force=force)
        return compare_runs(home, *runs, margin=margin, force=force)
    finally:
        opened.close()


def _run(wanted: str | RunResult, storage: Storage) -> Run:
    return wanted.run if isinstance(wanted, RunResult) else storage.find_run(wanted)


def _together(wanted: Sequence[str | RunResult], storage: Storage) -> Storage:
    """One store with all runs, where each lies in its own."""
    home = InMemoryStorage()
    for one in wanted:
        run = _run(one, storage)
        home.save_run(msgspec.structs.replace(run, parent=None))
        for record in one.records() if isinstance(one, RunResult) else storage.records(run.id):
            key = ResponseKey(run.id, record.case, record.repeat)
            home.put_response(key, record.response, record.sample)
            for grader, grade in record.grades.items():
                home.put_grade(GradeKey(*key, grader), grade, record.submissions.get(grader))
    return home
