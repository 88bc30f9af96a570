"""``gradeline export``: a stored run in the formats that others read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from gradeline.cli.settings import current_settings, global_options, run_or_latest
from gradeline.cli.streams import streaming_output
from gradeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from gradeline.model import Run, Storage

FORMATS = ("jsonl", "csv", "parquet", "junit", "markdown", "html")


@click.command()
@run_or_latest
@click.option(
    "--format", "wanted", type=click.Choice(FORMATS), default="jsonl", show_default=True, help="What to write."
)
@click.option("--output", type=click.Path(path_type=Path), help="Write to this file instead of standard output.")
@global_options
def export(run_name: str, wanted: str, output: Path | None) -> None:
    """Write a run for others to read: by id, the start of an id, its name, latest or latest~1.

    \b
    jsonl     every record, one JSON object a line
    csv       a row per case, repeat and grader, for spreadsheets
    parquet   the same rows with typed columns, for data frames; needs the extra export
    junit     a test per case, repeat and grader, for continuous integration
    markdown  the verdict, the graders and the worst cases, for a pull request
    html      a page with all of that and charts, in one file
    """
    from gradeline.cli.stores import open_store

    settings = current_settings()
    with open_store(settings, "read") as storage:
        run = storage.find_run(run_name)
        if wanted == "parquet":
            from gradeline.report.parquet import write_parquet

            write_parquet_file(output, lambda path: write_parquet(path, storage.records(run.id), run.graders))
        else:
            with streaming_output() if output is None else new_file(output) as file:
                _write(file, wanted, storage, run)
    if output is not None and settings.json:
        import json

        click.echo(json.dumps({"written": [str(output)]}, ensure_ascii=False))


def _write(file: IO[str], wanted: str, storage: Storage, run: Run) -> None:
    """Each format loads what it needs alone."""
    if wanted == "jsonl":
        from gradeline.model import to_json

        file.writelines(f"{to_json(record)}\n" for record in storage.records(run.id))
        return
    if wanted == "csv":
        from gradeline.report.csv_table import write_csv

        write_csv(file, storage.records(run.id), run.graders)
        return

    from gradeline.engine.conclude import conclude

    report = conclude(storage, run)
    if wanted == "junit":
        from gradeline.report.junit import write_junit

        write_junit(file, report)
    elif wanted == "markdown":
        from gradeline.report.markdown import markdown

        file.write(markdown(report))
    else:
        from gradeline.report.html import write_html

        write_html(file, report)


def write_parquet_file(output: Path | None, write: Callable[[Path], None]) -> None:
    """Write a Parquet file to ``output``, or to standard output where that is None; ``write`` makes it at a path.

    Not as the others: what is known at the end of the file is how to read its beginning.
    """
    from shutil import copyfileobj
    from tempfile import TemporaryDirectory

    from gradeline.report.parquet import require_duckdb

    require_duckdb()
    if output is None and sys.stdout.isatty():
        raise ConfigError(Problem("output", "Parquet is no text for a terminal; name a file with --output"))
    replaced = None if output is None else _replaceable(output)
    if replaced is not None:
        with _partial(replaced) as partial:
            write(partial)
        return
    with TemporaryDirectory(prefix="gradeline-parquet-") as folder:
        made = Path(folder) / "results.parquet"
        write(made)
        with made.open("rb") as file, streaming_output() if output is None else _opened(output) as out:
            copyfileobj(file, out.buffer)


@contextmanager
def new_file(path: Path) -> Iterator[IO[str]]:
    """A file that is there as a whole or not at all; a pipe or a device is written to as it is."""
    replaced = _replaceable(path)
    if replaced is None:
        with _opened(path) as file:
            yield file
        return
    with _partial(replaced) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        yield file


def _replaceable(path: Path) -> Path | None:
    """Where the file really is; None for what cannot be replaced."""
    path = path.resolve()
    if path.is_dir():
        raise ConfigError(Problem(str(path), "is a folder; name a file"))
    return None if path.exists() and not path.is_file() else path


@contextmanager
def _opened(path: Path) -> Iterator[TextIOWrapper]:
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise _unwritable(path, error) from None


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """The name under which to write a file, so that its own is only ever that of a whole one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        partial.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    reason = f"cannot be written: {error.strerror}; name a place where you may write"
    return ConfigError(Problem(str(path), reason))
