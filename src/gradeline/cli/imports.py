"""``gradeline import``: suites, cases, responses and grades of other tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import CliSettings, current_settings, global_options

if TYPE_CHECKING:
    from gradeline.importers.kinds import ImportResult
    from gradeline.model import Storage

_QUIET_S = 1.0
_INTERVAL_S = 2.0
_LINES = 100
"""Lines between two looks at the clock."""
_MOST_ITEMS = 10


@click.command("import")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--from", "kind", metavar="KIND", help="Kind of source (default: detected).")
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="New folder for what is written."
)
@click.option("--name", help="Name of the suite and its runs (default: the source's).")
@click.option("--input", "input_path", metavar="PATH", help="JMESPath of a case's input, where inputs are any JSON.")
@click.option("--expected", "expected_path", metavar="PATH", help="JMESPath of a case's expected value.")
@global_options
def import_command(
    source: Path, kind: str | None, output: Path, name: str | None, input_path: str | None, expected_path: str | None
) -> int:
    """Import suites, cases, responses and grades of another tool.

    Writes suite.yaml, cases.jsonl, code for graders where it is needed, answers.jsonl with recorded responses, and
    import.md: what was mapped, what differs, and what was left out. Recorded results become runs in the store, for
    compare and regrade. Code in the source is never executed.

    The exit code is 0 if all was mapped, 3 if something is only similar, 1 if something was left out.

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
    from gradeline.cli.terminal import print_message

    due = monotonic() + _QUIET_S

    def report(what: str, count: int) -> None:
        nonlocal due
        if count % _LINES == 0 and not settings.quiet and monotonic() >= due:
            due = monotonic() + _INTERVAL_S
            print_message(f"imported {count:,} {what}")

    return report
