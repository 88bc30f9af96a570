"""Plans the runs of a suite, of a resume and of a regrade, and executes them.

All callers take the same two steps: a planning function gives a `RunSpec`, and `execute_run` executes it.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gradeline.engine.aggregate import INTERRUPTED, RunReport, conclude, worst_of
from gradeline.engine.components import UNRESTRICTED, Access, InProcessCode
from gradeline.engine.definition import Rules, RunDefinition, RunOptions, command
from gradeline.engine.early_stopping import (
    include_all_cases,
    obstacle_warning,
    plan_looks,
    stops_early,
    with_baseline_gate,
    with_early_stopping,
    with_seed,
)
from gradeline.engine.execute import INTERRUPTED_REASON, Stop
from gradeline.engine.lifecycle import NO_OBSERVER, Engine, RunObserver, RunSpec, execute_run, local_engine
from gradeline.engine.prepare import PreparedRun, ReadSamples, prepare
from gradeline.engine.validation import read_with_code
from gradeline.engine.variants import suite_of_variant, variants_to_run
from gradeline.errors import ConfigError, Outcome, Problem
from gradeline.model import CodeVersion, Run, RunGrader, Sample, Storage, sample_digest
from gradeline.store.rows import new_run_id
from gradeline.suite.clusters import cluster_warnings
from gradeline.suite.code_version import read_code_version
from gradeline.suite.dataset_source import pinned_digest
from gradeline.suite.read import read_suite
from gradeline.suite.spec import SuiteDefinition, Variant
from gradeline.suite.stored import stored_suite

_NO_OPTIONS = RunOptions()


class RunRequest(NamedTuple):
    """A suite to run, and how."""

    suite: Path | SuiteDefinition
    options: RunOptions = _NO_OPTIONS
    name: str | None = None
    seed: int | None = None
    failed_of: str | None = None
    """Run only the cases that did not pass in this run."""
    baseline: str | None = None
    """Require that the run is not worse than this run."""
    margin: float | None = None
    """The mean loss against ``baseline`` that still counts as not worse; None: the default of gates."""
    stop_early: bool = False
    """End as soon as the comparison with the baseline is decided."""
    fail_fast: bool = False
    in_process: InProcessCode | None = None
    """Functions and graders of a suite written in Python."""
    document: dict[str, Any] | None = None
    """The suite as data, to be stored with its runs, if it has no file."""
    samples: Sequence[Sample] | None = None
    """The cases, if they are not in the suite."""
    code_version: CodeVersion | None = None
    """The commit to store with the run; None: that of the suite's folder, if it is in a repository."""


class RunOutcome(NamedTuple):
    """The report of an executed run."""

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
    """The outcome of a suite: one run, or one for each variant."""

    suite: SuiteDefinition
    runs: list[RunOutcome]

    @property
    def exit_code(self) -> int:
        return worst_of([ran.exit_code for ran in self.runs])


@asynccontextmanager
async def plan_runs(
    storage: Storage, request: RunRequest, observer: RunObserver = NO_OBSERVER, access: Access = UNRESTRICTED
) -> AsyncIterator[list[RunSpec]]:
    """The runs of a suite: one, or one for each variant, as a group. Nothing is stored and nothing is called.

    A context manager, because planning has to load user code and to open the target (`prepare` says why): a run that
    is executed inside the block uses them, and for any other run they are closed at its end.
    """
    suite, options = request.suite, request.options
    if not isinstance(suite, SuiteDefinition):
        suite = await _read(suite, options, observer)
    baselines: dict[str, str] = {}
    if request.baseline is not None:
        baseline = storage.find_run(request.baseline, suite.name)
        suite = with_baseline_gate(suite, baseline, request.margin)
        baselines = {spec.key: baseline.id for spec in suite.graders if not spec.config.get("baseline")}
    if request.stop_early:
        suite = with_early_stopping(suite)
    if request.code_version is None and request.document is None:
        request = request._replace(code_version=await to_thread(read_code_version, suite.folder))
    if request.failed_of is not None:
        options = options._replace(samples=_not_passed(storage, storage.find_run(request.failed_of, suite.name)))
    variants = variants_to_run(suite, options)
    options = options._replace(variants=tuple(one.name for one in variants if one.name is not None))
    request = request._replace(suite=suite, options=options)
    group = new_run_id() if len(variants) > 1 else None
    async with _plan_variants(storage, suite, request, variants, group, baselines, observer, access) as specs:
        yield specs


