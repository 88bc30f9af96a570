"""Two runs, compared from Python."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gradeline.api.results import RunResult
from gradeline.api.stores import OpenStore
from gradeline.engine.compare import Comparison
from gradeline.engine.compare import compare as compare_runs
from gradeline.model import GradeKey, ResponseKey, Run, Storage
from gradeline.store import InMemoryStorage
from gradeline.verdict.comparison import MARGIN


def compare(
    baseline: str | RunResult,
    candidate: str | RunResult,
    *,
    store: str | Path | Storage | None = None,
    margin: float = MARGIN,
    force: bool = False,
) -> Comparison:
    """Is the candidate better than the baseline, worse, or is it undecided? Paired by case.

    Runs are results, or named as on the command line: by id, the start of an id, name, ``latest``, ``latest~1``. A
    name is looked for in ``store``, else in the store of the other run's result, else where the command line looks.
    ``margin`` is how much worse on average is still not worse. Runs whose graders differ are not comparable, and
    not compared unless ``force`` says so.
    """
    results = [one for one in (baseline, candidate) if isinstance(one, RunResult)]
    if store is None and results:
        store = results[0].store
    opened = OpenStore(store)
    try:
        first, second = (_run(one, opened.storage) for one in (baseline, candidate))
        home = opened.storage
        if any(result.store is not home for result in results):
            home = _together(baseline, candidate, opened.storage)
        return compare_runs(home, first, second, margin=margin, force=force)
    finally:
        opened.close()


def _run(wanted: str | RunResult, storage: Storage) -> Run:
    return wanted.run if isinstance(wanted, RunResult) else storage.find_run(wanted)


def _together(baseline: str | RunResult, candidate: str | RunResult, storage: Storage) -> Storage:
    """One store with both runs, where each lies in its own."""
    both = InMemoryStorage()
    for one in (baseline, candidate):
        run = _run(one, storage)
        both.save_run(msgspec.structs.replace(run, parent=None))
        for record in one.records() if isinstance(one, RunResult) else storage.records(run.id):
            key = ResponseKey(run.id, record.case, record.repeat)
            both.put_response(key, record.response, record.sample)
            for grader, grade in record.grades.items():
                both.put_grade(GradeKey(*key, grader), grade, record.submissions.get(grader))
    return both
