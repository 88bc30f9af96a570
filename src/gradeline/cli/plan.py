"""``gradeline plan``: the differences a suite can detect, and the cases, money and time it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import (
    CliSettings,
    assume_price_option,
    complete_run,
    current_settings,
    global_options,
    margin_option,
    suite_argument,
)
from gradeline.cli.terminal import TableColumn, console, print_table, safe_text, single_line
from gradeline.report.formatting import MISSING, duration

if TYPE_CHECKING:
    from gradeline.analysis.sizing import Need, Plan

_COLUMNS = (
    TableColumn("", key=True),
    *(TableColumn(title, right=True) for title in ("cases", "calls", "judged", "tokens in", "out", "cost", "time")),
)


@click.command()
@suite_argument
@click.option("--baseline", metavar="RUN", shell_complete=complete_run, help="Run to compare with.")
@margin_option
@click.option(
    "--power",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.8,
    show_default=True,
    help="Probability of a decision if both are equally good.",
)
@assume_price_option
@global_options
def plan(suite: Path, baseline: str | None, margin: float, power: float, prices: tuple[str, ...]) -> None:
    """Estimate the cases, calls, tokens, cost and time that a decision takes.

    The variance of the scores is read from stored runs of the suite; without a run it is a guess, and marked as one.
    No agent and no model is called.

    \b
    gradeline plan suite.yaml
    gradeline plan suite.yaml --baseline main --margin 0.01 --power 0.9
    """
    from gradeline.analysis.sizing import plan as plan_suite
    from gradeline.cli.stores import open_store, store_file
    from gradeline.suite.read import read_suite

    settings = current_settings()
    read = read_suite(suite)
    file = store_file(settings)
    absent = file is not None and not Path(file).exists()
    with nullcontext(None) if absent else open_store(settings, "read") as storage:
        found = plan_suite(storage, read, baseline=baseline, margin=margin, power=power, prices=prices)
    if settings.json:
        import json

        click.echo(json.dumps(found.to_data(), ensure_ascii=False))
    elif settings.quiet:
        click.echo(MISSING if found.needed is None else str(found.needed.cases))
    else:
        _print(settings, found)


def _print(settings: CliSettings, found: Plan) -> None:

    out = console(settings)
    repeats = f", {found.repeats} repeats" if found.repeats > 1 else ""
    out.print(safe_text(single_line(f"{found.suite}: {found.cases:,} cases{repeats}, grader {found.grader}"), "bold"))
    out.print(
        safe_text(
            single_line(f"variance: {found.spread.explanation}"), "yellow" if found.spread.source == "guess" else ""
        )
    )
    for line in _sentences(found):
        out.print(safe_text(single_line(line)))
    rows = [_row("present", found.present)]
    if found.needed is not None:
        rows.append(_row(f"margin {found.margin:g}", found.needed))
    print_table(out, _COLUMNS, rows)
    for note in found.notes:
        out.print(safe_text(single_line(note), "yellow"))


def _sentences(found: Plan) -> Iterator[str]:
    power = f"with a power of {100 * found.power:g} % if both runs are equally good"
    yield f"{found.cases:,} cases settle a margin of {found.settles:.3f} {power}"
    if found.needed is None:
        yield "without a margin, no number of cases shows that a run is not worse"
    else:
        yield f"{found.needed.cases:,} cases settle a margin of {found.margin:g}"
    widths = ", ".join(f"{one.cases:,} cases ±{one.half_width:.3f}" for one in found.half_widths)
    yield f"95 % interval of a mean near {found.spread.mean:.3f}: {widths}"
    for gate in found.gates:
        place = f"gate: {gate.grader} {gate.observed:.3f} against {gate.bound:g}"
        if gate.cases is None:
            yield f"{place}: equal, no number of cases separates them"
        else:
            yield f"{place}: {gate.cases:,} cases until the interval excludes the bound"
    for label in found.labels:
        yield f"labels for ±{label.half_width:g}: {label.rate:,} for a rate, {label.kappa:,} for a kappa of 0.7"


def _row(title: str, need: Need) -> tuple[str, ...]:
    return (
        title,
        *(f"{number:,}" for number in (need.cases, need.calls, need.judge_grades)),
        *(MISSING if number is None else f"{number:,}" for number in (need.input_tokens, need.output_tokens)),
        MISSING if need.cost is None else f"{need.cost:.3g}",
        MISSING if need.seconds is None else duration(need.seconds * 1000),
    )
