"""``gradeline trend``: the runs of a suite over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import CliSettings, current_settings, global_options
from gradeline.cli.terminal import TableColumn, console, print_table, safe_text, single_line
from gradeline.report.formatting import MISSING

if TYPE_CHECKING:
    from rich.text import Text

    from gradeline.analysis.trend import Trend, TrendPoint

_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = (
    TableColumn("started", key=True),
    TableColumn("id", key=True),
    TableColumn("run", wraps=True, key=True),
    *(TableColumn(title, right=True) for title in ("mean", "95 %", "scored", "cost")),
)


@click.command()
@click.argument("suite")
@click.option("--grader", metavar="G", help="Grader to show (default: the newest run's primary one).")
@click.option(
    "--last", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Number of runs to show."
)
@global_options
def trend(suite: str, grader: str | None, last: int) -> None:
    """Show the runs of a suite over time: means with intervals, costs, and changes between runs.

    SUITE is the name of a stored suite, or a suite file. The series is cut where a grader changed or its judge
    drifted, because means before and after are not comparable.

    \b
    gradeline trend capitals
    gradeline trend suite.yaml --grader judge --last 50
    """
    from gradeline.analysis.trend import trend as trend_of
    from gradeline.cli.stores import open_store

    settings = current_settings()
    with open_store(settings, "read") as storage:
        found = trend_of(storage, suite_name(suite), grader=grader, last=last)
    if settings.json:
        import json

        click.echo(json.dumps(found.to_data(), ensure_ascii=False))
    elif settings.quiet:
        click.echo(sparkline(found))
    else:
        _print(settings, found)


def suite_name(suite: str) -> str:
    """The name of a suite given by name or by file."""
    path = Path(suite)
    if path.suffix.lower() not in (".yaml", ".yml", ".json") or not path.is_file():
        return suite
    from gradeline.suite.read import read_suite

    return read_suite(path).name


def sparkline(found: Trend) -> str:
    """The means as bars from the lowest to the highest; a dot is a run without a mean.

    It is cut where the grader changed, and each part has its own scale: they are not comparable.
    """
    parts: dict[int, list[float | None]] = {}
    for point in found.points:
        parts.setdefault(point.segment, []).append(point.mean)
    return "│".join("".join(_bars(means)) for means in parts.values())


def _bars(means: Sequence[float | None]) -> Iterator[str]:
    known = [mean for mean in means if mean is not None]
    for mean in means:
        if mean is None:
            yield "·"
        else:
            low, high = min(known), max(known)
            share = (mean - low) / (high - low) if high > low else 0.5
            yield _BARS[round(share * (len(_BARS) - 1))]


def _print(settings: CliSettings, found: Trend) -> None:

    out = console(settings)
    count = f"{len(found.points)} of {found.runs} runs" if len(found.points) < found.runs else f"{found.runs} runs"
    out.print(safe_text(single_line(f"{found.suite}: {count}, grader {found.grader} {sparkline(found)}"), "bold"))
    print_table(out, _COLUMNS, map(_row, found.points), gap=1)
    for point in found.points:
        for change, reason in zip(point.changes, point.reasons, strict=True):
            style = "yellow" if change in ("grader", "judge") else ""
            out.print(safe_text(single_line(f"{point.run.id[:8]}: {reason}"), style))


def _row(point: TrendPoint) -> tuple[Text | str, ...]:

    cost = point.cost["agent"]
    status = "" if point.run.status == "completed" else f" ({point.run.status})"
    return (
        (point.run.started_at or MISSING)[:16].replace("T", " "),
        point.run.id[:8],
        safe_text(single_line(f"{point.run.name}{status}"), "cyan"),
        MISSING if point.mean is None else f"{point.mean:.3f}",
        MISSING if point.mean_ci is None else f"{point.mean_ci[0]:.3f}–{point.mean_ci[1]:.3f}",
        f"{point.scored}/{point.total}",
        MISSING if cost is None else f"{cost:.3g}{'+' if point.cost_unknown else ''}",
    )
