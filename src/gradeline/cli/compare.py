"""``gradeline compare``: a candidate against a baseline, or a ranking of three or more runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradeline.cli.options import (
    CliSettings,
    complete_run,
    current_settings,
    global_options,
    margin_option,
    suite_option,
)
from gradeline.cli.terminal import TableColumn, console, print_table, safe_text, single_line
from gradeline.report.formatting import MISSING, count_noun, run_title

if TYPE_CHECKING:
    from rich.text import Text

    from gradeline.analysis.ranking import ComparedRun, GraderRanking, ManyComparison, RunScore
    from gradeline.engine.comparison import Comparison
    from gradeline.model import Run, Storage
    from gradeline.stats.paired import Range
    from gradeline.verdict.paired_decision import Drop, GraderComparison

_MAX_CASES = 10
_STYLES = {"better": "green", "not_worse": "green", "worse": "red", "undecided": "yellow"}
_COLUMNS = (
    TableColumn("grader", wraps=True, key=True),
    *(TableColumn(title, right=True) for title in ("base → cand", "diff", "95 %", "p", "up", "down", "same", "miss")),
    TableColumn("decision"),
)
_MAX_MATRIX = 10
"""Largest number of runs whose differences fit into 80 columns."""
_SCORE_COLUMNS = tuple(TableColumn(title, right=True) for title in ("mean", "95 %", "scored"))
_DECIDING_COLUMNS = (
    TableColumn("#", right=True),
    TableColumn("rank", right=True),
    TableColumn("run", wraps=True, key=True),
    *_SCORE_COLUMNS,
    TableColumn("cost/case", right=True),
    TableColumn("p50 ms", right=True),
    TableColumn("front"),
)
_OTHER_COLUMNS = (*_DECIDING_COLUMNS[:3], *_SCORE_COLUMNS)
_CORRECTED = {"pass_rate": "pass rate", "mean_score": "mean"}
_ON_FRONT = {True: "yes", False: "no", None: MISSING}


@click.command()
@click.argument("names", metavar="BASE CAND [RUN]...", nargs=-1, shell_complete=complete_run)
@click.option(
    "--group", metavar="RUN", shell_complete=complete_run, help="Compare all runs of the group that RUN belongs to."
)
@suite_option
@margin_option
@click.option("--force", is_flag=True, help="Compare even if the graders differ.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the scores, one column per run: .csv, .json, .jsonl or .parquet (needs the extra export).",
)
@global_options
def compare(
    names: tuple[str, ...], group: str | None, suite: str | None, margin: float, force: bool, output: Path | None
) -> int:
    """Compare runs case by case: is the candidate better, worse, or undecided?

    A run is an id, a baseline, a name, the start of an id, latest or latest~1. A group is the runs of one command with
    several models.

    The suite's primary graders decide; any other grader can only veto, by a significant loss.

    Three or more runs are ranked, with ties where no difference is certain.

    Exit codes of two runs: 0 better or not worse, 1 worse, 2 not comparable, 3 undecided. Of three or more: 0 compared,
    2 not comparable.

    \b
    gradeline compare latest~1 latest
    gradeline compare main my-branch --margin 0.01
    gradeline compare small medium large --output scores.csv
    gradeline compare --group latest
    """
    from gradeline.analysis.ranking import FEWEST, find_group, find_pair, find_runs
    from gradeline.cli.stores import open_store

    settings = current_settings()
    if group is not None and names:
        raise click.UsageError(f"--group already selects the runs to compare; remove {names[0]!r}.")
    if group is None and len(names) < 2:
        raise click.UsageError(f"Missing argument {'CAND' if names else 'BASE'!r}.")
    with open_store(settings, "read") as storage:
        if group is not None:
            runs = find_group(storage, group)
        elif len(names) >= FEWEST:
            runs = find_runs(storage, names, suite)
        else:
            runs = find_pair(storage, names[0], names[1], suite)
        if output is not None:
            _write_scores(output, storage, runs)
        if len(runs) >= FEWEST:
            return _compare_many(settings, storage, runs, margin, force)
        return _compare_two(settings, storage, runs, margin, force)


def _compare_two(settings: CliSettings, storage: Storage, runs: Sequence[Run], margin: float, force: bool) -> int:
    from gradeline.engine.comparison import compare as compare_runs

    baseline, candidate = runs
    comparison = compare_runs(storage, baseline, candidate, margin=margin, force=force)
    if settings.json:
        _print_json(comparison.to_data())
    elif settings.quiet:
        click.echo(comparison.decision or "not comparable")
    else:
        print_comparison(settings, comparison)
    return comparison.exit_code


def _compare_many(settings: CliSettings, storage: Storage, runs: Sequence[Run], margin: float, force: bool) -> int:
    from gradeline.analysis.ranking import compare_many

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
    from gradeline.analysis.ranking import read_matrix
    from gradeline.cli.export import output_text_file, write_parquet_file
    from gradeline.report.table import PARQUET, matrix_writer, write_matrix_parquet

    if output.suffix.lower() == PARQUET:
        write_parquet_file(output, lambda path: write_matrix_parquet(path, read_matrix(storage, runs)))
        return
    write = matrix_writer(output)
    with output_text_file(output) as file:
        write(file, read_matrix(storage, runs))


def print_comparison(settings: CliSettings, comparison: Comparison) -> None:

    out = console(settings)
    for title, run in (("baseline", comparison.baseline), ("candidate", comparison.candidate)):
        out.print(safe_text(f"{title:<10} {single_line(run_title(run))}  {run.id}", "bold"))
    for reason in comparison.reasons:
        out.print(safe_text(f"  {single_line(reason)}", "" if comparison.comparable else "yellow"))
    for warning in comparison.warnings:
        out.print(safe_text(f"  warning: {single_line(warning)}", "yellow", most=2000))
    if comparison.graders:
        print_table(out, _COLUMNS, map(_row, comparison.graders, comparison.graders.values()), gap=1)
    for note in _notes(comparison):
        out.print(note)
    decision = comparison.decision
    if decision is None:
        out.print(safe_text("not comparable; use --force to compare what they have in common", "bold red"))
    else:
        out.print(safe_text(single_line(f"decision: {comparison.sentence}"), f"bold {_STYLES[decision]}"))


def _row(key: str, grader: GraderComparison) -> tuple[Text | str, ...]:

    return (
        safe_text(single_line(key), "cyan"),
        f"{_decimal(grader.baseline)} → {_decimal(grader.candidate)}",
        *_difference(grader.difference, grader.difference_ci),
        _p(grader.p_value),
        *(str(count) for count in (grader.improved, grader.worse, grader.same, grader.missing)),
        safe_text(_words(grader.decision), _STYLES[grader.decision]),
    )


def _notes(comparison: Comparison) -> Iterator[Text]:
    """The cases behind the numbers, and why a grader is undecided."""

    compared = {key: grader.compared for key, grader in comparison.graders.items() if grader.clusters is not None}
    if len(set(compared.values())) == 1:
        yield safe_text(next(iter(compared.values())))
    else:
        yield from (safe_text(single_line(f"{key}: {cases}")) for key, cases in compared.items())
    for key, grader in comparison.graders.items():
        yield from _case_list(f"{key}: worse", grader.worse_cases)
        yield from _case_list(f"{key}: improved", grader.improved_cases)
        yield from _case_list(f"{key}: missing", grader.missing_cases)
        if grader.depends_on_symmetry:
            yield from _drops(key, grader.largest_drops)
    yield from _case_list("edited", comparison.edited)
    thresholds = [(key, grader.noise_threshold) for key, grader in comparison.graders.items()]
    yield from _case_list("chance", [f"{key} ±{chance:.3f}" for key, chance in thresholds if chance is not None])
    for key, grader in comparison.graders.items():
        if grader.noise_rule is not None:
            yield safe_text(single_line(f"noise: {key}: {grader.noise_rule}"))
    for key, grader in comparison.graders.items():
        if grader.corrected is not None:
            yield safe_text(single_line(f"{key}: {_CORRECTED[grader.corrected.measure]} {grader.corrected.sentence}"))
    for key, grader in comparison.graders.items():
        if grader.decision == "undecided" and key in comparison.primary:  # the decision reports the others
            yield safe_text(single_line(f"{key}: undecided: {'; '.join(grader.reasons)}"), "yellow")


def _drops(key: str, drops: Sequence[Drop]) -> Iterator[Text]:

    if drops:
        each = (
            safe_text(single_line(drop.case), most=60) + safe_text(f" {drop.baseline:.3f} → {drop.candidate:.3f}")
            for drop in drops
        )
        yield safe_text(single_line(f"{key}: largest drops: ")) + safe_text(" ") + safe_text(", ").join(each)


def _case_list(title: str, cases: Sequence[str]) -> Iterator[Text]:

    if cases:
        names = safe_text(", ").join(safe_text(single_line(case), most=60) for case in islice(cases, _MAX_CASES))
        more = len(cases) - _MAX_CASES
        yield safe_text(f"{single_line(title)}: ") + names + safe_text(f" … and {more:,} more" if more > 0 else "")


def _words(decision: str) -> str:
    return decision.replace("_", " ")


def _decimal(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"


def _p(value: float | None) -> str:
    if value is None:
        return MISSING
    return "<0.0001" if value < 0.0001 else f"{value:.4f}"


def _difference(value: float | None, interval: Range | None) -> tuple[str, str]:
    """The difference and its interval, with enough decimals to show that they are not 0."""
    if value is None or interval is None:
        return MISSING, MISSING
    digits = 3
    while digits < 6 and any(number and not round(number, digits) for number in (value, *interval)):
        digits += 1
    low, high = (f"{bound:+.{digits}f}" for bound in interval)
    return f"{value:+.{digits}f}", f"{low}…{high}"


def print_many(settings: CliSettings, comparison: ManyComparison) -> None:
    """Print the table of the deciding grader, those of the others, then the differences between all runs."""

    from gradeline.verdict.paired_decision import noise_in_words

    out = console(settings)
    out.print(safe_text(f"{len(comparison.runs)} runs, {count_noun(comparison.cases, 'case')} in all of them", "bold"))
    for reason in comparison.reasons:
        out.print(safe_text(f"  {single_line(reason)}", "" if comparison.comparable else "yellow", most=2000))
    for warning in comparison.warnings:
        out.print(safe_text(f"  warning: {single_line(warning)}", "yellow", most=2000))
    first = comparison.deciding
    if first is None:
        for one in comparison.runs:
            out.print(safe_text(f"  {single_line(run_title(one.run))}  {one.run.id}"))
        out.print(safe_text("not comparable; use --force to compare what they have in common", "bold red"))
        return
    ordered = comparison.ordered
    keys = [first, *(key for key in comparison.graders if key != first)]
    for key in keys:
        ranking = comparison.graders[key]
        rows = [
            (*_run_row(number, one, ranking.runs[one.run.id]), *(_figures(one) if key == first else ()))
            for number, one in enumerate(ordered, start=1)
        ]
        title = f"{single_line(key)}: {count_noun(ranking.cases, 'case')}"
        print_table(out, _DECIDING_COLUMNS if key == first else _OTHER_COLUMNS, rows, title=title, gap=1)
    if len(ordered) <= _MAX_MATRIX:
        _print_differences(settings, ordered, comparison.graders[first])
    else:
        out.print(safe_text(f"use --json to see the differences of {len(comparison.graders[first].pairs)} pairs"))
    for key in keys:
        if noise := comparison.graders[key].noise:
            rule = f"{noise_in_words(noise)} in differences and ranks, not in means"
            out.print(safe_text(single_line(f"noise: {key}: {rule}")))
    out.print(safe_text(single_line(comparison.sentence or ""), "bold"))
    for line in _front_lines(comparison):
        out.print(safe_text(single_line(line)))


def _run_row(number: int, one: ComparedRun, score: RunScore) -> tuple[Text | str, ...]:

    bounds = MISSING if score.mean_ci is None else f"{score.mean_ci[0]:.3f}–{score.mean_ci[1]:.3f}"
    return (
        str(number),
        _rank(score.rank),
        safe_text(single_line(run_title(one.run)), "cyan"),
        MISSING if score.mean is None else f"{score.mean:.3f}",
        bounds,
        f"{score.scored}/{score.total}",
    )


def _figures(one: ComparedRun) -> tuple[str, str, str]:
    cost = MISSING if one.cost_per_case is None else f"{one.cost_per_case:.3g}"
    latency = MISSING if one.latency_ms is None else f"{one.latency_ms['p50']:,.0f}"
    return cost, latency, _ON_FRONT[one.on_front]


def _rank(rank: tuple[int, int] | None) -> str:
    """``1``, or ``2–3`` if it is uncertain."""
    if rank is None:
        return MISSING
    best, worst = rank
    return str(best) if best == worst else f"{best}–{worst}"


def _print_differences(settings: CliSettings, ordered: list[ComparedRun], ranking: GraderRanking) -> None:
    """A matrix: the mean of the run in the row minus that of the run in the column."""

    numbers = {one.run.id: number for number, one in enumerate(ordered, start=1)}
    cells = {}
    for pair in ranking.pairs:
        mark = "" if pair.winner is None else "*"
        row, column = numbers[pair.candidate], numbers[pair.baseline]
        cells[row, column] = f"{_signed(pair.difference)}{mark}"
        cells[column, row] = f"{_signed(0.0 - pair.difference)}{mark}"
    out = console(settings)
    out.print(safe_text("row minus column (* not tied: adjusted p ≤ 0.05)", "italic"))
    places = range(1, len(ordered) + 1)
    lines = ["#  " + "".join(f"{place:>7}" for place in places)]
    lines += [f"{row:<3}" + "".join(f"{cells.get((row, column), '·'):>7}" for column in places) for row in places]
    for line in lines:
        out.print(safe_text(line.rstrip()))


def _signed(difference: float) -> str:
    """``+.019``: short enough for ten in 80 columns."""
    return f"{difference:+.3f}".replace("0.", ".", 1) if abs(difference) < 0.9995 else f"{difference:+.2f}"


def _front_lines(comparison: ManyComparison) -> Iterator[str]:
    front = [f"{one.run.name} ({one.cost_per_case:.3g} per case)" for one in comparison.ordered if one.on_front]
    if front:
        yield f"best value (none is as good at a lower cost): {', '.join(front)}"
    unknown = [one.run.name for one in comparison.ordered if one.on_front is None]
    if unknown:
        yield f"cost unknown: {', '.join(unknown)}; give prices with --assume-price, or let the agent report its usage"
