"""Paired runs: a candidate's answers beside a baseline's to the same cases, and a judge's word on each pair.

Three runs come of it, each durable and resumable by itself: the baseline's answers, the candidate's, and a run that
judges the candidate's answers beside the baseline's. What is there already is not done again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from gradeline.engine.components import needs_baseline
from gradeline.engine.conclude import conclude
from gradeline.engine.definition import RunDefinition, RunOptions
from gradeline.engine.execute import Stop
from gradeline.engine.orchestrate import (
    NO_OBSERVER,
    RunObserver,
    RunOutcome,
    RunRequest,
    regrade_run,
    resume_run,
    run_suite,
)
from gradeline.engine.prepare import read_with_code
from gradeline.errors import ConfigError, Problem
from gradeline.model import Run, Storage
from gradeline.suite.read import read_suite
from gradeline.suite.spec import Suite
from gradeline.verdict import graders_of

JUDGE = "pair"
"""The column of a judge that the suite does not have."""


class Side(NamedTuple):
    """Who answers: a model that is asked now, or a run whose answers are stored (and finished where it is not)."""

    model: str | None = None
    run: str | None = None


class PairOrder(NamedTuple):
    """Whom to compare, on what, and who judges."""

    suite: Path
    baseline: Side
    candidate: Side
    choice: RunOptions = RunOptions()
    """What of the suite is asked, and how."""
    judge: str | None = None
    """A grader as YAML, used instead of those of the suite that compare."""
    name: str | None = None
    again: bool = False
    """Judge anew what the same judge has judged already."""


class Pair(NamedTuple):
    """Two runs and what a judge said of them; no judgement where they were stopped before it."""

    baseline: Run
    candidate: Run
    judged: RunOutcome | None = None
    stopped: str | None = None


async def pair_runs(storage: Storage, order: PairOrder, watcher: RunObserver = NO_OBSERVER) -> Pair:
    """Ask both sides at the same time what is not answered yet, then judge every pair."""
    overrides = _overrides(order)
    suite = await read_with_code(lambda: read_suite(order.suite, overrides))
    for warning in suite.warnings:
        watcher.warn(warning)
    keys = _comparing(suite, order)
    watcher = watcher._replace(stop=watcher.stop or Stop())
    baseline, candidate = await _answered(storage, order, overrides, watcher)
    stopped = baseline.stopped or candidate.stopped
    pair = Pair(baseline.report.run, candidate.report.run, stopped=stopped)
    if stopped is not None:
        return pair
    judged = await _judged(storage, order, pair, keys, suite, watcher)
    return pair._replace(judged=judged, stopped=judged.stopped)


def _overrides(order: PairOrder) -> tuple[str, ...]:
    given = order.choice.overrides
    return given if order.judge is None else (*given, f"graders.{JUDGE}={order.judge}")


def _comparing(suite: Suite, order: PairOrder) -> tuple[str, ...]:
    """The graders that judge the pairs."""
    if order.judge is not None:
        return (JUDGE,)
    keys = tuple(spec.key for spec in suite.graders if needs_baseline(spec))
    if not keys:
        reason = "has no grader that compares with a baseline; add one of kind pairwise, or name a judge with --judge"
        raise ConfigError(Problem(str(order.suite), reason))
    return keys


async def _answered(
    storage: Storage, order: PairOrder, overrides: tuple[str, ...], watcher: RunObserver
) -> tuple[RunOutcome, RunOutcome]:
    sides = (order.baseline, order.candidate)
    work = [_side(storage, order, side, overrides, watcher) for side in sides]
    done = await asyncio.gather(*work, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    baseline, candidate = (one for one in done if isinstance(one, RunOutcome))
    return baseline, candidate


async def _side(
    storage: Storage, order: PairOrder, side: Side, overrides: tuple[str, ...], watcher: RunObserver
) -> RunOutcome:
    try:
        if side.run is not None:
            return await _stored(storage, side.run, order.choice, watcher)
        choice = order.choice._replace(overrides=overrides, comparing=False)
        models = (side.model,) if side.model is not None else ()
        name = None if order.name is None else f"{order.name} [{side.model}]"
        ran = await run_suite(storage, RunRequest(order.suite, choice._replace(models=models), name), watcher)
        return ran.runs[0]
    except BaseException as error:
        if watcher.stop is not None:
            watcher.stop.set(str(error) or type(error).__name__)  # the other side finishes what it has in flight
        raise


async def _stored(storage: Storage, name: str, choice: RunOptions, watcher: RunObserver) -> RunOutcome:
    run = storage.find_run(name)
    if run.status == "completed" or run.definition is None:
        return RunOutcome(conclude(storage, run))
    return await resume_run(storage, run.id, choice, watcher)


async def _judged(
    storage: Storage, order: PairOrder, pair: Pair, keys: tuple[str, ...], suite: Suite, watcher: RunObserver
) -> RunOutcome:
    baselines = dict.fromkeys(keys, pair.baseline.id)
    overrides = _overrides(order)
    if suite.gate is not None and not set(graders_of(suite.gate, suite.columns)) <= set(keys):
        overrides = (*overrides, "gate=")  # it looks at graders that this run does not have
    choice = RunOptions(
        graders=keys,
        overrides=overrides,
        concurrency=order.choice.concurrency,
        budget=order.choice.budget,
        prices=order.choice.prices,
    )
    found = None if order.again else _begun(storage, pair, choice, baselines)
    if found is not None:
        return await resume_run(storage, found.id, order.choice, watcher)
    name = order.name or f"{suite.name} [{_named(pair.candidate)} against {_named(pair.baseline)}]"
    return await regrade_run(storage, pair.candidate.id, order.suite, choice, name, watcher, baselines)


def _begun(storage: Storage, pair: Pair, choice: RunOptions, baselines: dict[str, str]) -> Run | None:
    """The run that judges the same pair in the same way, where it was begun before."""
    before: str | None = None
    while runs := storage.list_runs(before=before):
        for run in runs:
            if run.id == pair.candidate.id:
                return None
            if run.parent == pair.candidate.id and run.definition is not None:
                definition = RunDefinition.of(run)
                same = definition.choice.overrides == choice.overrides and definition.choice.graders == choice.graders
                if same and definition.baselines == baselines and run.suite_digest == _digest(definition):
                    return run
        before = runs[-1].id
    return None


def _digest(definition: RunDefinition) -> str | None:
    try:
        return read_suite(Path(definition.suite), definition.choice.overrides).digest
    except ConfigError:
        return None


def _named(run: Run) -> str:
    model = run.target.get("model")
    return str(model) if model else run.name
