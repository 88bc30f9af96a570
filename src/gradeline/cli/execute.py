"""Runs a suite in the terminal: progress, Ctrl-C, and the report at the end."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from threading import Timer, main_thread
from types import FrameType
from typing import Any

import click

from gradeline.cli import progress
from gradeline.cli.options import CliSettings
from gradeline.cli.show import print_report
from gradeline.cli.stores import open_store
from gradeline.cli.terminal import print_message
from gradeline.engine import orchestrate
from gradeline.engine.aggregate import conclude, worst_of
from gradeline.engine.components import Access
from gradeline.engine.definition import RunDefinition, RunOptions, how_to_continue
from gradeline.engine.execute import INTERRUPTED_REASON, Stop
from gradeline.engine.lifecycle import Engine, RunObserver, local_engine
from gradeline.engine.orchestrate import RunOutcome, RunRequest, SuiteOutcome
from gradeline.engine.plan import ProgressCallback
from gradeline.engine.validation import placed_problems, read_with_code
from gradeline.engine.variants import check_variants
from gradeline.errors import ConfigError, Problem, StoreError
from gradeline.model import Run, Storage
from gradeline.suite.read import read_suite
from gradeline.suite.spec import SuiteDefinition

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
BLOCKED_S = 0.5
"""Seconds after a second Ctrl-C until code that blocks the event loop is interrupted."""


async def check_suite(
    settings: CliSettings, path: Path, warnings: list[str], overrides: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """All problems of a suite, found without calling its agent."""
    try:
        suite = await read_with_code(lambda: read_suite(path, overrides))
        warnings.extend(suite.warnings)
        with _calibration_store(settings, suite) as storage:
            checked = await check_variants(suite, access=Access(note=print_message), calibration_store=storage)
        warnings.extend(checked.warnings)
        found = checked.problems
    except ConfigError as error:
        found = placed_problems(error, None)
    return [{**problem._asdict(), "file": problem.file or str(path)} for problem in found]


@contextmanager
def _calibration_store(settings: CliSettings, suite: SuiteDefinition) -> Iterator[Storage | None]:
    """The store, if a judge of the suite uses what it learned from labels; None if there is no store yet."""
    if not any("agreement" in spec.config or "weights" in spec.config for spec in suite.graders):
        yield None
        return
    with ExitStack() as stack:
        storage: Storage | None = None
        with suppress(StoreError):
            storage = stack.enter_context(open_store(settings, "read"))
        yield storage


async def run_suite(settings: CliSettings, storage: Storage, request: RunRequest, engine: Engine = local_engine) -> int:
    """Run a suite, once per variant, and print the reports; returns the exit code."""
    output = request.options.output
    if output is not None:
        try:
            Path(output).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(Problem("--output", f"cannot create the folder {output}: {error.strerror}")) from None
    done = await orchestrate.run_suite(storage, request, observer(settings, storage), engine)
    _write_output(storage, done)
    return print_runs(settings, storage, done.runs)


async def resume_run(
    settings: CliSettings,
    storage: Storage,
    run_name: str,
    options: RunOptions,
    engine: Engine,
    *,
    allow_changed: bool,
    all_cases: bool,
) -> int:
    observing = observer(settings, storage)
    ran = await orchestrate.resume_run(
        storage, run_name, options, observing, allow_changed=allow_changed, all_cases=all_cases, engine=engine
    )
    done = await orchestrate.run_remaining_variants(storage, ran, observing, engine)
    _write_output(storage, done)
    return print_runs(settings, storage, done.runs)


def _write_output(storage: Storage, done: SuiteOutcome) -> None:
    """Write letta-evals result files of all runs of the group, if the run or the suite names a folder."""
    run = done.runs[0].report.run
    folder = RunDefinition.of(run).options.output or done.suite.output
    if folder is None:
        return
    from gradeline.letta.result_files import LettaRun, write_letta_layout  # few runs need it

    known = {ran.report.run.id: ran.report for ran in done.runs}
    reports = [known.get(one.id) or conclude(storage, one) for one in orchestrate.runs_in_group(storage, run)]
    write_letta_layout(Path(folder), [LettaRun.of(report, done.suite.masked) for report in reports])


async def regrade_run(
    settings: CliSettings,
    storage: Storage,
    run_name: str,
    path: Path | None,
    options: RunOptions,
    name: str | None,
    engine: Engine,
) -> int:
    ran = await orchestrate.regrade_run(
        storage, run_name, path, options, name, observer(settings, storage), engine=engine
    )
    return print_runs(settings, storage, [ran])


async def demo_runs(settings: CliSettings, storage: Storage) -> tuple[Run, Run]:
    """Run the demo suite with two models."""
    from importlib.resources import files

    from gradeline.demo.agent import DemoAgent  # a server, only for the demo

    suite = Path(str(files("gradeline.demo"))) / "agent_suite.yaml"
    async with DemoAgent() as agent:
        options = RunOptions(overrides=(f"target.url={agent.url}/evaluate",))
        done = await orchestrate.run_suite(storage, RunRequest(suite, options), observer(settings, storage))
    print_runs(settings, storage, done.runs)
    small, large = (ran.report.run for ran in done.runs)
    return small, large


def observer(
    settings: CliSettings,
    storage: Storage,
    *,
    shared_display: bool = False,
    advice: Callable[[str], str] | None = None,
) -> RunObserver:
    """Shows progress and handles Ctrl-C; ``shared_display`` shows concurrent runs together.

    ``advice`` says how to continue a run, if not with ``gradeline resume``.
    """
    _collect_rarely()
    stop = Stop()
    interrupts = _Interrupts(stop, advice or (lambda run: how_to_continue(run, storage, settings.store)))
    display = progress.SharedProgress(settings) if shared_display else partial(progress.show_progress, settings)
    return RunObserver(
        lambda warning: print_message(f"warning: {warning}"),
        lambda prepared, run: interrupts.during(run, display(lambda: prepared.expected(run))),
        stop,
        settings.store,
        print_message if not settings.quiet else lambda _: None,
    )


def print_runs(settings: CliSettings, storage: Storage, done: list[RunOutcome], **fields: str) -> int:
    """Print the reports of runs and return their exit code; ``fields`` are added to the JSON output."""
    code = worst_of([ran.exit_code for ran in done])
    if os.environ.get("GITHUB_STEP_SUMMARY"):
        from gradeline.report.markdown import append_step_summary, markdown  # only on GitHub

        for ran in done:
            append_step_summary(markdown(ran.report))
    for ran in done:
        if ran.stopped is not None:
            click.echo(f"{ran.stopped}; {how_to_continue(ran.report.run.id, storage, settings.store)}", err=True)
    if settings.json:
        results = [ran.to_data() for ran in done]
        data = results[0] if len(done) == 1 else {"runs": results, "exit_code": code}
        click.echo(json.dumps({**data, **fields}, ensure_ascii=False))
        return code
    for ran in done:
        if settings.quiet:
            click.echo(ran.report.verdict.result)
        else:
            print_report(settings, ran.report, storage)
    return code


def _collect_rarely() -> None:
    """A run creates millions of objects and no cycles. This saves 5 % of the processor time of 10,000 quick cases."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


