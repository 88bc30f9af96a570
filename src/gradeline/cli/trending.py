"""``gradeline trend``: the runs of a suite over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.settings import Settings, current_settings, global_options
from gradeline.cli.tables import Column, print_table

if TYPE_CHECKING:
    from rich.text import Text

    from gradeline.engine.trend import Trend, TrendPoint

_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = (
    Column("started", key=True),
    Column("id", key=True),
    Column("run", wraps=True, key=True),
    *(Column(title, right=True) for title in ("mean", "95 %", "scored", "cost")),
)


@click.command()
@click.argument("suite")
@click.option("--grader", metavar="G", help="Show this grader (default: the primary one of the newest run).")
@click.option("--last", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Number of runs.")
@global_options
def trend(suite: str, grader: str | None, last: int) -> None:
    """Show the runs of a suite over time: means with intervals, costs, and what changed between runs.

    SUITE is the name of a suite in the store, or a suite file. Means before and after a changed grader do not compare:
    the series is cut there.

    \b
    gradeline trend capitals
    gradeline trend suite.yaml --grader judge --last 50
    """
    from gradeline.cli.stores import open_store
    from gradeline.engine.trend import trend as trend_of

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
    """The name of a suite, which may be given by its file."""
    path = Path(suite)
    if path.suffix.lower() not in (".yaml", ".yml", ".json") or not path.is_file():
        return suite
    from gradeline.suite.read import read_suite

    return read_suite(path).name


def sparkline(found: Trend) -> str:
    """The means as bars from the lowest to the highest; a dot is a run without a mean.

    It is cut where the grader changed, and each part has a scale of its own: they do not compare.
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


def _print(settings: Settings, found: Trend) -> None:
    from gradeline.cli.comparing import one_line
    from gradeline.cli.terminal import console, plain

    out = console(settings)
    count = f"{len(found.points)} of {found.runs} runs" if len(found.points) < found.runs else f"{found.runs} runs"
    out.print(plain(one_line(f"{found.suite}: {count}, grader {found.grader} {sparkline(found)}"), "bold"))
    print_table(out, _COLUMNS, map(_row, found.points), gap=1)
    for point in found.points:
        for change, reason in zip(point.changes, point.reasons, strict=True):
            style = "yellow" if change == "grader" else ""
            out.print(plain(one_line(f"{point.run.id[:8]}: {reason}"), style))


def _row(point: TrendPoint) -> tuple[Text | str, ...]:
    from gradeline.cli.comparing import one_line
    from gradeline.cli.terminal import plain

    cost = point.cost["agent"]
    status = "" if point.run.status == "completed" else f" ({point.run.status})"
    return (
        (point.run.started_at or "–")[:16].replace("T", " "),
        point.run.id[:8],
        plain(one_line(f"{point.run.name}{status}"), "cyan"),
        "–" if point.mean is None else f"{point.mean:.3f}",
        "–" if point.mean_ci is None else f"{point.mean_ci[0]:.3f}–{point.mean_ci[1]:.3f}",
        f"{point.scored}/{point.total}",
        "–" if cost is None else f"{cost:.3g}{'+' if point.cost_unknown else ''}",
    )
