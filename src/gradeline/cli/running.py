"""Running suites and showing runs: what the commands of `gradeline.cli.runs` do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from gradeline.cli.settings import Settings
from gradeline.cli.terminal import OUTCOME_STYLES, console, plain
from gradeline.engine.aggregate import Summary, complete, measure, summarise
from gradeline.engine.local import run_local
from gradeline.engine.owner import is_alive
from gradeline.engine.plan import Planned
from gradeline.engine.prepare import Choice, Definition, Prepared, prepare
from gradeline.errors import ConfigError, Problem
from gradeline.model import Run, Sample, Storage
from gradeline.store import open_storage
from gradeline.suite.places import PlacedError
from gradeline.suite.read import read_suite
from gradeline.verdict.gates import Gate, Verdict, decide

_RUN_KEYS = ("id", "name", "suite", "status", "target", "group", "parent", "seed", "started_at", "completed_at")


async def check_suite(path: Path, warnings: list[str]) -> list[dict[str, Any]]:
    """Everything that is wrong with a suite, found without calling its agent."""
    try:
        suite = read_suite(path)
        warnings.extend(suite.warnings)
        async with prepare(suite, Choice()) as prepared:
            for _ in prepared.samples():
                pass
    except PlacedError as error:
        return [problem._asdict() for problem in error.placed]
    except ConfigError as error:
        unplaced = {"file": str(path), "line": 0, "column": 0}
        return [{**unplaced, **problem._asdict()} for problem in error.problems]
    return []


async def run_suite(
    settings: Settings, storage: Storage, path: Path, choice: Choice, name: str | None, seed: int | None
) -> int:
    suite = read_suite(path)
    for warning in suite.warnings:
        click.echo(f"warning: {warning}", err=True)
    async with prepare(suite, choice, storage) as prepared:
        return await _execute(settings, storage, prepared, prepared.new_run(name, seed=seed))


async def resume_run(settings: Settings, storage: Storage, wanted: str) -> int:
    found = storage.find_run(wanted)
    if found.status == "running" and is_alive(found.owner):
        raise ConfigError(Problem(found.id, f"is still running, in process {found.owner}; end that first"))
    definition = Definition.of(found)
    suite = read_suite(Path(definition.suite))
    if suite.digest != found.suite_digest:
        raise ConfigError(
            Problem(str(suite.file), "changed since the run began; run it anew, or regrade what was answered")
        )
    async with prepare(suite, definition.choice, storage) as prepared:
        return await _execute(settings, storage, prepared, found)


async def regrade_run(settings: Settings, storage: Storage, wanted: str, path: Path | None) -> int:
    parent = storage.find_run(wanted)
    suite = read_suite(path or Path(Definition.of(parent).suite))
    async with prepare(suite, Choice(repeats=parent.repeats), storage) as prepared:
        return await _execute(settings, storage, prepared, prepared.new_run(parent=parent.id), parent)


async def _execute(
    settings: Settings, storage: Storage, prepared: Prepared, new: Run, parent: Run | None = None
) -> int:
    """Run it and show what came of it; with a parent, only what that has answered is graded."""
    saved = storage.get_run(new.id or storage.save_run(new)) or new
    stop = asyncio.Event()
    _listen(stop)
    with _progress(settings) as advance:
        task = prepared.task(saved, advance)
        if parent is not None:
            task = task._replace(samples=lambda: _stored_samples(storage, parent), retry_failed=False)
        result = await run_local(storage, task, stop)
    if not sum(result.work.values()) and not stop.is_set():
        raise ConfigError(Problem(str(prepared.suite.dataset), "holds no case to run"))
    code = show_run(settings, storage, result.run, prepared.suite.gate, prepared.suite.coverage_floor)
    if stop.is_set():
        click.echo(f"stopped; go on with: gradeline resume {result.run.id}", err=True)
        return 130
    return code


def _stored_samples(storage: Storage, parent: Run) -> Iterator[Sample]:
    return (record.sample for record in storage.records(parent.id) if record.repeat == 0)


def _listen(stop: asyncio.Event) -> None:
    """The first Ctrl-C finishes what is in flight, the second ends at once."""
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        if stop.is_set():
            loop.remove_signal_handler(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        stop.set()

    loop.add_signal_handler(signal.SIGINT, interrupted)


@contextmanager
def _progress(settings: Settings) -> Iterator[Callable[[Planned], None]]:
    if settings.quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # only for people

    columns = (SpinnerColumn(), TextColumn("{task.completed} cases done"), TimeElapsedColumn())
    with Progress(*columns, console=console(settings, stderr=True), transient=True) as bar:
        task = bar.add_task("running", total=None)
        yield lambda _: bar.advance(task)


def show_run(settings: Settings, storage: Storage, found: Run, gate: Gate | None, floor: float) -> int:
    """Print what a run comes to, and give the exit code of its verdict."""

    measured = measure(found, storage.records(found.id))
    summary = complete(summarise(found, storage.counts(found.id)), measured)
    verdict = decide(gate, measured.columns, floor)
    scored = any(column.scores for column in measured.columns.values())
    code = {"pass": 0, "fail": 1, "undecided": 3, "none": 3 if verdict.reasons else 0}[verdict.result] if scored else 4
    if settings.json:
        answered = sum(summary.responses.values())
        shown = {
            "run": run_object(found),
            "summary": {
                "cases": answered // max(1, found.repeats),
                "repeats": found.repeats,
                **msgspec.to_builtins(summary),
                "cost": {"agent": None, "judge": None},
            },
            "verdict": {"result": verdict.result, "reasons": list(verdict.reasons), "gates": []},
            "exit_code": code,
        }
        click.echo(json.dumps(shown, ensure_ascii=False))
    elif settings.quiet:
        click.echo(verdict.result)
    else:
        _print_summary(settings, found, summary, verdict)
    return code


def _print_summary(settings: Settings, found: Run, summary: Summary, verdict: Verdict) -> None:
    from rich.table import Table  # 20 ms, only for people

    out = console(settings)
    out.print(plain(f"{found.name}  {found.id}  {found.status}", "bold"))
    out.print(plain(summary.sentence))
    # as wide as a terminal of 80 columns, with room for the grader's name
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for title in ("grader", "mean", "95 %", "rate", "95 %", "scored", "pass", "fail", "error", "skip"):
        table.add_column(title, justify="left" if title == "grader" else "right", no_wrap=title != "grader")
    for key, column in summary.graders.items():
        table.add_row(
            plain(key, "cyan"),
            _decimal(column.mean),
            _interval(column.mean_ci),
            _decimal(column.pass_rate),
            _interval(column.pass_rate_ci),
            f"{column.scored} of {column.total}",
            *(str(number) for number in (column.passed, column.failed, column.errors, column.skipped)),
        )
    out.print(table)
    style = OUTCOME_STYLES.get(verdict.result, "yellow")
    if verdict.result != "none":
        out.print(plain(f"verdict: {verdict.result}", f"bold {style}"))
    for reason in verdict.reasons:
        out.print(plain(f"  {reason}"))


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _interval(value: tuple[float, float] | None) -> str:
    return "–" if value is None else f"{value[0]:.3f}–{value[1]:.3f}"


def run_object(found: Run) -> dict[str, Any]:
    """A run as JSON shows it."""
    return {key: getattr(found, key) for key in _RUN_KEYS}


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
