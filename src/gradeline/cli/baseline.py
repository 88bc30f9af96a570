"""``gradeline baseline``: names for the runs that others are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gradeline.cli.options import CliSettings, current_settings, global_options, run_argument, suite_option
from gradeline.cli.terminal import TableColumn, console, print_table, safe_text, single_line

if TYPE_CHECKING:
    from gradeline.model.baseline import Baseline

_COLUMNS = (
    TableColumn("name", key=True),
    TableColumn("suite", wraps=True),
    *(TableColumn(title) for title in ("run", "set by", "at")),
)


@click.group()
@global_options
def baseline() -> None:
    """Name the run of a suite that other runs are compared with.

    Every command and gate that takes a run accepts the name. Each suite has its own baselines, so that "main" can be
    the baseline of several suites in one store. The run of a baseline cannot be deleted.

    \b
    gradeline baseline set main latest
    gradeline run suite.yaml --baseline main
    gradeline baseline list
    gradeline baseline clear main
    """


@baseline.command(name="set")
@click.argument("name")
@run_argument
@suite_option
@global_options
def set_baseline(name: str, run_name: str, suite: str | None) -> None:
    """Make RUN the baseline NAME of its suite.

    RUN must be completed. It replaces the run that had the name.
    """
    from gradeline.cli.stores import open_store
    from gradeline.engine.definition import now
    from gradeline.model.baseline import check_baseline_name
    from gradeline.model.text import quote

    settings = current_settings()
    check_baseline_name(name)
    with open_store(settings, "existing") as storage:
        run = storage.find_run(run_name, suite)
        replaced = storage.set_baseline(name, run, by=user_name(), at=now())
    if settings.json:
        _print_json({"name": name, "suite": run.suite, "run": run.id, "replaced": replaced and replaced.run})
    elif not settings.quiet:
        before = f" (before: {replaced.run})" if replaced is not None and replaced.run != run.id else ""
        click.echo(single_line(f"baseline {name} of {quote(run.suite)}: {run.id} ({quote(run.name)}){before}"))


@baseline.command(name="list")
@suite_option
@global_options
def list_baselines(suite: str | None) -> None:
    """List the baselines by suite and name."""
    from gradeline.cli.stores import open_store

    settings = current_settings()
    with open_store(settings, "read") as storage:
        found = storage.list_baselines(suite)
    if settings.json:
        _print_json({"baselines": [_as_data(one) for one in found]})
    elif found:
        _print_table(settings, found)
    else:
        click.echo("No baselines. Set one with: gradeline baseline set NAME RUN")


@baseline.command()
@click.argument("name")
@suite_option
@global_options
def clear(name: str, suite: str | None) -> None:
    """Remove the baseline NAME, and keep its run."""
    from gradeline.cli.stores import open_store
    from gradeline.model.text import quote

    settings = current_settings()
    with open_store(settings, "existing") as storage:
        cleared = storage.clear_baseline(name, suite)
    if settings.json:
        _print_json({"cleared": _as_data(cleared)})
    elif not settings.quiet:
        click.echo(single_line(f"cleared {cleared.name} of {quote(cleared.suite)} (it was {cleared.run})"))


def user_name() -> str:
    """The user of this process, as the operating system names it."""
    from getpass import getuser

    try:
        return getuser()
    except (OSError, KeyError):  # a container may run as a user without a name
        import os

        return f"user {os.getuid()}"


def _as_data(one: Baseline) -> dict[str, str]:
    return {"name": one.name, "suite": one.suite, "run": one.run, "set_by": one.set_by, "set_at": one.set_at}


def _print_json(data: dict[str, object]) -> None:
    import json

    click.echo(json.dumps(data, ensure_ascii=False))


def _print_table(settings: CliSettings, found: list[Baseline]) -> None:
    rows = [(one.name, safe_text(one.suite), one.run, safe_text(one.set_by), one.set_at) for one in found]
    print_table(console(settings), _COLUMNS, rows)
