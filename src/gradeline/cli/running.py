"""Running suites: what the commands of `gradeline.cli.runs` do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from gradeline.cli import progress
from gradeline.cli.settings import Settings
from gradeline.cli.summary import print_quietly, print_report
from gradeline.engine.conclude import INTERRUPTED, RunReport, conclude, worst_of
from gradeline.engine.local import run_local
from gradeline.engine.owner import is_alive
from gradeline.engine.prepare import Choice, Definition, Prepared, prepare
from gradeline.engine.stop import Stop
from gradeline.errors import ConfigError, Outcome, Problem
from gradeline.model import Run, Sample, Storage
from gradeline.store import open_storage
from gradeline.store.rows import new_id
from gradeline.suite.places import PlacedError
from gradeline.suite.read import read_suite
from gradeline.suite.spec import Suite

_INTERRUPTED = "interrupted"


class Order(NamedTuple):
    """A call of ``gradeline run``."""

    suite: Path
    choice: Choice
    models: tuple[str, ...] = ()
    name: str | None = None
    seed: int | None = None
    failed_of: str | None = None
    baseline: str | None = None
    fail_fast: bool = False
    output: Path | None = None


class Ran(NamedTuple):
    """A run that was worked on, and whether a person stopped it."""

    report: RunReport
    interrupted: bool

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.interrupted else self.report.exit_code


async def check_suite(path: Path, warnings: list[str], overrides: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Everything that is wrong with a suite, found without calling its agent."""
    try:
        suite = read_suite(path, overrides)
        warnings.extend(suite.warnings)
        async with prepare(suite, Choice(model=next(iter(suite.target.models), None))) as prepared:
            for _ in prepared.samples():
                pass
    except PlacedError as error:
        return [problem._asdict() for problem in error.placed]
    except ConfigError as error:
        unplaced = {"file": str(path), "line": 0, "column": 0}
        return [{**unplaced, **problem._asdict()} for problem in error.problems]
    return []


async def run_suite(settings: Settings, storage: Storage, order: Order) -> int:
    """One run, or one for each model in a group; what they come to is printed."""
    suite = read_suite(order.suite, order.choice.overrides)
    _warn(suite)
    if order.baseline is not None:
        suite = _against(suite, storage.find_run(order.baseline))
    choice = order.choice
    if order.failed_of is not None:
        choice = choice._replace(samples=_not_passed(storage, storage.find_run(order.failed_of)))
    models: tuple[str | None, ...] = order.models or _cached_models(choice) or suite.target.models or (None,)
    group = new_id() if len(models) > 1 else None
    stop = Stop()
    _listen(stop)
    done: list[Ran] = []
    for model in models:
        async with prepare(suite, choice._replace(model=model), storage) as prepared:
            name = order.name or suite.name
            new = prepared.new_run(name if group is None else f"{name} [{model}]", seed=order.seed, group=group)
            saved = _saved(storage, new)
            done.append(await _execute(settings, storage, prepared, saved, stop, fail_fast=order.fail_fast))
        if stop.reason == _INTERRUPTED:
            break
    folder = order.output or suite.output
    if folder is not None:
        _write_letta_layout(folder, suite, done)
    return _print(settings, storage, done)


async def resume_run(settings: Settings, storage: Storage, wanted: str, choice: Choice, allow_changed: bool) -> int:
    found = storage.find_run(wanted)
    if found.status == "running" and is_alive(found.owner):
        raise ConfigError(Problem(found.id, f"is still running, in process {found.owner}; end that first"))
    if found.status == "completed":
        click.echo(f"{found.id} is complete; calls that failed are made again", err=True)
    definition = Definition.of(found)
    kept = definition.choice
    suite = read_suite(Path(definition.suite), kept.overrides)
    if suite.digest != found.suite_digest and not allow_changed:
        raise ConfigError(Problem(str(suite.file), f"changed since the run began; {_WAYS_OUT}"))
    chosen = kept._replace(budget=choice.budget or kept.budget, concurrency=choice.concurrency or kept.concurrency)
    stop = Stop()
    _listen(stop)
    async with prepare(suite, chosen, storage) as prepared:
        changed = _changed(found, prepared)
        if changed and not allow_changed:
            raise ConfigError(Problem(found.id, f"{', '.join(changed)} changed since the run began; {_WAYS_OUT}"))
        if allow_changed:
            found = _as_it_is_now(storage, found, prepared)
        ran = await _execute(settings, storage, prepared, found, stop)
    return _print(settings, storage, [ran])


_WAYS_OUT = "run it anew, grade what was answered with: gradeline regrade, or go on as it is now with: --allow-changed"


def _changed(run: Run, prepared: Prepared) -> list[str]:
    """What is not as it was when the run began: code can change where the suite's text does not."""
    now = prepared.run_graders()
    target = [] if prepared.target.fingerprint == run.target.get("fingerprint") else ["the target"]
    return target + [key for key in run.graders.keys() | now.keys() if now.get(key) != run.graders.get(key)]


def _as_it_is_now(storage: Storage, run: Run, prepared: Prepared) -> Run:
    """The run with what it goes on with; that its answers come from two targets stays with it."""
    target, before = prepared.described_target(), run.target.get("fingerprint")
    if before not in (None, target["fingerprint"]):
        click.echo("warning: the target changed; this run holds answers of both", err=True)
        target["earlier_fingerprints"] = [*run.target.get("earlier_fingerprints", []), before]
    return storage.update_run(
        run.id,
        suite_digest=prepared.suite.digest,
        graders=prepared.run_graders(),
        target=target,
        definition=prepared.definition(),
    )


