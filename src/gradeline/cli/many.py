"""``gradeline compare`` of three or more runs: a table of all, ranks with ties, and who beats whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradeline.cli.settings import Settings
from gradeline.cli.tables import Column, print_table
from gradeline.engine.many import ComparedRun, GraderRanking, ManyComparison, RunScore
from gradeline.report.wording import MISSING
from gradeline.verdict.comparison import noise_in_words

if TYPE_CHECKING:
    from rich.text import Text

_MOST_IN_MATRIX = 10
"""Runs whose differences fit side by side in 80 columns."""
_SCORES = tuple(Column(title, right=True) for title in ("mean", "95 %", "scored"))
_DECIDING = (
    Column("#", right=True),
    Column("rank", right=True),
    Column("run", wraps=True, key=True),
    *_SCORES,
    Column("cost/case", right=True),
    Column("p50 ms", right=True),
    Column("front"),
)
_OTHER = (*_DECIDING[:3], *_SCORES)
_FRONT = {True: "yes", False: "no", None: MISSING}


def print_many(settings: Settings, comparison: ManyComparison) -> None:
    """The table of the grader that decides, those of the others, then the differences between all runs."""
    from gradeline.cli.terminal import console, plain

    out = console(settings)
    out.print(plain(f"{len(comparison.runs)} runs, {comparison.cases:,} cases in all of them", "bold"))
    for reason in comparison.reasons:
        out.print(plain(f"  {_one_line(reason)}", "" if comparison.comparable else "yellow", most=2000))
    for warning in comparison.warnings:
        out.print(plain(f"  warning: {_one_line(warning)}", "yellow", most=2000))
    first = comparison.deciding
    if first is None:
        for one in comparison.runs:
            out.print(plain(f"  {_one_line(one.run.name)}  {one.run.id}"))
        out.print(plain("not comparable; --force compares what all of them have", "bold red"))
        return
    ordered = comparison.ordered
    keys = [first, *(key for key in comparison.graders if key != first)]
    for key in keys:
        ranking = comparison.graders[key]
        rows = [
            (*_row(number, one, ranking.runs[one.run.id]), *(_figures(one) if key == first else ()))
            for number, one in enumerate(ordered, start=1)
        ]
        title = f"{_one_line(key)}: {ranking.cases:,} cases"
        print_table(out, _DECIDING if key == first else _OTHER, rows, title=title, gap=1)
    if len(ordered) <= _MOST_IN_MATRIX:
        _print_differences(settings, ordered, comparison.graders[first])
    else:
        out.print(plain(f"the differences of {len(comparison.graders[first].pairs)} pairs are in --json"))
    for key in keys:
        if noise := comparison.graders[key].noise:
            rule = f"{noise_in_words(noise)} in differences and ranks, not in means"
            out.print(plain(_one_line(f"noise: {key}: {rule}")))
    out.print(plain(_one_line(comparison.sentence or ""), "bold"))
    for line in _front_lines(comparison):
        out.print(plain(_one_line(line)))


def _row(number: int, one: ComparedRun, score: RunScore) -> tuple[Text | str, ...]:
    from gradeline.cli.terminal import plain

    bounds = MISSING if score.mean_ci is None else f"{score.mean_ci[0]:.3f}–{score.mean_ci[1]:.3f}"
    return (
        str(number),
        shown_rank(score.rank),
        plain(_one_line(one.run.name), "cyan"),
        MISSING if score.mean is None else f"{score.mean:.3f}",
        bounds,
        f"{score.scored}/{score.total}",
    )


def _figures(one: ComparedRun) -> tuple[str, str, str]:
    cost = MISSING if one.cost_per_case is None else f"{one.cost_per_case:.3g}"
    latency = MISSING if one.latency_ms is None else f"{one.latency_ms['p50']:,.0f}"
    return cost, latency, _FRONT[one.on_front]


def shown_rank(rank: tuple[int, int] | None) -> str:
    """``1``, or ``2–3`` where it is not certain."""
    if rank is None:
        return MISSING
    best, worst = rank
    return str(best) if best == worst else f"{best}–{worst}"


def _print_differences(settings: Settings, ordered: list[ComparedRun], ranking: GraderRanking) -> None:
    """A matrix: the mean of the run in the row minus that of the run in the column."""
    from gradeline.cli.terminal import console, plain

    numbers = {one.run.id: number for number, one in enumerate(ordered, start=1)}
    cells = {}
    for pair in ranking.pairs:
        mark = "" if pair.winner is None else "*"
        row, column = numbers[pair.candidate], numbers[pair.baseline]
        cells[row, column] = f"{_signed(pair.difference)}{mark}"
        cells[column, row] = f"{_signed(0.0 - pair.difference)}{mark}"
    out = console(settings)
    out.print(plain("row minus column (* not tied: adjusted p ≤ 0.05)", "italic"))
    places = range(1, len(ordered) + 1)
    lines = ["#  " + "".join(f"{place:>7}" for place in places)]
    lines += [f"{row:<3}" + "".join(f"{cells.get((row, column), '·'):>7}" for column in places) for row in places]
    for line in lines:
        out.print(plain(line.rstrip()))


def _signed(difference: float) -> str:
    """``+.019``: ten of these are side by side in 80 columns."""
    return f"{difference:+.3f}".replace("0.", ".", 1) if abs(difference) < 0.9995 else f"{difference:+.2f}"


def _front_lines(comparison: ManyComparison) -> Iterator[str]:
    front = [f"{one.run.name} ({one.cost_per_case:.3g} per case)" for one in comparison.ordered if one.on_front]
    if front:
        yield f"quality for money: no run is as good for less than {', '.join(front)}"
    unknown = [one.run.name for one in comparison.ordered if one.on_front is None]
    if unknown:
        yield f"cost unknown: {', '.join(unknown)}; give prices with --assume-price, or let the agent report its usage"


def _one_line(text: str) -> str:
    return " ".join(text.split())
