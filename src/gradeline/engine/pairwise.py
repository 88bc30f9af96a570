"""Paired runs: a judge compares the responses of a candidate and of a baseline to the same cases.

There are three runs, each stored and resumable by itself: that of the baseline, that of the candidate, and one that
grades the candidate's responses against the baseline's. What is stored already is not done again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from gradeline.engine.aggregate import conclude
from gradeline.engine.components import needs_baseline
from gradeline.engine.definition import RunDefinition, RunOptions
from gradeline.engine.execute import Stop
from gradeline.engine.lifecycle import NO_OBSERVER, RunObserver
from gradeline.engine.orchestrate import RunOutcome, RunRequest, regrade_run, resume_run, run_suite
from gradeline.engine.validation import read_with_code
from gradeline.engine.variants import variants_to_run
from gradeline.errors import ConfigError, Problem
from gradeline.model import Run, Storage, quote
from gradeline.suite.read import read_suite
from gradeline.suite.spec import SuiteDefinition
from gradeline.verdict import graders_of

JUDGE = "pair"
"""The column of a judge that the suite does not have."""


class Side(NamedTuple):
    """A model or a variant of the suite to run, or a stored run, which is resumed if it is not complete."""

    model: str | None = None
    run: str | None = None


class PairRequest(NamedTuple):
    """The two sides to compare, the cases, and the judge."""

    suite: Path
    baseline: Side
    candidate: Side
    options: RunOptions = RunOptions()
    """Which cases of the suite are run, and how."""
    judge: str | None = None
    """A grader as YAML, used instead of the suite's pairwise graders."""
    name: str | None = None
    again: bool = False
    """Judge again although the same judge has judged this pair."""


class Pair(NamedTuple):
    """Two runs and the run that judges them; None if they were stopped before."""

    baseline: Run
    candidate: Run
    judged: RunOutcome | None = None
    stopped: str | None = None


async def pair_runs(storage: Storage, request: PairRequest, observer: RunObserver = NO_OBSERVER) -> Pair:
    """Run both sides at the same time, then judge every pair."""
    overrides = _overrides(request)
    suite = await read_with_code(lambda: read_suite(request.suite, overrides))
    for warning in suite.warnings:
        observer.warn(warning)
    keys = _comparing(suite, request)
    observer = observer._replace(stop=observer.stop or Stop())
    baseline, candidate = await _answered(storage, request, suite, overrides, observer)
    stopped = baseline.stopped or candidate.stopped
    pair = Pair(baseline.report.run, candidate.report.run, stopped=stopped)
    if stopped is not None:
        return pair
    judged = await _judged(storage, request, pair, keys, suite, observer)
    return pair._replace(judged=judged, stopped=judged.stopped)


def _overrides(request: PairRequest) -> tuple[str, ...]:
    given = request.options.overrides
    return given if request.judge is None else (*given, f"graders.{JUDGE}={request.judge}")


def _comparing(suite: SuiteDefinition, request: PairRequest) -> tuple[str, ...]:
    """The graders that judge the pairs."""
    if request.judge is not None:
        return (JUDGE,)
    keys = tuple(spec.key for spec in suite.graders if needs_baseline(spec))
    if not keys:
        reason = "has no grader that compares with a baseline; add one of kind pairwise, or name a judge with --judge"
        raise ConfigError(Problem(str(request.suite), reason))
    return keys


async def _answered(
    storage: Storage, request: PairRequest, suite: SuiteDefinition, overrides: tuple[str, ...], observer: RunObserver
) -> tuple[RunOutcome, RunOutcome]:
    options = request.options._replace(overrides=overrides, comparing=False)
    sides = (request.baseline, request.candidate)
    work = [_side(storage, request, side, _of_side(suite, side, options), observer) for side in sides]
    done = await asyncio.gather(*work, return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
    baseline, candidate = (one for one in done if isinstance(one, RunOutcome))
    return baseline, candidate


def _of_side(suite: SuiteDefinition, side: Side, options: RunOptions) -> RunOptions:
    """The options that run one side: a variant of the suite, or else a model; `ConfigError` if that is several runs."""
    if side.model is None:
        return options
    is_variant = any(one.has(side.model) for one in suite.run_variants())
    names = (side.model,)
    chosen = options._replace(variants=names) if is_variant else options._replace(models=names)
    runs = [str(one.name) for one in variants_to_run(suite, chosen)]
    if len(runs) > 1:
        reason = f"{quote(side.model)} is {len(runs)} runs: {', '.join(runs[:20])}; name one of them"
        raise ConfigError(Problem("pair", reason))
    return chosen


async def _side(
    storage: Storage, request: PairRequest, side: Side, options: RunOptions, observer: RunObserver
) -> RunOutcome:
    try:
        if side.run is not None:
            return await _stored(storage, side.run, request.options, observer)
        name = None if request.name is None else f"{request.name} [{side.model}]"
        ran = await run_suite(storage, RunRequest(request.suite, options, name), observer)
        return ran.runs[0]
    except BaseException as error:
        if observer.stop is not None:
            observer.stop.set(str(error) or type(error).__name__)  # the other side finishes its calls in flight
        raise


async def _stored(storage: Storage, name: str, options: RunOptions, observer: RunObserver) -> RunOutcome:
    run = storage.find_run(name)
    if run.status == "completed" or run.definition is None:
        return RunOutcome(conclude(storage, run))
    return await resume_run(storage, run.id, options, observer)


async def _judged(
    storage: Storage,
    request: PairRequest,
    pair: Pair,
    keys: tuple[str, ...],
    suite: SuiteDefinition,
    observer: RunObserver,
) -> RunOutcome:
    baselines = dict.fromkeys(keys, pair.baseline.id)
    overrides = _overrides(request)
    if suite.gate is not None and not set(graders_of(suite.gate, suite.columns)) <= set(keys):
        overrides = (*overrides, "gate=")  # it uses graders that this run does not have
    options = RunOptions(
        graders=keys,
        overrides=overrides,
        concurrency=request.options.concurrency,
        budget=request.options.budget,
        prices=request.options.prices,
    )
    found = None if request.again else _begun(storage, pair, options, baselines)
    if found is not None:
        return await resume_run(storage, found.id, request.options, observer)
    name = request.name or f"{suite.name} [{_named(pair.candidate)} against {_named(pair.baseline)}]"
    return await regrade_run(storage, pair.candidate.id, request.suite, options, name, observer, baselines)


def _begun(storage: Storage, pair: Pair, options: RunOptions, baselines: dict[str, str]) -> Run | None:
    """The run that judges the same pair in the same way, if there is one."""
    before: str | None = None
    while runs := storage.list_runs(before=before):
        for run in runs:
            if run.id == pair.candidate.id:
                return None
            if run.parent == pair.candidate.id and run.definition is not None:
                definition = RunDefinition.of(run)
                same = (
                    definition.options.overrides == options.overrides and definition.options.graders == options.graders
                )
                if same and definition.baselines == baselines and run.suite_digest == _digest(definition):
                    return run
        before = runs[-1].id
    return None


def _digest(definition: RunDefinition) -> str | None:
    try:
        return read_suite(definition.suite_file, definition.options.overrides).digest
    except ConfigError:
        return None


def _named(run: Run) -> str:
    name = run.variant or run.target.get("model")
    return str(name) if name else run.name
