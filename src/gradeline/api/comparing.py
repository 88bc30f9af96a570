"""Compare runs, follow a suite over time, and plan how many cases a decision takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import msgspec

from gradeline.analysis import sizing
from gradeline.analysis import trend as trends
from gradeline.analysis.ranking import ManyComparison, compare_many
from gradeline.analysis.sizing import POWER, Plan
from gradeline.analysis.trend import LAST, Trend
from gradeline.api.options import with_python_names
from gradeline.api.results import OpenStore, RunResult
from gradeline.api.suites import Suite, as_suite
from gradeline.engine.comparison import Comparison
from gradeline.engine.comparison import compare as compare_runs
from gradeline.errors import ConfigError
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

    Runs are results, or named as on the command line: by id, baseline, name, the start of an id, ``latest``,
    ``latest~1``. The baselines are those of the last run's suite. A name is looked up in ``store``, else in the store
    of the other run's result, else in the default store. ``margin`` is how much worse on average is still not worse.
    Runs whose graders differ are not comparable, and compared only with ``force``. Three or more runs are ranked on
    the cases that all of them have.
    """
    wanted = (baseline, candidate, *others)
    results = [one for one in wanted if isinstance(one, RunResult)]
    if store is None and results:
        store = results[0].store
    opened = OpenStore(store)
    try:
        last = _run(wanted[-1], opened.storage)
        runs = [*(_run(one, opened.storage, last.suite) for one in wanted[:-1]), last]
        together = opened.storage
        if any(result.store is not together for result in results):
            together = _in_one_store(wanted, opened.storage, last.suite)
        if others:
            return compare_many(together, runs, margin=margin, force=force)
        return compare_runs(together, *runs, margin=margin, force=force)
    finally:
        opened.close()


def _run(wanted: str | RunResult, storage: Storage, suite: str | None = None) -> Run:
    return wanted.run if isinstance(wanted, RunResult) else storage.find_run(wanted, suite)


def _in_one_store(wanted: Sequence[str | RunResult], storage: Storage, suite: str) -> Storage:
    """One store with all runs, each of which is in a store of its own."""
    together = InMemoryStorage()
    for one in wanted:
        run = _run(one, storage, suite)
        together.save_run(msgspec.structs.replace(run, parent=None))
        for record in one.records() if isinstance(one, RunResult) else storage.records(run.id):
            key = ResponseKey(run.id, record.case, record.repeat)
            together.put_response(key, record.response, record.sample)
            for grader, grade in record.grades.items():
                together.put_grade(GradeKey(*key, grader), grade, record.submissions.get(grader))
    return together


def trend(
    suite: str | Suite, *, store: str | Path | Storage | None = None, grader: str | None = None, last: int = LAST
) -> Trend:
    """The newest runs of a suite over time, the oldest first: means with intervals, costs, and what changed.

    A suite is a `Suite` or the name of one. ``grader`` is the primary one of the newest run where none is named. A new
    ``segment`` begins where the grader changed: means are comparable only within one.
    """
    opened = OpenStore(store)
    try:
        name = suite.name if isinstance(suite, Suite) else suite
        return trends.trend(opened.storage, name, grader=grader, last=last)
    finally:
        opened.close()


def plan(
    suite: str | Path | Suite | Mapping[str, Any],
    *,
    store: str | Path | Storage | None = None,
    baseline: str | None = None,
    margin: float = MARGIN,
    power: float = POWER,
    prices: Sequence[str] = (),
) -> Plan:
    """The cases, calls, tokens, money and time that a suite takes to settle a margin; nothing is called.

    How much scores vary is read from the suite's runs in the store. Without a run it is a guess: ``spread`` says so.
    ``prices`` are as in ``--assume-price``: ``"0.15/0.60"`` or ``"MODEL=0.15/0.60"``.
    """
    opened = OpenStore(store)
    try:
        read = as_suite(suite)._spec
        return sizing.plan(opened.storage, read, baseline=baseline, margin=margin, power=power, prices=prices)
    except ConfigError as error:
        raise with_python_names(error) from None
    finally:
        opened.close()
