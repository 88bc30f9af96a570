"""Running suites whole: a run for each model, what is left of a run, or a run's answers graded anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from gradeline.engine.conclude import INTERRUPTED, RunReport, conclude, worst_of
from gradeline.engine.definition import RunDefinition, RunOptions, command, how_to_continue
from gradeline.engine.early_stopping import (
    STOP_EARLY,
    ShuffledSamples,
    early_stopping,
    include_all_cases,
    obstacle_warning,
    plan_looks,
    stops_early,
    with_seed,
)
from gradeline.engine.execute import Stop
from gradeline.engine.lifecycle import ExecutionResult, run_local
from gradeline.engine.pipeline import RunTask
from gradeline.engine.plan import ProgressCallback
from gradeline.engine.prepare import PreparedRun, prepare, read_with_code
from gradeline.errors import ConfigError, Outcome, Problem
from gradeline.model import Run, RunGrader, Sample, Storage
from gradeline.store.leases import this_process
from gradeline.store.rows import new_run_id
from gradeline.suite.clusters import cluster_warnings
from gradeline.suite.read import read_suite
from gradeline.suite.spec import Suite
from gradeline.suite.stored import stored_suite

INTERRUPTED_REASON = "interrupted"


class RunRequest(NamedTuple):
    """A suite to be run, and how."""

    suite: Path | Suite
    """A file, or what was read already."""
    choice: RunOptions = RunOptions()
    name: str | None = None
    seed: int | None = None
    failed_of: str | None = None
    """A run: its cases that did not pass are run."""
    baseline: str | None = None
    """A run that this one must not be worse than."""
    stop_early: bool = False
    """End as soon as the cases so far decide that."""
    fail_fast: bool = False
    complete: Callable[[PreparedRun], PreparedRun] = lambda prepared: prepared
    """Adds to what was made ready what stands in no file."""


class Engine(Protocol):
    """Where the cases of runs are worked on."""

    async def __call__(
        self, storage: Storage, prepared: PreparedRun, task: RunTask, stop: Stop | None = None
    ) -> ExecutionResult: ...


async def local_engine(
    storage: Storage,
    prepared: PreparedRun,  # noqa: ARG001 - all that is needed of it is in the task
    task: RunTask,
    stop: Stop | None = None,
) -> ExecutionResult:
    return await run_local(storage, task, stop)


class RunObserver(NamedTuple):
    """Who is told what happens, and may end it."""

    warn: Callable[[str], None] = lambda _: None
    progress: Callable[[PreparedRun, Run], AbstractContextManager[ProgressCallback]] = lambda *_: nullcontext(
        lambda _: None
    )
    """Called for each run; what it gives is told of each case."""
    stop: Stop | None = None
    store: str | None = None
    """The store as the caller named it, for the commands in messages."""

    @property
    def failed(self) -> bool:
        """A fault that a person must fix ended the run."""
        return self.stop is not None and self.stop.failed


NO_OBSERVER = RunObserver()
_WHOLE = RunOptions()


class RunOutcome(NamedTuple):
    """A run that was worked on."""

    report: RunReport
    stopped: str | None = None
    """Why it ended early."""

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.stopped == INTERRUPTED_REASON else self.report.exit_code

    def to_data(self) -> dict[str, Any]:
        """The run as ``--json`` prints it; ``stopped`` is the reason of one that ended early."""
        data = {**self.report.to_data(), "exit_code": self.exit_code}
        return data if self.stopped is None else {**data, "stopped": self.stopped}


class SuiteOutcome(NamedTuple):
    """What came of a suite: a run, or one for each model."""

    suite: Suite
    runs: list[RunOutcome]

    @property
    def exit_code(self) -> int:
        return worst_of([ran.exit_code for ran in self.runs])


async def run_suite(
    storage: Storage, order: RunRequest, watcher: RunObserver = NO_OBSERVER, engine: Engine = local_engine
) -> SuiteOutcome:
    """One run, or one for each model, which are a group."""
    suite = order.suite if isinstance(order.suite, Suite) else await _read(order.suite, order.choice, watcher)
    baselines: dict[str, str] = {}
    if order.baseline is not None:
        baseline = storage.find_run(order.baseline)
        suite = with_baseline_gate(suite, baseline)
        baselines = {spec.key: baseline.id for spec in suite.graders if not spec.config.get("baseline")}
    if order.stop_early:
        suite = with_early_stopping(suite)
    choice = order.choice
    if order.failed_of is not None:
        choice = choice._replace(samples=_not_passed(storage, storage.find_run(order.failed_of)))
    models: tuple[str | None, ...] = choice.models or _cached_models(choice) or suite.target.models or (None,)
    order = order._replace(choice=choice._replace(models=tuple(model for model in models if model is not None)))
    group = new_run_id() if len(models) > 1 else None
    return SuiteOutcome(suite, await _run_models(storage, suite, order, models, group, baselines, watcher, engine))


async def _run_models(
    storage: Storage,
    suite: Suite,
    order: RunRequest,
    models: Sequence[str | None],
    group: str | None,
    baselines: Mapping[str, str],
    watcher: RunObserver,
    engine: Engine,
) -> list[RunOutcome]:
    """One run for each model, until somebody ends it."""
    watcher = watcher._replace(stop=watcher.stop or Stop())
    done: list[RunOutcome] = []
    for model in models:
        async with prepare(suite, order.choice._replace(model=model), storage, baselines=baselines) as prepared:
            prepared = order.complete(prepared)
            prepared.require_cases()
            warnings = tuple(prepared.warnings())
            _pass_on(warnings, watcher)
            name = order.name or suite.name
            name = name if group is None else f"{name} [{model}]"
            new = prepared.new_run(name, seed=order.seed, group=group, warnings=warnings)
            with ExitStack() as stack:
                samples = None
                if stops_early(new):
                    new = with_seed(new)
                    samples = stack.enter_context(closing(ShuffledSamples(prepared.samples(), new.seed or 0)))
                    new = plan_looks(storage, new, samples.digests)
                    obstacle = obstacle_warning(new)
                    if obstacle is not None:
                        watcher.warn(obstacle)
                        samples = None
                run = _saved(storage, new)
                fail_fast = order.fail_fast
                done.append(
                    await _execute(storage, prepared, run, watcher, engine, fail_fast=fail_fast, samples=samples)
                )
        if done[-1].stopped == INTERRUPTED_REASON or watcher.failed:
            break
    return done


async def run_remaining_models(storage: Storage, ran: RunOutcome, watcher: RunObserver, engine: Engine) -> SuiteOutcome:
    """A run that was resumed, then those of the models of its group that were not come to."""
    run = ran.report.run
    definition = RunDefinition.of(run)
    suite, kept = suite_of_run(definition), definition.choice
    begun = {RunDefinition.of(one).choice.model for one in runs_in_group(storage, run)}
    missing = [model for model in kept.models if model not in begun]
    if run.group is None or not missing or ran.stopped == INTERRUPTED_REASON or watcher.failed:
        return SuiteOutcome(suite, [ran])
    order = RunRequest(
        suite,
        kept,
        run.name.removesuffix(f" [{kept.model}]"),
        run.seed,
        complete=lambda prepared: prepared._replace(rules=definition.rules),
    )
    others = await _run_models(storage, suite, order, missing, run.group, definition.baselines, watcher, engine)
    return SuiteOutcome(suite, [ran, *others])


def runs_in_group(storage: Storage, run: Run) -> list[Run]:
    """The runs of all models that this one is run with, the first model's first; where it is alone, that is all."""
    models = RunDefinition.of(run).choice.models
    if run.group is None or not models:
        return [run]
    found: list[Run] = []
    before: str | None = None
    while page := storage.list_runs(before=before):
        for one in page:
            if one.group == run.group:
                found.append(one)
                if RunDefinition.of(one).choice.model == models[0]:
                    return found[::-1]
        before = page[-1].id
    return found[::-1]


