"""``gradeline compare``: candidate against baseline, case by case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import click

from gradeline.cli.settings import Settings, current_settings, global_options

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from gradeline.engine.compare import Comparison
    from gradeline.stats.changes import Range
    from gradeline.verdict.comparison import GraderComparison

_SHOWN_CASES = 10
_STYLES = {"better": "green", "not_worse": "green", "worse": "red", "undecided": "yellow"}
_TITLES = ("grader", "base → cand", "diff", "95 %", "p", "up", "down", "same", "miss", "decision")


@click.command()
@click.argument("baseline", metavar="BASE")
@click.argument("candidate", metavar="CAND")
@click.option(
    "--margin",
    type=click.FloatRange(0, 1),
    default=0.02,
    show_default=True,
    help="How much worse on average is still not worse.",
)
@click.option("--force", is_flag=True, help="Compare even where the graders differ.")
@global_options
def compare(baseline: str, candidate: str, margin: float, force: bool) -> int:
    """Compare two runs case by case: is the candidate better, worse, or is it undecided?

    A run is named by its id, the start of it, its name, latest or latest~1.

    Exits with 0 when every grader says better or not worse, 1 when one says worse, 3 when it is undecided, 2 when the
    runs cannot be compared.

    \b
    gradeline compare latest~1 latest
    gradeline compare main my-branch --margin 0.01
    """
    import json

    from gradeline.cli.stores import open_store
    from gradeline.engine.compare import compare as compare_runs

    settings = current_settings()
    with open_store(settings) as storage:
        first, second = storage.find_run(baseline), storage.find_run(candidate)
        comparison = compare_runs(storage, first, second, margin=margin, force=force)
    if settings.json:
        click.echo(json.dumps(comparison.to_data(), ensure_ascii=False))
    elif settings.quiet:
        click.echo(comparison.decision or "not comparable")
    else:
        print_comparison(settings, comparison)
    return comparison.exit_code


def print_comparison(settings: Settings, comparison: Comparison) -> None:
    from gradeline.cli.terminal import console, plain

    out = console(settings)
    for title, run in (("baseline", comparison.baseline), ("candidate", comparison.candidate)):
        out.print(plain(f"{title:<10} {one_line(run.name)}  {run.id}", "bold"))
    for reason in comparison.reasons:
        out.print(plain(f"  {one_line(reason)}", "" if comparison.comparable else "yellow"))
    if comparison.graders:
        out.print(_table(comparison.graders.items()))
    for note in _notes(comparison):
        out.print(note)
    decision = comparison.decision
    if decision is None:
        out.print(plain("not comparable; --force compares what there is in common", "bold red"))
    else:
        out.print(plain(f"decision: {_words(decision)}", f"bold {_STYLES[decision]}"))


def _table(graders: Iterable[tuple[str, GraderComparison]]) -> Table:
    from rich.table import Table  # 20 ms, only for people

    from gradeline.cli.terminal import plain

    # fits a terminal of 80 columns, with room for the grader's name
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for title in _TITLES:
        left = title in ("grader", "decision")
        table.add_column(title, justify="left" if left else "right", no_wrap=title != "grader")
    for key, grader in graders:
        table.add_row(
            plain(one_line(key), "cyan"),
            f"{_decimal(grader.baseline)} → {_decimal(grader.candidate)}",
            *_difference(grader.difference, grader.difference_ci),
            _p(grader.p_value),
            *(str(count) for count in (grader.improved, grader.worse, grader.same, grader.missing)),
            plain(_words(grader.decision), _STYLES[grader.decision]),
        )
    return table


def _notes(comparison: Comparison) -> Iterator[Text]:
    """Which cases are meant, and what is still open."""
    from gradeline.cli.terminal import plain

    for key, grader in comparison.graders.items():
        yield from _listed(f"{key}: worse", grader.worse_cases)
        yield from _listed(f"{key}: improved", grader.improved_cases)
        yield from _listed(f"{key}: missing", grader.missing_cases)
    yield from _listed("edited", comparison.edited)
    for key, grader in comparison.graders.items():
        if grader.decision == "undecided":
            yield plain(one_line(f"{key}: undecided: {_open(grader)}"), "yellow")


def _listed(title: str, cases: Sequence[str]) -> Iterator[Text]:
    from gradeline.cli.terminal import plain

    if cases:
        names = plain(", ").join(plain(one_line(case), most=60) for case in islice(cases, _SHOWN_CASES))
        more = len(cases) - _SHOWN_CASES
        yield plain(f"{one_line(title)}: ") + names + plain(f" … and {more:,} more" if more > 0 else "")


def _open(grader: GraderComparison) -> str:
    if not grader.pairs:
        return "no case has a score in both runs"
    if grader.cases_to_decide is None:
        return "no number of cases like these would settle it; a margin would"
    return f"about {grader.cases_to_decide - grader.pairs:,} more cases would settle it"


def one_line(text: str) -> str:
    """A text from outside that cannot pass for lines of ours."""
    return " ".join(text.split())


def _words(decision: str) -> str:
    return decision.replace("_", " ")


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "<0.0001" if value < 0.0001 else f"{value:.4f}"


def _difference(value: float | None, interval: Range | None) -> tuple[str, str]:
    """The difference and its interval, with as many decimals as show that they are not 0."""
    if value is None or interval is None:
        return "–", "–"
    digits = 3
    while digits < 6 and any(number and not round(number, digits) for number in (value, *interval)):
        digits += 1
    low, high = (f"{bound:+.{digits}f}" for bound in interval)
    return f"{value:+.{digits}f}", f"{low}…{high}"