@asynccontextmanager
async def _plan_variants(
    storage: Storage,
    suite: SuiteDefinition,
    request: RunRequest,
    variants: Sequence[Variant],
    group: str | None,
    baselines: Mapping[str, str],
    observer: RunObserver,
    access: Access = UNRESTRICTED,
    rules: Rules | None = None,
) -> AsyncIterator[list[RunSpec]]:
    """A new run for each variant; ``rules`` override those of the suite."""
    access = access._replace(note=observer.note)
    async with AsyncExitStack() as stack:
        specs: list[RunSpec] = []
        for variant in variants:
            resources = await stack.enter_async_context(AsyncExitStack())
            preparing = prepare(
                suite.with_variant(variant),
                request.options._replace(variant=variant.name),
                storage,
                baselines=baselines,
                access=access,
                in_process=request.in_process,
                loaded_code=[spec.prepared.code for spec in specs],
            )
            prepared = await resources.enter_async_context(preparing)
            if rules is not None:
                prepared = prepared._replace(rules=rules)
            name = request.name or suite.name
            name = name if group is None else f"{name} [{variant.name}]"
            run, samples = _new_run(storage, prepared, request, name, group, observer)
            specs.append(RunSpec(run, prepared, resources, samples=samples, fail_fast=request.fail_fast))
        yield specs


def _new_run(
    storage: Storage, prepared: PreparedRun, request: RunRequest, name: str, group: str | None, observer: RunObserver
) -> tuple[Run, ReadSamples | None]:
    """The row of a new run, and what reads its cases if they are not in the dataset."""
    samples: ReadSamples | None = None
    if request.samples is None:
        prepared.require_cases()
    else:
        rows = request.samples
        samples = lambda: rows  # noqa: E731
    warnings = tuple(prepared.warnings(samples))
    observer.warn_all(warnings)
    document = request.document
    if document is not None and (request.baseline is not None or request.stop_early):
        document = {**document, "gate": prepared.suite.shown["gate"]}
    new = prepared.new_run(name, seed=request.seed, group=group, warnings=warnings, document=document)
    total = None if request.samples is None else len(request.samples) * new.repeats
    run = msgspec.structs.replace(new, id=new_run_id(), total=total, code_version=request.code_version)
    if stops_early(run):
        digests = {sample.case_key: sample_digest(sample) for sample in (samples or prepared.samples)()}
        run = plan_looks(storage, with_seed(run), digests)
        obstacle = obstacle_warning(run)
        if obstacle is not None:
            observer.warn(obstacle)
    return run, samples


@asynccontextmanager
async def plan_stored_run(
    storage: Storage,
    run: Run,
    suite: SuiteDefinition,
    options: RunOptions,
    access: Access = UNRESTRICTED,
    *,
    retry_failed: bool = True,
) -> AsyncIterator[RunSpec]:
    """What is missing of a stored run, whose suite and options may have changed."""
    definition = RunDefinition.of(run)
    parent = storage.get_run(run.parent) if run.parent else None
    samples: ReadSamples | None = None
    if parent is not None:
        regraded = parent
        samples = lambda: answered_samples(storage, regraded)  # noqa: E731
    elif definition.document is not None:
        samples = lambda: storage.samples(run.id)  # noqa: E731
    calls_agent, baselines = run.parent is None, definition.baselines
    suite = suite_of_variant(suite, definition.options, required=calls_agent)
    async with AsyncExitStack() as resources:
        preparing = prepare(
            suite,
            options,
            storage,
            calls_agent=calls_agent,
            baselines=baselines,
            access=access,
            calibrations=definition.calibrations,
        )
        prepared = await resources.enter_async_context(preparing)
        yield RunSpec(run, prepared, resources, is_stored=True, samples=samples, retry_failed=retry_failed)