class _Interrupts:
    """Ctrl-C and SIGTERM during a run: the first finishes the calls in flight, the second stops now.

    Before and after a run, Ctrl-C ends the command. The second Ctrl-C is raised between two callbacks of the event
    loop: raised inside asyncio, it would leave half-made transports behind. The handlers are Python's, not the loop's,
    so that they also end code that blocks the loop.
    """

    def __init__(self, stop: Stop, advice: Callable[[str], str]) -> None:
        """``advice`` returns the command that resumes a run."""
        self._stop = stop
        self._advice = advice
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        """Keeps messages out of the output of user code that a signal interrupts."""
        self._advices: list[str] = []
        """How to resume each running run, computed here because a signal handler must not."""
        self._received = 0
        self._blocked = Timer(BLOCKED_S, _interrupt_main_thread)
        self._blocked.daemon = True
        self._before: dict[signal.Signals, Any] = {}

    @contextmanager
    def during(self, run: Run, display: AbstractContextManager[ProgressCallback]) -> Iterator[ProgressCallback]:
        """The display of a run, with the handlers installed."""
        advice = self._advice(run.id)
        self._advices.append(advice)
        if len(self._advices) == 1:
            self._before = {one: signal.getsignal(one) for one in _STOP_SIGNALS}
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
        self._stop.set(INTERRUPTED_REASON)
        print_message("finishing calls in flight; press Ctrl-C again to stop now")


def _interrupt_main_thread() -> None:
    signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)


def show_run(settings: CliSettings, storage: Storage, found: Run, *, rogan_gladen: bool = False) -> int:
    """Print the report of a stored run and return the exit code of its verdict."""
    report = conclude(storage, found)
    if rogan_gladen:
        from gradeline.engine.borrowed_rates import with_borrowed_rates  # only on request

        report = with_borrowed_rates(storage, report)
    return print_runs(settings, storage, [RunOutcome(report)])
