"""``gradeline run`` and what is done with runs afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradeline.cli.settings import Settings, current_settings, global_options

if TYPE_CHECKING:
    from gradeline.engine.prepare import Choice
    from gradeline.model import Run, Storage

_RUN_KEYS = (
    "id", "name", "suite", "status", "target", "group", "parent", "seed", "started_at", "completed_at",
)  # fmt: skip


@click.command()
@click.argument("suite", type=click.Path(path_type=Path))
@global_options
def validate(suite: Path) -> int:
    """Check a suite without calling the agent: files, functions, options, gates."""
    from gradeline.engine.prepare import Choice, prepare
    from gradeline.errors import ConfigError
    from gradeline.suite.places import PlacedError
    from gradeline.suite.read import read_suite

    async def check() -> None:
        read = read_suite(suite)
        warnings.extend(read.warnings)
        async with prepare(read, Choice()) as prepared:
            for _ in prepared.samples():
                pass

    settings = current_settings()
    warnings: list[str] = []
    errors: list[dict[str, Any]] = []
    try:
        asyncio.run(check())
    except PlacedError as error:
        errors = [problem._asdict() for problem in error.placed]
    except ConfigError as error:
        errors = [
            {"file": str(suite), "line": 0, "column": 0, "path": p.path, "message": p.message} for p in error.problems
        ]
        if not settings.json:
            raise
    if settings.json:
        click.echo(json.dumps({"valid": not errors, "errors": errors, "warnings": warnings}, ensure_ascii=False))
        return 2 if errors else 0
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    for problem in errors:
        place = ":".join(str(problem[key]) for key in ("file", "line", "column") if problem[key])
        click.echo(f"{place}: {problem['path']}: {problem['message']}", err=True)
    if not errors:
        click.echo(f"{suite}: valid")
    return 2 if errors else 0


@click.command()
@click.argument("suite", type=click.Path(path_type=Path))
@click.option("--limit", type=click.IntRange(0), help="Run the first N cases alone.")
@click.option("--sample", "samples", multiple=True, metavar="ID", help="Run this case alone (repeatable).")
@click.option("--tag", "tags", multiple=True, metavar="T", help="Run the cases that have this tag (repeatable).")
@click.option("--grader", "graders", multiple=True, metavar="G", help="Use this grader alone (repeatable).")
@click.option("--repeats", type=click.IntRange(1), help="Ask each case so many times.")
@click.option("--concurrency", type=click.IntRange(1), help="So many calls at once.")
@click.option("--name", help="The run's name; by default the suite's.")
@click.option("--seed", type=int, help="Kept with the run.")
@global_options
def run(
    suite: Path,
    limit: int | None,
    samples: tuple[str, ...],
    tags: tuple[str, ...],
    graders: tuple[str, ...],
    repeats: int | None,
    concurrency: int | None,
    name: str | None,
    seed: int | None,
) -> int:
    """Run a suite against its agent, grade the answers, and store everything.

    Exits with 0 when its gate passes, 1 when it fails, 2 when the suite is wrong, 3 when it is undecided, 4 when
    nothing could be graded, 130 when interrupted.
    """
    from gradeline.engine.prepare import Choice

    settings = current_settings()
    choice = Choice(limit, tags, samples, graders, repeats, concurrency)
    with _storage(settings) as storage:
        return asyncio.run(_run(settings, storage, suite, choice, name, seed))


async def _run(
    settings: Settings, storage: Storage, path: Path, choice: Choice, name: str | None, seed: int | None
) -> int:
    from gradeline.engine.prepare import prepare
    from gradeline.suite.read import read_suite

    suite = read_suite(path)
    for warning in suite.warnings:
        click.echo(f"warning: {warning}", err=True)
    async with prepare(suite, choice, storage) as prepared:
        return await _execute(settings, storage, prepared, prepared.new_run(name, seed=seed))


@click.command()
@click.argument("run_name", metavar="RUN")
@global_options
def resume(run_name: str) -> int:
    """Go on with a run that was stopped: what is answered and graded is not done again."""
    settings = current_settings()
    with _storage(settings) as storage:
        return asyncio.run(_resume(settings, storage, run_name))


async def _resume(settings: Settings, storage: Storage, wanted: str) -> int:
    from gradeline.engine.prepare import Choice, prepare
    from gradeline.errors import ConfigError, Problem
    from gradeline.suite.read import read_suite

    found = storage.find_run(wanted)
    suite = read_suite(Path(found.definition or ""))
    if suite.digest != found.suite_digest:
        raise ConfigError(
            Problem(str(suite.file), "changed since the run began; run it anew, or regrade what was answered")
        )
    choice = Choice(graders=tuple(found.graders), repeats=found.repeats)
    async with prepare(suite, choice, storage) as prepared:
        return await _execute(settings, storage, prepared, found)


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option(
    "--suite", type=click.Path(path_type=Path), help="The suite to grade with; by default the run's own file."
)
@global_options
def regrade(run_name: str, suite: Path | None) -> int:
    """Grade a run's answers again, as the suite's graders are now. The agent is not called."""
    settings = current_settings()
    with _storage(settings) as storage:
        return asyncio.run(_regrade(settings, storage, run_name, suite))


async def _regrade(settings: Settings, storage: Storage, wanted: str, path: Path | None) -> int:
    from gradeline.engine.prepare import Choice, prepare
    from gradeline.suite.read import read_suite

    parent = storage.find_run(wanted)
    suite = read_suite(path or Path(parent.definition or ""))
    async with prepare(suite, Choice(repeats=parent.repeats), storage) as prepared:
        new = prepared.new_run(parent=parent.id)
        return await _execute(settings, storage, prepared, new, stored_only=True)


async def _execute(settings: Settings, storage: Storage, prepared: Any, new: Run, *, stored_only: bool = False) -> int:
    from gradeline.engine.local import run_local
    from gradeline.errors import ConfigError, Problem

    saved = storage.get_run(new.id or storage.save_run(new)) or new
    stop = asyncio.Event()
    _listen(stop)
    with _progress(settings) as advance:
        task = prepared.task(saved, advance)
        if stored_only:
            parent = storage.find_run(saved.parent or "")
            task = task._replace(samples=lambda: _stored_samples(storage, parent), retry_failed=False)
        result = await run_local(storage, task, stop)
    if not sum(result.work.values()):
        raise ConfigError(Problem(str(prepared.suite.dataset), "holds no case to run"))
    code = show_run(settings, storage, result.run, prepared.suite.gate, prepared.suite.coverage_floor)
    if stop.is_set():
        click.echo(f"stopped; go on with: gradeline resume {result.run.id}", err=True)
        return 130
    return code


def _stored_samples(storage: Storage, parent: Run) -> Iterator[Any]:
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
def _progress(settings: Settings) -> Iterator[Any]:
    if settings.quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from gradeline.cli.terminal import console

    columns = (SpinnerColumn(), TextColumn("{task.completed} cases done"), TimeElapsedColumn())
    with Progress(*columns, console=console(settings, stderr=True), transient=True) as bar:
        task = bar.add_task("running", total=None)
        yield lambda _: bar.advance(task)


@click.command("list")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="So many of the newest.")
@global_options
def list_runs(limit: int) -> None:
    """List the stored runs, the newest first."""
    settings = current_settings()
    with _storage(settings) as storage:
        runs = storage.list_runs(limit)
        if settings.json:
            click.echo(json.dumps({"runs": [_run_object(one) for one in runs]}, ensure_ascii=False))
            return
        if not runs:
            click.echo("No runs yet. Start one with: gradeline run SUITE")
            return
        from rich.table import Table

        from gradeline.cli.terminal import console, plain

        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for title in ("id", "name", "status", "started", "cases"):
            table.add_column(title, no_wrap=True)
        for one in runs:
            cells = (one.id[:8], one.name, one.status, one.started_at or "", str(one.total or ""))
            table.add_row(*map(plain, cells))
        console(settings).print(table)


@click.command()
@click.argument("run_name", metavar="RUN", default="latest")
@click.option("--records", is_flag=True, help="Print the records, one JSON object a line.")
@global_options
def show(run_name: str, records: bool) -> None:
    """Show a stored run: by id, the start of an id, its name, latest or latest~1."""
    settings = current_settings()
    with _storage(settings) as storage:
        found = storage.find_run(run_name)
        if records:
            _write_records(storage, found, sys.stdout)
        else:
            show_run(settings, storage, found, None, 0.0)


@click.command()
@click.argument("run_name", metavar="RUN", default="latest")
@click.option("--output", type=click.Path(path_type=Path), help="Write to this file instead of standard output.")
@global_options
def export(run_name: str, output: Path | None) -> None:
    """Write every record of a run as JSONL."""
    settings = current_settings()
    with _storage(settings) as storage:
        found = storage.find_run(run_name)
        if output is None:
            _write_records(storage, found, sys.stdout)
            return
        partial = output.with_name(f".{output.name}.partial")
        with partial.open("w", encoding="utf-8") as file:
            _write_records(storage, found, file)
        partial.replace(output)


def _write_records(storage: Storage, found: Run, file: Any) -> None:
    from gradeline.model import to_json

    for record in storage.records(found.id):
        file.write(to_json(record) + "\n")


def show_run(settings: Settings, storage: Storage, found: Run, gate: Any, floor: float) -> int:
    """Print what a run comes to, and give the exit code of its verdict."""
    import msgspec

    from gradeline.engine.aggregate import complete, measure, summarise
    from gradeline.verdict.gates import decide

    measured = measure(found, storage.records(found.id))
    summary = complete(summarise(found, storage.counts(found.id)), measured)
    verdict = decide(gate, measured.columns, floor)
    scored = any(column.scores for column in measured.columns.values())
    code = {"pass": 0, "fail": 1, "undecided": 3, "none": 3 if verdict.reasons else 0}[verdict.result] if scored else 4
    if settings.json:
        answered = sum(summary.responses.values())
        shown = {
            "run": _run_object(found),
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


def _print_summary(settings: Settings, found: Run, summary: Any, verdict: Any) -> None:
    from rich.table import Table

    from gradeline.cli.terminal import OUTCOME_STYLES, console, plain

    out = console(settings)
    out.print(plain(f"{found.name}  {found.id}  {found.status}", "bold"))
    out.print(plain(summary.sentence))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in (
        "grader",
        "mean",
        "95 % interval",
        "pass rate",
        "95 % interval",
        "scored",
        "pass",
        "fail",
        "error",
        "skipped",
    ):
        table.add_column(title, justify="left" if title == "grader" else "right")
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
    return "–" if value is None else f"{value[0]:.3f} to {value[1]:.3f}"


def _run_object(found: Run) -> dict[str, Any]:
    return {key: getattr(found, key) for key in _RUN_KEYS}


@contextmanager
def _storage(settings: Settings) -> Iterator[Storage]:
    from gradeline.store import open_storage

    url = settings.store or os.environ.get("GRADELINE_STORE") or str(_project_folder() / ".gradeline" / "store.db")
    with open_storage(url) as storage:
        yield storage


def _project_folder() -> Path:
    """The nearest folder upwards that has a store, else this one."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".gradeline").is_dir()), here)