@asynccontextmanager
async def plan_resume(
    storage: Storage,
    name: str,
    options: RunOptions = _NO_OPTIONS,
    observer: RunObserver = NO_OBSERVER,
    *,
    allow_changed: bool = False,
    all_cases: bool = False,
) -> AsyncIterator[RunSpec]:
    """What is missing of a run that was stopped. Of the options only budget, prices and concurrency are used.

    ``all_cases`` also runs the cases that an early stop left out; no look decides the run any more.
    """
    run = storage.find_run(name)
    if run.status == "running":
        raise ConfigError(Problem(run.id, f"is still running, in process {run.owner}; end that first"))
    definition = RunDefinition.of(run)
    stored = definition.options
    suite = suite_of_run(definition)
    if suite.digest != run.suite_digest and not allow_changed:
        raise ConfigError(Problem(str(suite.file), f"changed since the run began; {_ways_out(run, observer)}"))
    merged = stored._replace(
        budget=options.budget or stored.budget,
        concurrency=options.concurrency or stored.concurrency,
        prices=options.prices or stored.prices,
    )
    changes: dict[str, Any] = {}
    if all_cases:
        whole = include_all_cases(run)
        changes = {} if whole == run else {"early": whole.early, "total": whole.total}
    async with plan_stored_run(storage, run, suite, merged, UNRESTRICTED._replace(note=observer.note)) as spec:
        prepared = spec.prepared
        observer.warn_all(prepared.notes)
        changed = _changed(run, prepared)
        if changed and not allow_changed:
            raise ConfigError(
                Problem(run.id, f"{', '.join(changed)} changed since the run began; {_ways_out(run, observer)}")
            )
        if allow_changed:
            changes |= _current_state(run, prepared, observer, definition.document)
            if run.parent is None and definition.document is None:
                spec = spec._replace(clustered=prepared.samples)
        yield spec._replace(changes=changes)


@asynccontextmanager
async def plan_regrade(
    storage: Storage,
    parent: Run,
    suite: SuiteDefinition,
    options: RunOptions,
    name: str | None = None,
    observer: RunObserver = NO_OBSERVER,
    baselines: Mapping[str, str] | None = None,
    document: dict[str, Any] | None = None,
    access: Access = UNRESTRICTED,
) -> AsyncIterator[RunSpec]:
    """A new run that grades the stored responses of another; the agent is not called.

    ``baselines`` are the runs to compare with, by grader. ``document`` is the suite as data, if it has no file.
    """

    def samples() -> Iterator[Sample]:
        return answered_samples(storage, parent)

    suite = suite_of_variant(suite, options, required=False)
    async with AsyncExitStack() as resources:
        preparing = prepare(suite, options, storage, calls_agent=False, baselines=baselines, access=access)
        prepared = await resources.enter_async_context(preparing)
        cluster = suite.cluster
        warnings = list(prepared.notes)
        if cluster is not None:
            warnings += cluster_warnings(cluster.with_clusters(samples()), cluster)
        observer.warn_all(warnings)
        new = prepared.new_run(name, parent=parent.id, warnings=warnings, document=document)
        # its responses are those of the parent's target, and of the parent's looks, so these decide it too
        target = parent.target or new.target
        kept = {"variant": parent.variant, "early": parent.early, "code_version": parent.code_version}
        run = msgspec.structs.replace(new, id=new_run_id(), target=target, **kept)
        clustered = None if cluster is None else lambda: cluster.with_clusters(samples())
        yield RunSpec(run, prepared, resources, samples=samples, clustered=clustered)


