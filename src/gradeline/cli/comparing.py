"""``gradeline compare``: candidate against baseline, case by case; `gradeline.cli.many` shows three or more runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradeline.cli.settings import Settings, complete_run, current_settings, global_options
from gradeline.cli.tables import Column, print_table

if TYPE_CHECKING:
    from rich.text import Text

    from gradeline.engine.compare import Comparison
    from gradeline.model import Run, Storage
    from gradeline.stats.changes import Range
    from gradeline.verdict.comparison import Drop, GraderComparison

_SHOWN_CASES = 10
_STYLES = {"better": "green", "not_worse": "green", "worse": "red", "undecided": "yellow"}
_COLUMNS = (
    Column("grader", wraps=True, key=True),
    *(Column(title, right=True) for title in ("base → cand", "diff", "95 %", "p", "up", "down", "same", "miss")),
    Column("decision"),
)


@click.command()
@click.argument("names", metavar="BASE CAND [RUN]...", nargs=-1, shell_complete=complete_run)
@click.option("--group", metavar="RUN", shell_complete=complete_run, help="Compare all runs of this run's group.")
@click.option(
    "--margin",
    type=click.FloatRange(0, 1),
    default=0.02,
    show_default=True,
    help="Mean loss that still counts as not worse.",
)
@click.option("--force", is_flag=True, help="Compare even where the graders differ.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the scores, a column for each run: .csv, .json, .jsonl or .parquet (needs the extra export).",
)
@global_options
def compare(names: tuple[str, ...], group: str | None, margin: float, force: bool, output: Path | None) -> int:
    """Compare runs case by case: is the candidate better, worse, or is it undecided?

    A run is named by its id, the start of it, its name, latest or latest~1.

    The suite's primary graders decide; any other can only veto, by a significant loss.

    Exits with 0 when the candidate is better or not worse, 1 when it is worse, 3 when it is undecided, 2 when the runs
    cannot be compared.

    Three or more runs are ranked, with ties where no difference is certain. That exits with 0 when they were compared,
    2 when they cannot be. A group is the runs of one command with several models.

    \b
    gradeline compare latest~1 latest
    gradeline compare main my-branch --margin 0.01
    gradeline compare small medium large --output scores.csv
    gradeline compare --group latest
    """
    from gradeline.cli.garbage import look_seldom
    from gradeline.cli.stores import open_store
    from gradeline.engine.many import FEWEST, find_group, find_runs

    look_seldom()
    settings = current_settings()
    if group is not None and names:
        raise click.UsageError(f"--group names all runs to compare; leave out {names[0]!r}.")
    if group is None and len(names) < 2:
        raise click.UsageError(f"Missing argument {'CAND' if names else 'BASE'!r}.")
    with open_store(settings, "read") as storage:
        if group is not None:
            runs = find_group(storage, group)
        else:
            runs = find_runs(storage, names) if len(names) >= FEWEST else [storage.find_run(name) for name in names]
        if output is not None:
            _write_scores(output, storage, runs)
        if len(runs) >= FEWEST:
            return _compare_many(settings, storage, runs, margin, force)
        return _compare_two(settings, storage, runs, margin, force)


def _compare_two(settings: Settings, storage: Storage, runs: Sequence[Run], margin: float, force: bool) -> int:
    from gradeline.engine.compare import compare as compare_runs

    baseline, candidate = runs
    comparison = compare_runs(storage, baseline, candidate, margin=margin, force=force)
    if settings.json:
        _print_json(comparison.to_data())
    elif settings.quiet:
        click.echo(comparison.decision or "not comparable")
    else:
        print_comparison(settings, comparison)
    return comparison.exit_code


def _compare_many(settings: Settings, storage: Storage, runs: Sequence[Run], margin: float, force: bool) -> int:
    from gradeline.cli.many import print_many
    from gradeline.engine.many import compare_many

    comparison = compare_many(storage, runs, margin=margin, force=force)
    if settings.json:
        _print_json(comparison.to_data())
    elif settings.quiet:
        click.echo(comparison.sentence or "not comparable")
    else:
        print_many(settings, comparison)
    return comparison.exit_code


def _print_json(data: dict[str, Any]) -> None:
    import json

    click.echo(json.dumps(data, ensure_ascii=False))


def _write_scores(output: Path, storage: Storage, runs: Sequence[Run]) -> None:
    from gradeline.cli.exporting import new_file, write_parquet_file
    from gradeline.engine.many import read_matrix
    from gradeline.report.matrix import PARQUET, matrix_writer, write_matrix_parquet

    if output.suffix.lower() == PARQUET:
        write_parquet_file(output, lambda path: write_matrix_parquet(path, read_matrix(storage, runs)))
        return
    write = matrix_writer(output)
    with new_file(output) as file:
        write(file, read_matrix(storage, runs))


def print_comparison(settings: Settings, comparison: Comparison) -> None:
    from gradeline.cli.terminal import console, plain

    out = console(settings)
    for title, run in (("baseline", comparison.baseline), ("candidate", comparison.candidate)):
        out.print(plain(f"{title:<10} {one_line(run.name)}  {run.id}", "bold"))
    for reason in comparison.reasons:
        out.print(plain(f"  {one_line(reason)}", "" if comparison.comparable else "yellow"))
    for warning in comparison.warnings:
        out.print(plain(f"  warning: {one_line(warning)}", "yellow", most=2000))
    if comparison.graders:
        print_table(out, _COLUMNS, map(_row, comparison.graders, comparison.graders.values()), gap=1)
    for note in _notes(comparison):
        out.print(note)
    decision = comparison.decision
    if decision is None:
        out.print(plain("not comparable; --force compares what there is in common", "bold red"))
    else:
        out.print(plain(one_line(f"decision: {comparison.sentence}"), f"bold {_STYLES[decision]}"))


def _row(key: str, grader: GraderComparison) -> tuple[Text | str, ...]:
    from gradeline.cli.terminal import plain

    return (
        plain(one_line(key), "cyan"),
        f"{_decimal(grader.baseline)} → {_decimal(grader.candidate)}",
        *_difference(grader.difference, grader.difference_ci),
        _p(grader.p_value),
        *(str(count) for count in (grader.improved, grader.worse, grader.same, grader.missing)),
        plain(_words(grader.decision), _STYLES[grader.decision]),
    )


def _notes(comparison: Comparison) -> Iterator[Text]:
    """Which cases are meant, and what is still open."""
    from gradeline.cli.terminal import plain

    compared = {key: grader.compared for key, grader in comparison.graders.items() if grader.clusters is not None}
    if len(set(compared.values())) == 1:
        yield plain(next(iter(compared.values())))
    else:
        yield from (plain(one_line(f"{key}: {cases}")) for key, cases in compared.items())
    for key, grader in comparison.graders.items():
        yield from _listed(f"{key}: worse", grader.worse_cases)
        yield from _listed(f"{key}: improved", grader.improved_cases)
        yield from _listed(f"{key}: missing", grader.missing_cases)
        if grader.depends_on_symmetry:
            yield from _drops(key, grader.largest_drops)
    yield from _listed("edited", comparison.edited)
    thresholds = [(key, grader.noise_threshold) for key, grader in comparison.graders.items()]
    yield from _listed("chance", [f"{key} ±{chance:.3f}" for key, chance in thresholds if chance is not None])
    for key, grader in comparison.graders.items():
        if grader.noise_rule is not None:
            yield plain(one_line(f"noise: {key}: {grader.noise_rule}"))
    for key, grader in comparison.graders.items():
        if grader.decision == "undecided" and key in comparison.primary:  # the decision reports the others
            yield plain(one_line(f"{key}: undecided: {'; '.join(grader.reasons)}"), "yellow")


def _drops(key: str, drops: Sequence[Drop]) -> Iterator[Text]:
    from gradeline.cli.terminal import plain

    if drops:
        each = (
            plain(one_line(drop.case), most=60) + plain(f" {drop.baseline:.3f} → {drop.candidate:.3f}")
            for drop in drops
        )
        yield plain(one_line(f"{key}: largest drops: ")) + plain(" ") + plain(", ").join(each)


def _listed(title: str, cases: Sequence[str]) -> Iterator[Text]:
    from gradeline.cli.terminal import plain

    if cases:
        names = plain(", ").join(plain(one_line(case), most=60) for case in islice(cases, _SHOWN_CASES))
        more = len(cases) - _SHOWN_CASES
        yield plain(f"{one_line(title)}: ") + names + plain(f" … and {more:,} more" if more > 0 else "")


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
