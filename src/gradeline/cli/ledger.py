"""``gradeline ledger``: the quality of each model by the observations in the ledger."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import CliSettings, current_settings, global_options
from gradeline.cli.streams import streaming_output
from gradeline.cli.terminal import TableColumn, console, print_table, safe_text

if TYPE_CHECKING:
    from gradeline.ledger import QualityLedger, QualityRow

_UNITS = (("d", 86400), ("h", 3600), ("min", 60))
_MAX_NAMED = 10


@click.command()
@click.option("--family", metavar="F", help="Only observations of this task family.")
@click.option("--adapter", metavar="A", help="Only observations of this candidate adapter.")
@click.option(
    "--export",
    "output",
    metavar="FILE",
    help="Write the observations as JSON lines, or as CSV to a .csv file; - is standard output.",
)
@global_options
def ledger(family: str | None, adapter: str | None, output: str | None) -> None:
    """Show the quality of each candidate, by task family, baseline and judge.

    \b
    n         cases with a score; a case observed several times counts once
    mean      mean of the cases' mean scores, with its 95 % interval over cases
    coverage  share of observations that have a score
    age       time since the latest observation

    \b
    gradeline ledger
    gradeline ledger --family support --json
    gradeline ledger --export ledger.csv
    """
    from gradeline.cli.stores import open_store
    from gradeline.ledger import QualityLedger

    settings = current_settings()
    if output == "-" and settings.json:
        raise click.UsageError("--export - and --json both write to standard output; use only one of them")
    with open_store(settings, "read") as storage:
        found = QualityLedger(storage)
        if output is not None:
            _export(settings, found, output, family, adapter)
        elif settings.json:
            import json

            data = {"rows": [row._asdict() for row in found.query(family, adapter)]}
            click.echo(json.dumps(data, ensure_ascii=False))
        elif rows := found.query(family, adapter):
            _print_rows(settings, rows)
        else:
            click.echo(_no_rows_message(found, family, adapter))


def _export(settings: CliSettings, found: QualityLedger, output: str, family: str | None, adapter: str | None) -> None:
    if output == "-":
        from gradeline.ledger.quality import write_lines

        with streaming_output():
            write_lines(sys.stdout.buffer, found.each(family, adapter))
        return
    number = found.export(Path(output), task_family=family, adapter=adapter)
    if settings.json:
        import json

        click.echo(json.dumps({"written": [output]}, ensure_ascii=False))
    elif not settings.quiet:
        click.echo(f"{number:,} observation{'' if number == 1 else 's'} written to {output}")


def _print_rows(settings: CliSettings, rows: list[QualityRow]) -> None:

    columns = (
        TableColumn("family", wraps=True, key=True),
        TableColumn("adapter", wraps=True, key=True),
        TableColumn("baseline", wraps=True, key=True),
        TableColumn("judge", wraps=True, key=True),
        *(TableColumn(title, right=True) for title in ("n", "mean", "95 %", "coverage", "age")),
    )
    cells = (
        (
            safe_text(row.task_family, "cyan", most=80),
            safe_text(row.adapter, most=80),
            safe_text(row.baseline_adapter, most=80),
            safe_text(row.grader_id, most=80),
            f"{row.n:,}",
            "–" if row.mean is None else f"{row.mean:.3f}",
            "–" if row.interval is None else f"{row.interval.low:.3f}–{row.interval.high:.3f}",
            f"{row.coverage:.0%}",
            _age(row.age),
        )
        for row in rows
    )
    print_table(console(settings), columns, cells)


def _age(seconds: float) -> str:
    """An age in its largest unit."""
    for name, size in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size):,} {name}"
    return f"{int(seconds)} s"


def _no_rows_message(found: QualityLedger, family: str | None, adapter: str | None) -> str:
    """Why there are no rows, and what to do."""
    from gradeline.report.formatting import visible

    rows = found.query()
    if not rows:
        return (
            "No observations yet. Record the verdict of a judge on a pair from Python:\n"
            "  from gradeline.ledger import QualityLedger\n"
            "  with QualityLedger(STORE) as ledger:\n"
            "      ledger.record(result, task_family=…, baseline_adapter=…, candidate_adapter=…)"
        )
    filters = [f"family {family!r}"] * (family is not None) + [f"adapter {adapter!r}"] * (adapter is not None)
    known = list(dict.fromkeys(f"{row.task_family} / {row.adapter}" for row in rows))
    more = ", …" if len(known) > _MAX_NAMED else ""
    return visible(f"No observations of {' and '.join(filters)}. Known: {', '.join(known[:_MAX_NAMED])}{more}")