async def _execute_and_report(storage: Storage, spec: RunSpec, observer: RunObserver, engine: Engine) -> RunOutcome:
    result = await execute_run(storage, spec, None, observer, engine)
    if not sum(result.work.values()) and result.stopped is None:
        raise ConfigError(Problem(str(spec.prepared.suite.dataset), "holds no case to run"))
    return RunOutcome(conclude(storage, result.run), result.stopped)


async def _execute_all(
    storage: Storage, specs: Sequence[RunSpec], observer: RunObserver, engine: Engine
) -> list[RunOutcome]:
    """Execute the runs one after the other, until one is interrupted or fails."""
    observer = observer._replace(stop=observer.stop or Stop())
    done: list[RunOutcome] = []
    for spec in specs:
        done.append(await _execute_and_report(storage, spec, observer, engine))
        if done[-1].stopped == INTERRUPTED_REASON or observer.failed:
            break
    return done


async def run_suite(
    storage: Storage, request: RunRequest, observer: RunObserver = NO_OBSERVER, engine: Engine = local_engine
) -> SuiteOutcome:
    """Plan and execute the runs of a suite."""
    async with plan_runs(storage, request, observer) as specs:
        return SuiteOutcome(specs[0].prepared.suite, await _execute_all(storage, specs, observer, engine))


async def resume_run(
    storage: Storage,
    name: str,
    options: RunOptions = _NO_OPTIONS,
    observer: RunObserver = NO_OBSERVER,
    *,
    allow_changed: bool = False,
    all_cases: bool = False,
    engine: Engine = local_engine,
) -> RunOutcome:
    """Plan and execute what is missing of a run."""
    async with plan_resume(storage, name, options, observer, allow_changed=allow_changed, all_cases=all_cases) as spec:
        return await _execute_and_report(storage, spec, observer, engine)


async def run_remaining_variants(
    storage: Storage, resumed: RunOutcome, observer: RunObserver, engine: Engine
) -> SuiteOutcome:
    """The run that was resumed, then new runs of the variants of its group that were not reached."""
    run = resumed.report.run
    definition = RunDefinition.of(run)
    suite, options = suite_of_run(definition), definition.options
    begun = {RunDefinition.of(one).options.own_variant for one in runs_in_group(storage, run)}
    missing = tuple(name for name in options.group_variants if name not in begun)
    if run.group is None or not missing or resumed.stopped == INTERRUPTED_REASON or observer.failed:
        return SuiteOutcome(suite, [resumed])
    variants = variants_to_run(suite, options._replace(variants=missing))
    request = RunRequest(suite, options, run.name.removesuffix(f" [{options.own_variant}]"), run.seed)
    async with _plan_variants(
        storage, suite, request, variants, run.group, definition.baselines, observer, rules=definition.rules
    ) as specs:
        return SuiteOutcome(suite, [resumed, *await _execute_all(storage, specs, observer, engine)])


def runs_in_group(storage: Storage, run: Run) -> list[Run]:
    """All runs of the run's group, that of the first variant first; only the run itself if it has no group."""
    variants = RunDefinition.of(run).options.group_variants
    if run.group is None or not variants:
        return [run]
    found: list[Run] = []
    before: str | None = None
    while page := storage.list_runs(before=before):
        for one in page:
            if one.group == run.group:
                found.append(one)
                if RunDefinition.of(one).options.own_variant == variants[0]:
                    return found[::-1]
        before = page[-1].id
    return found[::-1]


