"""``gradeline export``: a stored run as JSON lines, CSV, Parquet, JUnit XML, Markdown, HTML or a log of Inspect."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from gradeline.cli.options import current_settings, global_options, run_or_latest
from gradeline.cli.streams import streaming_output
from gradeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from gradeline.model import Run, Storage

FORMATS = ("jsonl", "csv", "parquet", "junit", "markdown", "html", "inspect")


@click.command()
@run_or_latest
@click.option(
    "--format", "file_format", type=click.Choice(FORMATS), default="jsonl", show_default=True, help="File format."
)
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="Output file (default: standard output)."
)
@global_options
def export(run_name: str, file_format: str, output: Path | None) -> None:
    """Export a stored run.

    RUN is an id, the start of one, a name, latest or latest~1 (default: latest).

    \b
    jsonl     every record with its labels, one JSON object per line
    csv       one row per case, repeat and grader with its label, for spreadsheets
    parquet   the same rows with typed columns, for data frames (needs the extra export)
    junit     one test per case, repeat and grader, for continuous integration
    markdown  verdict, graders and worst cases, for a pull request
    html      the same with charts, as one file
    inspect   an .eval log, for inspect view and Inspect's own tools
    """
    from gradeline.cli.stores import open_store

    settings = current_settings()
    with open_store(settings, "read") as storage:
        run = storage.find_run(run_name)
        if file_format == "parquet":
            from gradeline.report.labelled_records import grader_labels
            from gradeline.report.table import write_parquet

            labels = grader_labels(storage, run)
            write_parquet_file(
                output, lambda path: write_parquet(path, storage.records(run.id), run.graders, run.variant, labels)
            )
        elif file_format == "inspect":
            from gradeline.engine.aggregate import conclude
            from gradeline.report.inspect_log import write_inspect_log

            report = conclude(storage, run)
            _write_binary_file(output, lambda path: write_inspect_log(path, report), "an .eval log")
        else:
            with streaming_output() if output is None else output_text_file(output) as file:
                _write(file, file_format, storage, run)
    if output is not None and settings.json:
        import json

        click.echo(json.dumps({"written": [str(output)]}, ensure_ascii=False))


def _write(file: IO[str], file_format: str, storage: Storage, run: Run) -> None:
    """Write a text format; each loads only what it needs."""
    if file_format == "jsonl":
        from gradeline.report.labelled_records import record_lines

        file.writelines(f"{line}\n" for line in record_lines(storage, run))
        return
    if file_format == "csv":
        from gradeline.report.labelled_records import grader_labels
        from gradeline.report.table import write_csv

        write_csv(file, storage.records(run.id), run.graders, run.variant, grader_labels(storage, run))
        return

    from gradeline.engine.aggregate import conclude

    report = conclude(storage, run)
    if file_format == "junit":
        from gradeline.report.junit import write_junit

        write_junit(file, report)
    elif file_format == "markdown":
        from gradeline.report.markdown import markdown

        file.write(markdown(report))
    else:
        from gradeline.report.html import write_html

        write_html(file, report)


def write_parquet_file(output: Path | None, write: Callable[[Path], None]) -> None:
    """Write a Parquet file to ``output``, or to standard output if that is None; ``write`` creates it at a path."""
    from gradeline.report.table import require_duckdb

    require_duckdb()
    _write_binary_file(output, write, "Parquet")


def _write_binary_file(output: Path | None, write: Callable[[Path], None], name: str) -> None:
    """Write a file that cannot be streamed as the text formats are: its index is at its end."""
    from shutil import copyfileobj
    from tempfile import TemporaryDirectory

    from gradeline.model.files import output_file, output_path, replaceable_path  # --help must not load the model

    if output is None and sys.stdout.isatty():
        raise ConfigError(Problem("output", f"{name} is a binary format; name a file with --output"))
    target = None if output is None else replaceable_path(output)
    if target is not None:
        with output_path(target) as partial:
            write(partial)
        return
    with TemporaryDirectory(prefix="gradeline-export-") as folder:
        staged = Path(folder) / "results"
        write(staged)
        with staged.open("rb") as file:
            if output is None:
                with streaming_output() as out:
                    copyfileobj(file, out.buffer)
            else:
                with output_file(output) as pipe:
                    copyfileobj(file, pipe)


@contextmanager
def output_text_file(path: Path) -> Iterator[IO[str]]:
    """`output_file` for text in UTF-8, with line breaks as written."""
    from gradeline.model.files import output_file

    with output_file(path) as file:
        text = TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            text.detach()
