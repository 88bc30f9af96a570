"""``gradeline import``: suites, cases, responses and grades from other tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import CliSettings, current_settings, global_options

if TYPE_CHECKING:
    from gradeline.importers.kinds import ImportResult
    from gradeline.model import Storage

_LINES = 100
"""Lines between two messages, at least."""
_MOST_ITEMS = 10


@click.command("import")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--from", "kind", metavar="KIND", help="Kind of source, such as promptfoo (default: detected).")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FOLDER",
    help="New or empty folder to write to.",
)
@click.option("--name", help="Name of the suite and its runs (default: the source's).")
@click.option("--input", "input_path", metavar="PATH", help="JMESPath of a case's input, if inputs are JSON.")
@click.option("--expected", "expected_path", metavar="PATH", help="JMESPath of a case's expected value.")
@global_options
def import_command(
    source: Path, kind: str | None, output: Path, name: str | None, input_path: str | None, expected_path: str | None
) -> int:
    """Import suites, cases, responses and grades from another tool.

    Reads promptfoo, OpenAI evals, Inspect, lm-evaluation-harness, Langfuse, LangSmith and Braintrust. Writes
    suite.yaml, cases.jsonl, code of graders if needed, answers.jsonl with recorded responses, and import.md, a report
    of what became of each item. Recorded results become runs in the store, for compare and regrade. Code in the source
    is never executed.

    Exit codes: 0 everything was mapped, 3 something was approximated, 1 something was not mapped, 2 nothing was
    imported.

    \b
    gradeline import promptfooconfig.yaml --output evals/
    gradeline import logs/2026-11-16_capitals.eval --output imported/
    """
    from gradeline.cli.stores import open_store
    from gradeline.importers.kinds import ImportOptions, run_import

    settings = current_settings()
    options = ImportOptions(kind, input_path, expected_path, name)
    with ExitStack() as stack:
        opened: list[Storage] = []

        def storage() -> Storage:
            if not opened:
                opened.append(stack.enter_context(open_store(settings)))
            return opened[0]

        result = run_import(source, output, options, storage, _progress(settings))
    code = result.report.exit_code
    if settings.json:
        click.echo(json.dumps({**_data(result), "exit_code": code}, ensure_ascii=False))
    else:
        _print(settings, result)
    return code


def _data(result: ImportResult) -> dict[str, object]:
    import msgspec

    from gradeline.importers.report import State

    report = result.report
    return {
        "source": report.source,
        "kind": report.kind,
        "folder": str(result.folder),
        "written": list(result.written),
        "runs": [run.id for run in result.runs],
        "counts": {str(state).replace(" ", "_"): report.count(state) for state in State},
        "items": [msgspec.to_builtins(item) for item in report.items],
    }


def _print(settings: CliSettings, result: ImportResult) -> None:
    from gradeline.cli.terminal import console, safe_text
    from gradeline.importers.report import State

    out = console(settings)
    report = result.report
    if not settings.quiet:
        shown = [item for item in report.items if item.state is not State.MAPPED]
        for item in shown[:_MOST_ITEMS]:
            place = f"{item.places[0]}: " if item.places else ""
            times = f" (×{item.count:,})" if item.count > 1 else ""
            became = f" → {item.became}" if item.became else ""
            out.print(safe_text(f"{item.state}: {place}{item.what}{times}{became}: {item.note}"), soft_wrap=True)
        if len(shown) > _MOST_ITEMS:
            out.print(safe_text(f"… and {len(shown) - _MOST_ITEMS:,} more in {result.folder / 'import.md'}"))
        for line in result.written:
            out.print(safe_text(f"wrote {line}"))
    out.print(safe_text(f"{report.kind}: {report.summary()}; see {result.folder / 'import.md'}"), soft_wrap=True)


def _progress(settings: CliSettings) -> Callable[[str, int], None]:
    from gradeline.cli.terminal import ProgressMessages

    messages = ProgressMessages(settings)

    def report(what: str, count: int) -> None:
        if count % _LINES == 0:
            messages.print(f"imported {count:,} {what}")

    return report