async def regrade_run(
    storage: Storage,
    parent_name: str,
    path: Path | None = None,
    options: RunOptions = _NO_OPTIONS,
    name: str | None = None,
    observer: RunObserver = NO_OBSERVER,
    baselines: Mapping[str, str] | None = None,
    engine: Engine = local_engine,
) -> RunOutcome:
    """Plan and execute a run that grades the responses of another, by its suite as it is now or by that at ``path``."""
    parent = storage.find_run(parent_name)
    definition = RunDefinition.of(parent) if parent.definition or path is None else RunDefinition("", RunOptions())
    stored = definition.options
    overrides = options.overrides or stored.overrides
    document = definition.document if path is None else None
    if document is not None:
        suite = suite_of_run(definition, overrides)
    else:
        suite = await _read(path or definition.suite_file, options._replace(overrides=overrides), observer)
    prices = options.prices or stored.prices
    merged = options._replace(
        repeats=parent.repeats,
        models=stored.chosen_models,
        variant=stored.own_variant,
        cached=stored.cached,
        prices=prices,
    )
    compared = {**definition.baselines, **(baselines or {})}
    async with plan_regrade(storage, parent, suite, merged, name, observer, compared, document) as spec:
        return await _execute_and_report(storage, spec, observer, engine)


def suite_of_run(definition: RunDefinition, overrides: tuple[str, ...] | None = None) -> SuiteDefinition:
    """The suite of a run, from its file or from the document that the run stores."""
    chosen = definition.options.overrides if overrides is None else overrides
    if definition.document is not None:
        return stored_suite(definition.document, chosen)
    suite = read_suite(definition.suite_file, chosen)
    source = msgspec.structs.replace(suite.dataset.pinned(definition.revisions), ids=definition.case_ids)
    return msgspec.structs.replace(suite, dataset=source, digest=pinned_digest(suite.digest, definition.revisions))


async def _read(path: Path, options: RunOptions, observer: RunObserver) -> SuiteDefinition:
    suite = await read_with_code(lambda: read_suite(path, options.overrides))
    observer.warn_all(suite.warnings)
    return suite


def _ways_out(run: Run, observer: RunObserver) -> str:
    regrade = command("regrade", run.id, observer.store)
    resume = command("resume", run.id, observer.store, "--allow-changed")
    return f"start a new run, grade the stored responses with: {regrade}, or continue all the same with: {resume}"


def _changed(run: Run, prepared: PreparedRun) -> list[str]:
    """What differs from the begin of the run: code can change although the text of the suite does not."""
    now = prepared.run_graders()
    target = [] if prepared.target.fingerprint == run.target.get("fingerprint") else ["the target"]
    return target + [key for key in {**run.graders, **now} if _fingerprint(now, key) != _fingerprint(run.graders, key)]


def _fingerprint(graders: Mapping[str, RunGrader], key: str) -> str | None:
    return graders[key].fingerprint if key in graders else None


def _current_state(
    run: Run, prepared: PreparedRun, observer: RunObserver, document: dict[str, Any] | None
) -> dict[str, Any]:
    """The fields of a run that continues with a changed suite; it keeps the fingerprints of its earlier targets."""
    target, before = prepared.described_target(), run.target.get("fingerprint")
    if before not in (None, target["fingerprint"]):
        observer.warn("the target changed; this run has responses of both")
        target["earlier_fingerprints"] = [*run.target.get("earlier_fingerprints", []), before]
    return {
        "suite_digest": prepared.suite.digest,
        "graders": prepared.run_graders(),
        "target": target,
        "definition": prepared.definition(document),
    }


def answered_samples(storage: Storage, parent: Run) -> Iterator[Sample]:
    """The cases of a run that have a stored response."""
    return (record.sample for record in storage.records(parent.id) if record.repeat == 0)


def _not_passed(storage: Storage, run: Run) -> tuple[str, ...]:
    """The cases of a run that did not pass: failed calls, errors and fails."""
    cases = {
        one.case: None
        for one in storage.measures(run.id)
        if one.status != "success" or any(grade.outcome is not Outcome.PASS for grade in one.grades.values())
    }
    if not cases:
        raise ConfigError(Problem("--failed-of", f"every case of {run.id} passed; there is nothing to run"))
    return tuple(cases)
