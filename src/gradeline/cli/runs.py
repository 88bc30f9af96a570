"""``gradeline run`` and what is done with runs afterwards; `gradeline.cli.running` does the work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from gradeline.cli.settings import Settings, current_settings, global_options

if TYPE_CHECKING:
    from gradeline.model import Run, Storage

_suite_file = click.argument("suite", type=click.Path(path_type=Path))


@click.command()
@_suite_file
@global_options
def validate(suite: Path) -> int:
    """Check a suite without calling the agent: files, functions, options, gates."""
    import asyncio
    import json

    from gradeline.cli.running import check_suite

    settings = current_settings()
    warnings: list[str] = []
    errors = asyncio.run(check_suite(suite, warnings))
    if settings.json:
        click.echo(json.dumps({"valid": not errors, "errors": errors, "warnings": warnings}, ensure_ascii=False))
        return 2 if errors else 0
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    for problem in errors:
        place = ":".join(str(problem[key]) for key in ("file", "line", "column") if problem[key])
        click.echo(": ".join(part for part in (place, problem["path"], problem["message"]) if part), err=True)
    if not errors:
        click.echo(f"{suite}: valid")
    return 2 if errors else 0


@click.command()
@_suite_file
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
    import asyncio

    from gradeline.cli.running import open_store, run_suite
    from gradeline.engine.prepare import Choice

    settings = current_settings()
    choice = Choice(limit, tags, samples, graders, repeats, concurrency)
    with open_store(settings) as storage:
        return asyncio.run(run_suite(settings, storage, suite, choice, name, seed))


@click.command()
@click.argument("run_name", metavar="RUN")
@global_options
def resume(run_name: str) -> int:
    """Go on with a run that was stopped: what is answered and graded is not done again."""
    import asyncio

    from gradeline.cli.running import open_store, resume_run

    settings = current_settings()
    with open_store(settings) as storage:
        return asyncio.run(resume_run(settings, storage, run_name))


@click.command()
@click.argument("run_name", metavar="RUN")
@click.option("--suite", type=click.Path(path_type=Path), help="The suite to grade with; by default the run's own.")
@global_options
def regrade(run_name: str, suite: Path | None) -> int:
    """Grade a run's answers again, as the suite's graders are now. The agent is not called."""
    import asyncio

    from gradeline.cli.running import open_store, regrade_run

    settings = current_settings()
    with open_store(settings) as storage:
        return asyncio.run(regrade_run(settings, storage, run_name, suite))


@click.command("list")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="So many of the newest.")
@global_options
def list_runs(limit: int) -> None:
    """List the stored runs, the newest first."""
    import json

    from gradeline.cli.running import open_store, run_object

    settings = current_settings()
    with open_store(settings) as storage:
        runs = storage.list_runs(limit)
    if settings.json:
        click.echo(json.dumps({"runs": [run_object(one) for one in runs]}, ensure_ascii=False))
    elif runs:
        _print_runs(settings, runs)
    else:
        click.echo("No runs yet. Start one with: gradeline run SUITE")


def _print_runs(settings: Settings, runs: list[Run]) -> None:
    from rich.table import Table

    from gradeline.cli.terminal import console, plain

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("id", "name", "status", "started", "cases"):
        table.add_column(title, no_wrap=True)
    for one in runs:
        cells = (one.id[:8], one.name, one.status, one.started_at or "", str(one.total or ""))
        table.add_row(*(plain(cell) for cell in cells))
    console(settings).print(table)


_run_name = click.argument("run_name", metavar="[RUN]", default="latest")


@click.command()
@_run_name
@click.option("--records", is_flag=True, help="Print the records, one JSON object a line.")
@global_options
def show(run_name: str, records: bool) -> None:
    """Show a stored run: by id, the start of an id, its name, latest or latest~1."""
    from gradeline.cli.running import open_store, show_run

    settings = current_settings()
    with open_store(settings) as storage:
        found = storage.find_run(run_name)
        if records:
            _write_records(storage, found, sys.stdout)
        else:
            show_run(settings, storage, found, None, 0.0)


@click.command()
@_run_name
@click.option("--output", type=click.Path(path_type=Path), help="Write to this file instead of standard output.")
@global_options
def export(run_name: str, output: Path | None) -> None:
    """Write every record of a run as JSONL."""
    from gradeline.cli.running import open_store

    with open_store(current_settings()) as storage:
        found = storage.find_run(run_name)
        if output is None:
            _write_records(storage, found, sys.stdout)
            return
        # whoever finds the file finds all of it
        partial = output.with_name(f".{output.name}.partial")
        with partial.open("w", encoding="utf-8") as file:
            _write_records(storage, found, file)
        partial.replace(output)


def _write_records(storage: Storage, found: Run, file: IO[str]) -> None:
    from gradeline.model import to_json

    for record in storage.records(found.id):
        file.write(to_json(record) + "\n")