async def resume_run(
    storage: Storage,
    wanted: str,
    choice: RunOptions = _WHOLE,
    watcher: RunObserver = NO_OBSERVER,
    *,
    allow_changed: bool = False,
    whole: bool = False,
    engine: Engine = local_engine,
) -> RunOutcome:
    """Resume a run. Of the choice only budget, prices and concurrency may be others than they were.

    With ``whole`` a run that may end early asks all its cases, and no look decides it any more.
    """
    run = storage.find_run(wanted)
    if run.status == "running":
        raise ConfigError(Problem(run.id, f"is still running, in process {run.owner}; end that first"))
    definition = RunDefinition.of(run)
    kept = definition.choice
    suite = suite_of_run(definition)
    if suite.digest != run.suite_digest and not allow_changed:
        raise ConfigError(Problem(str(suite.file), f"changed since the run began; {_ways_out(run, watcher)}"))
    chosen = kept._replace(
        budget=choice.budget or kept.budget,
        concurrency=choice.concurrency or kept.concurrency,
        prices=choice.prices or kept.prices,
    )
    continued = include_all_cases(run) if whole else run
    asking = run.parent is None
    async with prepare(suite, chosen, storage, asking=asking, baselines=definition.baselines) as prepared:
        _pass_on(prepared.notes, watcher)
        changed = _changed(run, prepared)
        if changed and not allow_changed:
            raise ConfigError(
                Problem(run.id, f"{', '.join(changed)} changed since the run began; {_ways_out(run, watcher)}")
            )
        if continued != run:
            run = storage.update_run(run.id, early=continued.early, total=continued.total)
        if allow_changed:
            run = _as_it_is_now(storage, run, prepared, watcher, definition.document)
            if run.parent is None and definition.document is None:
                _keep_clusters(storage, run, prepared.samples())
        if definition.document is not None and asking:
            return await _execute(storage, prepared, run, watcher, engine, samples=lambda: storage.samples(run.id))
        parent = storage.get_run(run.parent) if run.parent else None
        return await _execute(storage, prepared, run, watcher, engine, parent)


