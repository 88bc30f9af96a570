"""``gradeline dataset``: check the cases of a dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gradeline.cli.options import CliSettings, current_settings, global_options
from gradeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from gradeline.suite.dataset_source import DatasetSource

EXIT_FINDINGS = 1
_ROWS = 1_000
"""Rows between two messages, at least."""

columns_option = click.option(
    "--columns",
    multiple=True,
    metavar="KEY=COLUMN",
    help="Column for a key of the case, such as input=question (repeatable).",
)


@click.group()
def dataset() -> None:
    """Check the cases of a dataset.

    \b
    gradeline dataset check cases.jsonl
    """


@dataset.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@columns_option
@global_options
def check(files: tuple[str, ...], columns: tuple[str, ...]) -> int:
    """Check the cases of files, patterns or a dataset of the Hugging Face Hub.

    Reports invalid and duplicate cases, near duplicates, empty fields, expected values that appear in the input,
    columns with mixed types, and invalid checks. The exit code is 1 if anything is found.

    \b
    gradeline dataset check 'cases/*.jsonl' --columns input=question --columns metadata.lang=language
    """
    import msgspec

    from gradeline.suite.dataset_check import check_dataset

    settings = current_settings()
    report = check_dataset(_source(settings, files, parse_columns(columns)), _progress(settings))
    code = EXIT_FINDINGS if report.findings else 0
    if settings.json:
        click.echo(json.dumps({**msgspec.to_builtins(report), "exit_code": code}, ensure_ascii=False))
        return code
    from gradeline.report.formatting import count_noun, visible

    for finding in report.findings:
        click.echo(f"{finding.kind}: {visible(finding.message)}")
        for example in finding.examples:
            click.echo(f"  {visible(example)}")
    if not settings.quiet:
        unnamed = f", {report.without_id:,} without an id" if report.without_id else ""
        state = count_noun(len(report.findings), "finding") if report.findings else "nothing found"
        stopped = "" if report.complete else "; reading stopped at the invalid row"
        click.echo(f"{visible(report.dataset)}: {count_noun(report.cases, 'case')}{unnamed}; {state}{stopped}")
    return code


def parse_columns(written: tuple[str, ...], also: tuple[str, ...] = ()) -> dict[str, Any]:
    """The ``columns`` of a suite from ``--columns``; `ConfigError` if invalid. ``also`` are further keys."""
    from gradeline.suite.columns import column_faults

    found: dict[str, Any] = {}
    for text in written:
        key, equals, column = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(Problem("--columns", f"expected KEY=COLUMN such as input=question, got {text!r}"))
        outer, dot, inner = key.strip().partition(".")
        if dot:
            group = found.setdefault(outer, {})
            if not isinstance(group, dict):
                raise ConfigError(Problem("--columns", f"{outer!r} has a column of its own; leave out {text!r}"))
            group[inner] = column
        else:
            found[outer] = column
    faults = [Problem("--columns", str(fault)) for fault in column_faults(found, also)]
    if faults:
        raise ConfigError(faults)
    return found


def _source(settings: CliSettings, files: tuple[str, ...], columns: dict[str, Any]) -> DatasetSource:
    import asyncio
    from pathlib import Path

    from msgspec.structs import replace

    from gradeline.cli.terminal import print_message
    from gradeline.model.resources import Resources
    from gradeline.suite.dataset_source import DatasetNameError, read_source, with_local_files
    from gradeline.suite.environment import read_environment

    folder = Path.cwd()
    try:
        source = replace(read_source(files[0] if len(files) == 1 else list(files), folder), columns=columns)
    except DatasetNameError as error:
        raise ConfigError(Problem("FILE", str(error))) from None
    if not source.hub_datasets:
        return source
    note = (lambda _: None) if settings.quiet else print_message
    return asyncio.run(with_local_files(source, Resources(folder), read_environment(folder).values, note))


def _progress(settings: CliSettings) -> Callable[[int], None]:
    from gradeline.cli.terminal import ProgressMessages

    messages = ProgressMessages(settings)

    def report(rows: int) -> None:
        if rows % _ROWS == 0:
            messages.print(f"checked {rows:,} rows")

    return report
