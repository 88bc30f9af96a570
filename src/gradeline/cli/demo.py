"""``gradeline demo``: every family of grader at work on a small dataset."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from gradeline.cli.settings import Settings, current_settings, global_options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from gradeline.model import Record


@click.command()
@global_options
def demo() -> None:
    """Every family of grader at work, then a built-in agent asked as two models, and their comparison."""
    from gradeline.demo import grade_custom_demo, grade_demo
    from gradeline.model import to_json

    settings = current_settings()
    records, custom = list(grade_demo()), grade_custom_demo()
    if settings.json:
        for record in (*records, *custom):
            click.echo(to_json(record))
        return
    from gradeline.cli.terminal import console

    out = console(settings)
    draw(out, records)
    out.print(
        "\nCustom graders in Python, in worker processes: one hangs on a case, one ends its process on another.\n"
    )
    draw(out, custom)
    _compare_models(settings, out)


def _compare_models(settings: Settings, out: Console) -> None:
    """Two runs of the demo agent and what the difference is worth, left in a store to look at."""
    import asyncio

    from gradeline.cli.comparing import print_comparison
    from gradeline.cli.running import demo_runs
    from gradeline.cli.stores import open_store
    from gradeline.engine.compare import compare

    settings = settings if settings.store else settings._replace(store=".gradeline/demo.db")
    out.print("\nThe demo agent over HTTP, as a small and as a large model, asked the same questions:\n")
    with open_store(settings) as storage:
        small, large = asyncio.run(demo_runs(settings, storage))
        out.print("\nIs the difference real?\n")
        print_comparison(settings, compare(storage, small, large))
    out.print(
        "\nNine cases improved, but they ask for three capitals in three wordings each: as three clusters they may have"
        " improved by chance."
    )
    if not settings.quiet:
        out.print(f"\nNext: gradeline show latest --store {settings.store}, gradeline init, gradeline graders")


def draw(out: Console, records: list[Record]) -> None:
    """The table of grades, and what they come to."""
    from gradeline.cli.tables import Column, print_table
    from gradeline.cli.terminal import OUTCOME_STYLES, plain

    columns = (
        Column("case", key=True),
        Column("grader", key=True),
        Column("kind"),
        Column("outcome"),
        Column("score", right=True),
        Column("why", wraps=True),
    )
    rows: list[tuple[Text | str, ...]] = []
    counts: Counter[str] = Counter()
    for record in records:
        case = record.case
        for key, grade in record.grades.items():
            counts[grade.outcome] += 1
            score = "–" if grade.score is None else f"{grade.score:.2f}"
            why = grade.error.message if grade.error else grade.rationale or _call_failed(record)
            style = OUTCOME_STYLES[grade.outcome]
            rows.append(
                (
                    plain(case),
                    plain(key),
                    plain(grade.kind, "dim"),
                    plain(grade.outcome, style),
                    score,
                    plain(why, most=160),
                )
            )
            case = ""
    print_table(out, columns, rows)
    graded = counts["pass"] + counts["fail"]
    total = sum(counts.values())
    out.print()
    out.print(
        f"{graded} of {total} graded: {counts['pass']} pass, {counts['fail']} fail. "
        f"Without a score, and never counted as 0: {counts['error']} error, {counts['skipped']} skipped."
    )


def _call_failed(record: Record) -> str:
    return f"the agent's call failed: {record.response.error.message}" if record.response.error else ""