async def regrade_run(
    storage: Storage,
    wanted: str,
    path: Path | None = None,
    choice: RunOptions = _WHOLE,
    name: str | None = None,
    watcher: RunObserver = NO_OBSERVER,
    baselines: Mapping[str, str] | None = None,
    engine: Engine = local_engine,
) -> RunOutcome:
    """A new run that grades a run's answers, by its suite as it is now or by another.

    ``baselines`` says by grader which runs are compared with, where that is not as it was.
    """
    parent = storage.find_run(wanted)
    definition = RunDefinition.of(parent) if parent.definition or path is None else RunDefinition("", RunOptions())
    kept = definition.choice
    overrides = choice.overrides or kept.overrides
    if path is None and definition.document is not None:
        suite = suite_of_run(definition, overrides)
    else:
        suite = await _read(path or Path(definition.suite), choice._replace(overrides=overrides), watcher)
    prices = choice.prices or kept.prices
    chosen = choice._replace(repeats=parent.repeats, model=kept.model, cached=kept.cached, prices=prices)
    compared = {**definition.baselines, **(baselines or {})}
    async with prepare(suite, chosen, storage, asking=False, baselines=compared) as prepared:
        warnings = tuple(regrade_warnings(storage, prepared, parent))
        _pass_on(warnings, watcher)
        new = prepared.new_run(name, parent=parent.id, warnings=warnings)
        # its answers are those of the parent's looks, so it is judged by them
        new = msgspec.structs.replace(new, early=parent.early)
        if path is None and definition.document is not None:
            new = msgspec.structs.replace(new, definition=prepared.definition(definition.document))
        cluster = suite.cluster
        run = _saved(storage, new)
        if cluster is not None:
            _keep_clusters(storage, run, cluster.of_cases(answered_samples(storage, parent)))
        return await _execute(storage, prepared, run, watcher, engine, parent)


def regrade_warnings(storage: Storage, prepared: PreparedRun, parent: Run) -> Iterator[str]:
    """What a person should know before a run's answers are graded again; `ConfigError` as `PreparedRun.warnings`."""
    yield from prepared.notes
    cluster = prepared.suite.cluster
    if cluster is not None:
        yield from cluster_warnings(cluster.of_cases(answered_samples(storage, parent)), cluster)


def _keep_clusters(storage: Storage, run: Run, samples: Iterable[Sample]) -> None:
    """Store the clusters of cases whose answers are stored already; others come with their answers."""
    storage.put_clusters(run.id, ((sample.case_key, sample.cluster) for sample in samples if sample.cluster))


def _saved(storage: Storage, new: Run) -> Run:
    """The run, stored as this process's: one that dies before it begins the run leaves it interrupted, not pending."""
    run = msgspec.structs.replace(new, owner=this_process())
    return msgspec.structs.replace(run, id=storage.save_run(run))


def suite_of_run(definition: RunDefinition, overrides: tuple[str, ...] | None = None) -> Suite:
    """The suite that a run is of, from its file or as the run keeps it."""
    chosen = definition.choice.overrides if overrides is None else overrides
    if definition.document is not None:
        return stored_suite(definition.document, chosen)
    return read_suite(Path(definition.suite), chosen)


async def _read(path: Path, choice: RunOptions, watcher: RunObserver) -> Suite:
    suite = await read_with_code(lambda: read_suite(path, choice.overrides))
    _pass_on(suite.warnings, watcher)
    return suite


def _pass_on(warnings: Iterable[str], watcher: RunObserver) -> None:
    for warning in warnings:
        watcher.warn(warning)


