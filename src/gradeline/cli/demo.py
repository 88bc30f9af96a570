"""``gradeline demo``: every family of graders on a small dataset, and a comparison of two models."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import CliSettings, current_settings, global_options
from gradeline.cli.terminal import OUTCOME_STYLES, TableColumn, console, print_table, program_name, safe_text
from gradeline.report.formatting import MISSING, outcome_word

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from gradeline.model import Record


@click.command()
@global_options
def demo() -> None:
    """Show every family of graders on sample data, then run and compare two models of a built-in agent."""
    from gradeline.demo import grade_custom_demo, grade_demo
    from gradeline.model import to_json

    settings = current_settings()
    records, custom = list(grade_demo()), grade_custom_demo()
    if settings.json:
        for record in (*records, *custom):
            click.echo(to_json(record))
        return

    out = console(settings)
    print_grades(out, records)
    out.print("\nCustom Python graders in worker processes: one hangs on a case, another kills its process.\n")
    print_grades(out, custom)
    _compare_models(settings, out)


def _compare_models(settings: CliSettings, out: Console) -> None:
    """Two runs of the demo agent and their comparison, kept in a store."""
    import asyncio

    from gradeline.cli.compare import print_comparison
    from gradeline.cli.execute import demo_runs
    from gradeline.cli.stores import open_store
    from gradeline.engine.comparison import compare

    settings = settings if settings.store else settings._replace(store=".gradeline/demo.db")
    out.print("\nThe demo agent over HTTP, as a small and a large model, on the same cases:\n")
    with open_store(settings) as storage:
        small, large = asyncio.run(demo_runs(settings, storage))
        out.print("\nIs the difference real?\n")
        print_comparison(settings, compare(storage, small, large))
    out.print(
        "\nNine cases improved, but they are three questions in three wordings each: three clusters of 24, which may be"
        " chance."
    )
    if not settings.quiet:
        name = program_name()
        out.print(f"\nNext: {name} init evals, {name} show latest --store {settings.store}, {name} graders")


def print_grades(out: Console, records: list[Record]) -> None:
    """Print the table of grades and their counts."""

    columns = (
        TableColumn("case", key=True),
        TableColumn("grader", key=True),
        TableColumn("kind"),
        TableColumn("outcome"),
        TableColumn("score", right=True),
        TableColumn("why", wraps=True),
    )
    rows: list[tuple[Text | str, ...]] = []
    counts: Counter[str] = Counter()
    for record in records:
        case = record.case
        for key, grade in record.grades.items():
            counts[grade.outcome] += 1
            score = MISSING if grade.score is None else f"{grade.score:.2f}"
            why = grade.error.message if grade.error else grade.rationale or _call_failed(record)
            style = OUTCOME_STYLES[grade.outcome]
            rows.append(
                (
                    safe_text(case),
                    safe_text(key),
                    safe_text(grade.kind, "dim"),
                    safe_text(outcome_word(grade.outcome), style),
                    score,
                    safe_text(why, most=160),
                )
            )
            case = ""
    print_table(out, columns, rows)
    graded = counts["pass"] + counts["fail"]
    total = sum(counts.values())
    out.print()
    out.print(
        f"{graded} of {total} graded: {counts['pass']} pass, {counts['fail']} fail. "
        f"Without a score, not counted as 0: {counts['error']} error, {counts['skipped']} skipped, "
        f"{counts['not_applicable']} not applicable."
    )


def _call_failed(record: Record) -> str:
    return f"agent call failed: {record.response.error.message}" if record.response.error else ""
