"""``gradeline plan``: what a suite can settle, and what it needs to settle more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.runs import assume_price, suite_file
from gradeline.cli.settings import Settings, complete_run, current_settings, global_options
from gradeline.cli.tables import Column, print_table

if TYPE_CHECKING:
    from gradeline.engine.sizing import Need, Plan

_COLUMNS = (
    Column("", key=True),
    *(Column(title, right=True) for title in ("cases", "calls", "judged", "tokens in", "out", "cost", "time")),
)


@click.command()
@suite_file
@click.option("--baseline", metavar="RUN", shell_complete=complete_run, help="The run to compare with.")
@click.option(
    "--margin",
    type=click.FloatRange(0, 1),
    default=0.02,
    show_default=True,
    help="Mean loss that still counts as not worse.",
)
@click.option(
    "--power",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.8,
    show_default=True,
    help="Chance to settle it if both are equally good.",
)
@assume_price
@global_options
def plan(suite: Path, baseline: str | None, margin: float, power: float, prices: tuple[str, ...]) -> None:
    """Plan a suite: the cases, calls, tokens, money and time that it takes to settle a question.

    How much scores vary is read from the suite's runs in the store; without a run it is a guess, which is stated.
    No agent and no model is called.

    \b
    gradeline plan suite.yaml
    gradeline plan suite.yaml --baseline main --margin 0.01 --power 0.9
    """
    from gradeline.cli.stores import open_store, store_file
    from gradeline.engine.sizing import plan as plan_suite
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
        click.echo("–" if found.needed is None else str(found.needed.cases))
    else:
        _print(settings, found)


def _print(settings: Settings, found: Plan) -> None:
    from gradeline.cli.comparing import one_line
    from gradeline.cli.terminal import console, plain

    out = console(settings)
    repeats = f", {found.repeats} repeats" if found.repeats > 1 else ""
    out.print(plain(one_line(f"{found.suite}: {found.cases:,} cases{repeats}, grader {found.grader}"), "bold"))
    out.print(
        plain(one_line(f"variance: {found.spread.explanation}"), "yellow" if found.spread.source == "guess" else "")
    )
    for line in _sentences(found):
        out.print(plain(one_line(line)))
    rows = [_row("present", found.present)]
    if found.needed is not None:
        rows.append(_row(f"margin {found.margin:g}", found.needed))
    print_table(out, _COLUMNS, rows)
    for note in found.notes:
        out.print(plain(one_line(note), "yellow"))


def _sentences(found: Plan) -> Iterator[str]:
    chance = f"with a chance of {100 * found.power:g} % if both runs are equally good"
    yield f"{found.cases:,} cases settle a margin of {found.settles:.3f} {chance}"
    if found.needed is None:
        yield "without a margin, no number of cases shows that a run is not worse"
    else:
        yield f"{found.needed.cases:,} cases settle a margin of {found.margin:g}"
    widths = ", ".join(f"{one.cases:,} cases ±{one.half_width:.3f}" for one in found.half_widths)
    yield f"95 % interval of a mean near {found.spread.mean:.3f}: {widths}"
    for gate in found.gates:
        place = f"gate: {gate.grader} {gate.observed:.3f} against {gate.bound:g}"
        if gate.cases is None:
            yield f"{place}: equal, so that no number of cases tells them apart"
        else:
            yield f"{place}: {gate.cases:,} cases until the interval leaves the bound out"
    for label in found.labels:
        yield f"labels for ±{label.half_width:g}: {label.rate:,} for a rate, {label.kappa:,} for a kappa of 0.7"


def _row(title: str, need: Need) -> tuple[str, ...]:
    from gradeline.report.wording import MISSING, duration

    return (
        title,
        *(f"{number:,}" for number in (need.cases, need.calls, need.judge_grades)),
        *(MISSING if number is None else f"{number:,}" for number in (need.input_tokens, need.output_tokens)),
        MISSING if need.cost is None else f"{need.cost:.3g}",
        MISSING if need.seconds is None else duration(need.seconds * 1000),
    )
