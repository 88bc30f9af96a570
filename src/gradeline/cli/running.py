"""Running suites: what the commands of `gradeline.cli.runs` do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import click

from gradeline.cli import progress
from gradeline.cli.garbage import look_seldom
from gradeline.cli.settings import Settings
from gradeline.cli.summary import print_quietly, print_report
from gradeline.cli.terminal import say
from gradeline.engine import suites
from gradeline.engine.conclude import conclude, worst_of
from gradeline.engine.prepare import Choice, Definition, prepare
from gradeline.engine.stop import Stop
from gradeline.engine.suites import STOPPED_BY_HAND, Engine, Order, Ran, SuiteRan, Watcher, in_this_process
from gradeline.errors import ConfigError, Problem
from gradeline.model import Run, Storage
from gradeline.suite.places import PlacedError
from gradeline.suite.read import read_suite

_ENDING = (signal.SIGINT, signal.SIGTERM)


async def check_suite(path: Path, warnings: list[str], overrides: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Everything that is wrong with a suite, found without calling its agent."""
    try:
        suite = read_suite(path, overrides)
        warnings.extend(suite.warnings)
        async with prepare(suite, Choice(model=next(iter(suite.target.models), None)), set_up=False) as prepared:
            prepared.require_cases()
            for _ in prepared.samples():
                pass
    except PlacedError as error:
        return [problem._asdict() for problem in error.placed]
    except ConfigError as error:
        unplaced = {"file": str(path), "line": 0, "column": 0}
        return [{**unplaced, **problem._asdict()} for problem in error.problems]
    return []


async def run_suite(settings: Settings, storage: Storage, order: Order, engine: Engine = in_this_process) -> int:
    """One run, or one for each model; what they come to is printed."""
    output = order.choice.output
    if output is not None:
        try:
            Path(output).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(Problem("--output", f"{output} cannot be made a folder: {error.strerror}")) from None
    done = await suites.run_suite(storage, order, watcher(settings), engine)
    _write_output(storage, done)
    return print_runs(settings, storage, done.runs)


async def resume_run(
    settings: Settings, storage: Storage, wanted: str, choice: Choice, allow_changed: bool, engine: Engine
) -> int:
    watching = watcher(settings)
    ran = await suites.resume_run(storage, wanted, choice, watching, allow_changed=allow_changed, engine=engine)
    done = await suites.with_other_models(storage, ran, watching, engine)
    _write_output(storage, done)
    return print_runs(settings, storage, done.runs)


def _write_output(storage: Storage, done: SuiteRan) -> None:
    """Letta's result files of all runs of the group, where they are wanted."""
    run = done.runs[0].report.run
    folder = Definition.of(run).choice.output or done.suite.output
    if folder is None:
        return
    from gradeline.report.letta_layout import LettaRun, write_letta_layout  # few runs write letta's results

    known = {ran.report.run.id: ran.report for ran in done.runs}
    reports = [known.get(one.id) or conclude(storage, one) for one in suites.group_of(storage, run)]
    write_letta_layout(Path(folder), [LettaRun.of(report, done.suite.masked) for report in reports])


async def regrade_run(
    settings: Settings,
    storage: Storage,
    wanted: str,
    path: Path | None,
    choice: Choice,
    name: str | None,
    engine: Engine,
) -> int:
    ran = await suites.regrade_run(storage, wanted, path, choice, name, watcher(settings), engine=engine)
    return print_runs(settings, storage, [ran])


async def demo_runs(settings: Settings, storage: Storage) -> tuple[Run, Run]:
    """The demo agent as two models."""
    from importlib.resources import files

    from gradeline.demo.agent import DemoAgent  # a server, for the demo alone

    suite = Path(str(files("gradeline.demo"))) / "agent_suite.yaml"
    async with DemoAgent() as agent:
        choice = Choice(overrides=(f"target.url={agent.url}/evaluate",))
        done = await suites.run_suite(storage, Order(suite, choice), watcher(settings))
    print_runs(settings, storage, done.runs)
    small, large = (ran.report.run for ran in done.runs)
    return small, large


def watcher(settings: Settings, *, together: bool = False) -> Watcher:
    """Shows how far runs are and listens to Ctrl-C; ``together`` is for runs that go on at the same time."""
    look_seldom()
    stop = Stop()
    _listen(stop)
    display = progress.SharedProgress(settings) if together else partial(progress.shown, settings)
    return Watcher(
        lambda warning: say(f"warning: {warning}"),
        lambda prepared, run: display(lambda: prepared.expected(run)),
        stop,
    )


def print_runs(settings: Settings, storage: Storage, done: list[Ran], **beside: str) -> int:
    """Everything that was run, and the exit code of all of it; JSON also says what stands ``beside``."""
    code = worst_of([ran.exit_code for ran in done])
    if os.environ.get("GITHUB_STEP_SUMMARY"):
        from gradeline.report.markdown import append_step_summary, markdown  # where somebody reads it

        for ran in done:
            append_step_summary(markdown(ran.report))
    for ran in done:
        if ran.stopped is not None:
            click.echo(f"{ran.stopped}; go on with: gradeline resume {ran.report.run.id}", err=True)
    if settings.json:
        shown = [{**ran.report.to_data(), "exit_code": ran.exit_code} for ran in done]
        data = shown[0] if len(done) == 1 else {"runs": shown, "exit_code": code}
        click.echo(json.dumps({**data, **beside}, ensure_ascii=False))
        return code
    for ran in done:
        if settings.quiet:
            print_quietly(ran.report)
        else:
            print_report(settings, ran.report, storage)
    return code


def _listen(stop: Stop) -> None:
    """The first Ctrl-C (or a polite kill) finishes what is in flight, the second ends at once."""
    loop = asyncio.get_running_loop()

    def interrupted(sent: signal.Signals) -> None:
        if stop.reason is not None:
            loop.remove_signal_handler(sent)
            os.kill(os.getpid(), sent)
            return
        stop.set(STOPPED_BY_HAND)
        say("finishing what is in flight; again to end at once")

    for one in _ENDING:
        loop.add_signal_handler(one, interrupted, one)


def show_run(settings: Settings, storage: Storage, found: Run) -> int:
    """Print what a stored run comes to; the exit code is that of its verdict."""
    return print_runs(settings, storage, [Ran(conclude(storage, found))])
