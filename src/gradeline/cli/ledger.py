"""``gradeline ledger``: what the quality ledger knows of each model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.settings import Settings, current_settings, global_options
from gradeline.cli.streams import streaming_output

if TYPE_CHECKING:
    from gradeline.ledger import QualityLedger, QualityRow

_UNITS = (("d", 86400), ("h", 3600), ("min", 60))
_NAMED = 10


@click.command()
@click.option("--family", metavar="F", help="Observations of this task family alone.")
@click.option("--adapter", metavar="A", help="Observations of this candidate adapter alone.")
@click.option(
    "--export",
    "output",
    metavar="FILE",
    help="Write the observations themselves: JSON lines, CSV where the name ends in .csv; - is standard output.",
)
@global_options
def ledger(family: str | None, adapter: str | None, output: str | None) -> None:
    """Show the quality ledger: per task family, candidate, baseline and judge, how good the candidate was found to be.

    \b
    n         cases that have a score, each once however often it was observed
    mean      of the cases' mean scores, with its 95 % interval over cases
    coverage  the share of all observations that have a score
    age       since the latest observation

    \b
    gradeline ledger
    gradeline ledger --family support --json
    gradeline ledger --export ledger.csv
    """
    from gradeline.cli.stores import open_store
    from gradeline.ledger import QualityLedger

    settings = current_settings()
    if output == "-" and settings.json:
        raise click.UsageError("--export - writes lines to standard output, where --json prints one object; use one")
    with open_store(settings, "read") as storage:
        found = QualityLedger(storage)
        if output is not None:
            _export(settings, found, output, family, adapter)
        elif settings.json:
            import json

            told = {"rows": [row._asdict() for row in found.query(family, adapter)]}
            click.echo(json.dumps(told, ensure_ascii=False))
        elif rows := found.query(family, adapter):
            _print_rows(settings, rows)
        else:
            click.echo(_nothing(found, family, adapter))


def _export(settings: Settings, found: QualityLedger, output: str, family: str | None, adapter: str | None) -> None:
    if output == "-":
        from gradeline.ledger.files import write_lines

        with streaming_output():
            write_lines(sys.stdout.buffer, found.each(family, adapter))
        return
    number = found.export(Path(output), task_family=family, adapter=adapter)
    if settings.json:
        import json

        click.echo(json.dumps({"written": [output]}, ensure_ascii=False))
    elif not settings.quiet:
        click.echo(f"{number:,} observation{'' if number == 1 else 's'} written to {output}")


def _print_rows(settings: Settings, rows: list[QualityRow]) -> None:
    from gradeline.cli.tables import Column, print_table
    from gradeline.cli.terminal import console, plain

    columns = (
        Column("family", wraps=True, key=True),
        Column("adapter", wraps=True, key=True),
        Column("baseline", wraps=True, key=True),
        Column("judge", wraps=True, key=True),
        *(Column(title, right=True) for title in ("n", "mean", "95 %", "coverage", "age")),
    )
    cells = (
        (
            plain(row.task_family, "cyan", most=80),
            plain(row.adapter, most=80),
            plain(row.baseline_adapter, most=80),
            plain(row.grader_id, most=80),
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
    """In the largest unit that it fills."""
    for name, size in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size):,} {name}"
    return f"{int(seconds)} s"


def _nothing(found: QualityLedger, family: str | None, adapter: str | None) -> str:
    """Why there is no row, and what to do."""
    from gradeline.cli.terminal import harmless

    rows = found.query()
    if not rows:
        return (
            "No observations yet. Add what a judge says of a pair, from Python:\n"
            "  from gradeline.ledger import QualityLedger\n"
            "  with QualityLedger(STORE) as ledger:\n"
            "      ledger.record(result, task_family=…, baseline_adapter=…, candidate_adapter=…)"
        )
    wanted = [f"family {family!r}"] * (family is not None) + [f"adapter {adapter!r}"] * (adapter is not None)
    there = list(dict.fromkeys(f"{row.task_family} / {row.adapter}" for row in rows))
    more = ", …" if len(there) > _NAMED else ""
    return harmless(f"No observations of {' and '.join(wanted)}. There are: {', '.join(there[:_NAMED])}{more}")
