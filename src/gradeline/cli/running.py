"""Running suites: what the commands of `gradeline.cli.runs` do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from threading import Timer, main_thread
from types import FrameType
from typing import Any

import click

from gradeline.cli import progress
from gradeline.cli.garbage import look_seldom
from gradeline.cli.settings import Settings
from gradeline.cli.summary import print_quietly, print_report
from gradeline.cli.terminal import say
from gradeline.engine import suites
from gradeline.engine.advice import how_to_continue
from gradeline.engine.conclude import conclude, worst_of
from gradeline.engine.faults import placed_problems, read_with_code
from gradeline.engine.prepare import Choice, Definition, prepare
from gradeline.engine.stop import Stop
from gradeline.engine.suites import STOPPED_BY_HAND, Engine, Order, Ran, SuiteRan, Watcher, in_this_process
from gradeline.engine.tally import Advance
from gradeline.errors import ConfigError, Problem
from gradeline.model import Run, Storage
from gradeline.suite.read import read_suite
from gradeline.suite.spec import Suite

_ENDING = (signal.SIGINT, signal.SIGTERM)
BLOCKED_S = 0.5
"""After a second Ctrl-C, how long the event loop may take to its next callback before its code is interrupted."""


async def check_suite(path: Path, warnings: list[str], overrides: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Everything that is wrong with a suite, found without calling its agent."""
    suite: Suite | None = None
    try:
        suite = await read_with_code(lambda: read_suite(path, overrides))
        warnings.extend(suite.warnings)
        async with prepare(suite, Choice(model=next(iter(suite.target.models), None)), set_up=False) as prepared:
            prepared.require_cases()
            for _ in prepared.samples():
                pass
            warnings.extend(prepared.cluster_warnings())
            warnings.extend(prepared.rubric_warnings())
            warnings.extend(prepared.notes)
    except ConfigError as error:
        found = placed_problems(error, suite)
        return [{**problem._asdict(), "file": problem.file or str(path)} for problem in found]
    return []


async def run_suite(settings: Settings, storage: Storage, order: Order, engine: Engine = in_this_process) -> int:
    """One run, or one for each model; what they come to is printed."""
    output = order.choice.output
    if output is not None:
        try:
            Path(output).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(Problem("--output", f"{output} cannot be made a folder: {error.strerror}")) from None
    done = await suites.run_suite(storage, order, watcher(settings, storage), engine)
    _write_output(storage, done)
    return print_runs(settings, storage, done.runs)


async def resume_run(
    settings: Settings,
    storage: Storage,
    wanted: str,
    choice: Choice,
    engine: Engine,
    *,
    allow_changed: bool,
    whole: bool,
) -> int:
    watching = watcher(settings, storage)
    ran = await suites.resume_run(
        storage, wanted, choice, watching, allow_changed=allow_changed, whole=whole, engine=engine
    )
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
    ran = await suites.regrade_run(storage, wanted, path, choice, name, watcher(settings, storage), engine=engine)
    return print_runs(settings, storage, [ran])


async def demo_runs(settings: Settings, storage: Storage) -> tuple[Run, Run]:
    """The demo agent as two models."""
    from importlib.resources import files

    from gradeline.demo.agent import DemoAgent  # a server, for the demo alone

    suite = Path(str(files("gradeline.demo"))) / "agent_suite.yaml"
    async with DemoAgent() as agent:
        choice = Choice(overrides=(f"target.url={agent.url}/evaluate",))
        done = await suites.run_suite(storage, Order(suite, choice), watcher(settings, storage))
    print_runs(settings, storage, done.runs)
    small, large = (ran.report.run for ran in done.runs)
    return small, large


def watcher(settings: Settings, storage: Storage, *, together: bool = False) -> Watcher:
    """Shows how far runs are and handles Ctrl-C; ``together`` is for runs that go on at the same time."""
    look_seldom()
    stop = Stop()
    interrupts = _Interrupts(stop, lambda run: how_to_continue(run, storage, settings.store))
    display = progress.SharedProgress(settings) if together else partial(progress.shown, settings)
    return Watcher(
        lambda warning: say(f"warning: {warning}"),
        lambda prepared, run: interrupts.during(run, display(lambda: prepared.expected(run))),
        stop,
        settings.store,
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
            click.echo(f"{ran.stopped}; {how_to_continue(ran.report.run.id, storage, settings.store)}", err=True)
    if settings.json:
        shown = [ran.to_data() for ran in done]
        data = shown[0] if len(done) == 1 else {"runs": shown, "exit_code": code}
        click.echo(json.dumps({**data, **beside}, ensure_ascii=False))
        return code
    for ran in done:
        if settings.quiet:
            print_quietly(ran.report)
        else:
            print_report(settings, ran.report, storage)
    return code


class _Interrupts:
    """Ctrl-C and SIGTERM while a run is under way: the first finishes what is in flight, the second ends at once.

    Before and after that nothing is in flight, and Ctrl-C ends the command. The second Ctrl-C is raised between two
    callbacks of the event loop: raised in the middle of asyncio, it would leave half-made transports behind. These are
    handlers of Python, not of the loop, so that it also ends code that blocks the loop.
    """

    def __init__(self, stop: Stop, advice: Callable[[str], str]) -> None:
        """``advice`` says how the run of an id is continued."""
        self._stop = stop
        self._advice = advice
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        """Not that of user code which a signal interrupts: the message is not part of that code's output."""
        self._advices: list[str] = []
        """How the runs that are under way are continued; a signal handler must not work that out."""
        self._received = 0
        self._blocked = Timer(BLOCKED_S, _interrupt_main_thread)
        self._blocked.daemon = True
        self._before: dict[signal.Signals, Any] = {}

    @contextmanager
    def during(self, run: Run, display: AbstractContextManager[Advance]) -> Iterator[Advance]:
        """What shows a run, with the handlers installed."""
        advice = self._advice(run.id)
        self._advices.append(advice)
        if len(self._advices) == 1:
            self._before = {one: signal.getsignal(one) for one in _ENDING}
            for one, handler in self._before.items():
                if handler is not signal.SIG_IGN:  # as under nohup
                    signal.signal(one, self._handle)
        try:
            with display as advance:
                yield advance
        finally:
            self._advices.remove(advice)
            if not self._advices:
                self._blocked.cancel()
                for one, handler in self._before.items():
                    signal.signal(one, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._received += 1
        if self._received == 1:
            self._loop.call_soon_threadsafe(self._finish, context=self._context)
        elif number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        elif self._received == 2:
            self._loop.call_soon_threadsafe(self._raise)
            self._blocked.start()
        else:
            self._raise()

    def _raise(self) -> None:
        self._blocked.cancel()
        raise KeyboardInterrupt(*self._advices)

    def _finish(self) -> None:
        self._stop.set(STOPPED_BY_HAND)
        say("finishing what is in flight; again to end at once")


def _interrupt_main_thread() -> None:
    signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)


def show_run(settings: Settings, storage: Storage, found: Run) -> int:
    """Print what a stored run comes to; the exit code is that of its verdict."""
    return print_runs(settings, storage, [Ran(conclude(storage, found))])