async def regrade_run(
    settings: Settings, storage: Storage, wanted: str, path: Path | None, choice: Choice, name: str | None
) -> int:
    parent = storage.find_run(wanted)
    kept = Definition.of(parent).choice if parent.definition else Choice()
    suite = read_suite(path or Path(Definition.of(parent).suite), choice.overrides or kept.overrides)
    _warn(suite)
    stop = Stop()
    _listen(stop)
    chosen = choice._replace(repeats=parent.repeats, model=kept.model, cached=kept.cached)
    async with prepare(suite, chosen, storage) as prepared:
        saved = _saved(storage, prepared.new_run(name, parent=parent.id))
        ran = await _execute(settings, storage, prepared, saved, stop, parent)
    return _print(settings, storage, [ran])


def _warn(suite: Suite) -> None:
    for warning in suite.warnings:
        click.echo(f"warning: {warning}", err=True)


def _saved(storage: Storage, new: Run) -> Run:
    return msgspec.structs.replace(new, id=storage.save_run(new))


async def _execute(
    settings: Settings,
    storage: Storage,
    prepared: Prepared,
    run: Run,
    stop: Stop,
    parent: Run | None = None,
    *,
    fail_fast: bool = False,
) -> Ran:
    """Work on a run to its end; with a parent, only what that has answered is graded."""
    with progress.shown(settings, lambda: prepared.expected(run)) as advance:
        task = prepared.task(run)._replace(on_progress=advance, fail_fast=fail_fast)
        if parent is not None:
            task = task._replace(samples=lambda: _stored_samples(storage, parent), retry_failed=False)
        result = await run_local(storage, task, stop)
    if not sum(result.work.values()) and result.stopped is None:
        raise ConfigError(Problem(str(prepared.suite.dataset), "holds no case to run"))
    if result.stopped is not None:
        click.echo(f"{result.stopped}; go on with: gradeline resume {result.run.id}", err=True)
    return Ran(conclude(storage, result.run), result.stopped == _INTERRUPTED)


def _print(settings: Settings, storage: Storage, done: list[Ran]) -> int:
    """Everything that was run, and the exit code of all of it."""
    code = worst_of([ran.exit_code for ran in done])
    if settings.json:
        shown = [{**ran.report.to_data(), "exit_code": ran.exit_code} for ran in done]
        click.echo(json.dumps(shown[0] if len(done) == 1 else {"runs": shown, "exit_code": code}, ensure_ascii=False))
        return code
    for ran in done:
        if settings.quiet:
            print_quietly(ran.report)
        else:
            print_report(settings, ran.report, storage)
    return code


def _stored_samples(storage: Storage, parent: Run) -> Iterator[Sample]:
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


def _against(suite: Suite, baseline: Run) -> Suite:
    """The suite with a gate that it is not worse than the baseline, beside its own."""
    key = suite.columns[0]
    given = suite.shown.get("gate")
    regression = {"kind": "regression", "metric_key": key, "baseline": baseline.id}
    if isinstance(given, dict):
        own = given if "kind" in given else {**given, "kind": "simple"}
        regression["metric_key"] = str(given.get("metric_key", key))
        gate: dict[str, Any] = {"kind": "logical", "operator": "and", "conditions": [own, regression]}
    else:
        gate = regression
    return msgspec.structs.replace(suite, shown={**suite.shown, "gate": gate})


def _cached_models(choice: Choice) -> tuple[str, ...]:
    if choice.cached is None:
        return ()
    from gradeline.targets.letta_cache import models_in  # few runs read letta's results

    return tuple(models_in(Path(choice.cached)))


def _write_letta_layout(folder: Path, suite: Suite, done: list[Ran]) -> None:
    from gradeline.report.letta_layout import LettaRun, write_letta_layout  # few runs write letta's results

    passed = {"pass": True, "fail": False}
    runs = [
        LettaRun(
            ran.report.run, ran.report.summary, ran.report.records, suite.shown, passed.get(ran.report.verdict.result)
        )
        for ran in done
    ]
    write_letta_layout(folder, runs)


def _listen(stop: Stop) -> None:
    """The first Ctrl-C finishes what is in flight, the second ends at once."""
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        if stop.reason is not None:
            loop.remove_signal_handler(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            return
        stop.set(_INTERRUPTED)
        click.echo("finishing what is in flight; again to end at once", err=True)

    loop.add_signal_handler(signal.SIGINT, interrupted)


def show_run(settings: Settings, storage: Storage, found: Run) -> int:
    """Print what a stored run comes to; the exit code is that of its verdict."""
    return _print(settings, storage, [Ran(conclude(storage, found), False)])


@contextmanager
def open_store(settings: Settings) -> Iterator[Storage]:
    """The store that the call names, else that of the project folder."""
    url = settings.store or os.environ.get("GRADELINE_STORE") or str(_project_folder() / ".gradeline" / "store.db")
    with open_storage(url) as storage:
        yield storage


def _project_folder() -> Path:
    """The nearest folder upwards that has a store, else this one."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".gradeline").is_dir()), here)