async def _execute(
    storage: Storage,
    prepared: PreparedRun,
    run: Run,
    watcher: RunObserver,
    engine: Engine,
    parent: Run | None = None,
    *,
    fail_fast: bool = False,
    samples: Callable[[], Iterator[Sample]] | None = None,
) -> RunOutcome:
    """Work on a run to its end; with a parent, only what that has answered is graded.

    ``samples`` gives the cases, where they are not the suite's.
    """
    with watcher.progress(prepared, run) as advance:
        task = prepared.task(run)._replace(on_progress=advance, fail_fast=fail_fast)
        if parent is not None:
            task = task._replace(samples=lambda: answered_samples(storage, parent), retry_failed=False, asking=False)
        elif samples is not None:
            task = task._replace(samples=samples)
        try:
            with early_stopping(storage, task, watcher.stop) as (task, stop):
                result = await engine(storage, prepared, task, stop)
        except ConfigError:
            watcher.warn(f"when this is fixed, {how_to_continue(run.id, storage, watcher.store)}")
            raise
    if not sum(result.work.values()) and result.stopped is None:
        raise ConfigError(Problem(str(prepared.suite.dataset), "holds no case to run"))
    return RunOutcome(conclude(storage, result.run), result.stopped)


def _ways_out(run: Run, watcher: RunObserver) -> str:
    regrade = command("regrade", run.id, watcher.store)
    resume = command("resume", run.id, watcher.store, "--allow-changed")
    return f"start a new run, grade the stored responses with: {regrade}, or continue all the same with: {resume}"


def _changed(run: Run, prepared: PreparedRun) -> list[str]:
    """What is not as it was when the run began: code can change where the suite's text does not."""
    now = prepared.run_graders()
    target = [] if prepared.target.fingerprint == run.target.get("fingerprint") else ["the target"]
    return target + [key for key in {**run.graders, **now} if _fingerprint(now, key) != _fingerprint(run.graders, key)]


def _fingerprint(graders: Mapping[str, RunGrader], key: str) -> str | None:
    return graders[key].fingerprint if key in graders else None


def _as_it_is_now(
    storage: Storage, run: Run, prepared: PreparedRun, watcher: RunObserver, document: dict[str, Any] | None
) -> Run:
    """The run with what it goes on with; that its answers come from two targets stays with it."""
    target, before = prepared.described_target(), run.target.get("fingerprint")
    if before not in (None, target["fingerprint"]):
        watcher.warn("the target changed; this run holds answers of both")
        target["earlier_fingerprints"] = [*run.target.get("earlier_fingerprints", []), before]
    return storage.update_run(
        run.id,
        suite_digest=prepared.suite.digest,
        graders=prepared.run_graders(),
        target=target,
        definition=prepared.definition(document),
    )


def answered_samples(storage: Storage, parent: Run) -> Iterator[Sample]:
    """The cases that a run has answers to."""
    return (record.sample for record in storage.records(parent.id) if record.repeat == 0)


def _not_passed(storage: Storage, run: Run) -> tuple[str, ...]:
    """The cases of a run that did not pass: a failed call, an error and a fail alike."""
    cases = {
        one.case: None
        for one in storage.measures(run.id)
        if one.status != "success" or any(grade.outcome is not Outcome.PASS for grade in one.grades.values())
    }
    if not cases:
        raise ConfigError(Problem("--failed-of", f"every case of {run.id} passed; there is nothing to run"))
    return tuple(cases)


def with_baseline_gate(suite: Suite, baseline: Run) -> Suite:
    """The suite with a gate that no grader is worse than in the baseline, in addition to its own."""
    given = suite.shown.get("gate")
    gate: dict[str, Any] = {"kind": "regression", "baseline": baseline.id}
    if isinstance(given, dict):
        own = given if "kind" in given else {**given, "kind": "simple"}
        gate = {"kind": "logical", "operator": "and", "conditions": [own, gate]}
    return msgspec.structs.replace(suite, shown={**suite.shown, "gate": gate})


def with_early_stopping(suite: Suite) -> Suite:
    """The suite with a gate that is decided as early as it can be; `ConfigError` where it compares with no run."""
    gate = _ending_early(suite.shown.get("gate"))
    if gate is None:
        reason = "needs a run to compare with: name one with --baseline RUN, or give the suite a regression gate"
        raise ConfigError(Problem(STOP_EARLY, reason))
    return msgspec.structs.replace(suite, shown={**suite.shown, "gate": gate})


def _ending_early(gate: object) -> dict[str, Any] | None:
    """The gate with every regression gate in it set to end early; None where there is none in it."""
    if not isinstance(gate, dict):
        return None
    if gate.get("kind") == "regression":
        return {**gate, "stop_early": True}
    conditions = gate.get("conditions")
    changed = list(map(_ending_early, conditions)) if isinstance(conditions, list) else []
    if not any(changed):
        return None
    return {**gate, "conditions": [new or old for new, old in zip(changed, conditions or (), strict=True)]}


def _cached_models(choice: RunOptions) -> tuple[str, ...]:
    if choice.cached is None:
        return ()
    from gradeline.letta.cache import models_in  # few runs read letta's results

    return tuple(models_in(Path(choice.cached)))
