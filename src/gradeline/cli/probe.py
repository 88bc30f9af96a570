"""``gradeline probe``: whether length, format, position or instructions in an answer move a judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import (
    BudgetType,
    CliSettings,
    assume_price_option,
    complete_run,
    concurrency_option,
    current_settings,
    global_options,
    set_option,
    suite_argument,
)
from gradeline.cli.terminal import TableColumn, console, print_message, print_table, safe_text

if TYPE_CHECKING:
    from rich.text import Text

    from gradeline.engine.definition import RunBudget
    from gradeline.model import Run, Storage
    from gradeline.model.probe import ProbeFinding, ProbeName, ProbeReport
    from gradeline.trust.probes import ProbeRequest

EXIT_CODES = {"flagged": 1, "not_enough_data": 3, "not_flagged": 0, "not_applicable": 0}
_STYLES = {"flagged": "red", "not_flagged": "green", "not_enough_data": "yellow", "not_applicable": "dim"}
_COLUMNS = (
    TableColumn("probe", key=True),
    TableColumn("verdict"),
    TableColumn("p", right=True),
    TableColumn("power", right=True),
    TableColumn("finding", wraps=True),
)
_MISSING = "–"
_QUIET = {0: "nothing flagged", 3: "not enough data", 4: "no verdict"}


class ProbesType(click.ParamType["tuple[ProbeName, ...]"]):
    """The names of probes, separated by commas."""

    name = "probes"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[ProbeName, ...]:
        from gradeline.model.probe import PROBE_NAMES

        if isinstance(value, tuple):
            return value
        named = [name.strip().replace("-", "_") for name in str(value).split(",")]
        unknown = [name for name in named if name not in PROBE_NAMES]
        if unknown:
            names = ", ".join(PROBE_NAMES)
            self.fail(f"invalid probe {', '.join(map(repr, unknown))}: use some of {names}", param, ctx)
        return tuple(name for name in PROBE_NAMES if name in named)


@click.command()
@click.argument("grader", metavar="JUDGE")
@suite_argument
@click.option(
    "--run",
    "run_name",
    metavar="RUN",
    shell_complete=complete_run,
    help="Run whose answers to use (default: the latest of the suite, else the expected values).",
)
@click.option(
    "--baseline",
    metavar="RUN",
    shell_complete=complete_run,
    help="Run with the other answers, for a judge of pairs (default: the suite's, else the expected values).",
)
@click.option("--probe", "probes", type=ProbesType(), metavar="P,…", help="Probes to make (default: all).")
@click.option(
    "--pairs",
    type=click.IntRange(1, 10_000),
    default=200,
    show_default=True,
    metavar="N",
    help="Maximum number of answers per probe.",
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Random seed of the sample.")
@concurrency_option
@set_option
@click.option("--budget", type=BudgetType(), metavar="5usd", help="Stop once this much is spent.")
@assume_price_option
@click.option("--again", is_flag=True, help="Ask for all verdicts again, even if they are stored.")
@global_options
def probe(
    grader: str,
    suite: Path,
    run_name: str | None,
    baseline: str | None,
    probes: tuple[ProbeName, ...] | None,
    pairs: int,
    seed: int,
    concurrency: int | None,
    overrides: tuple[str, ...],
    budget: RunBudget | None,
    prices: tuple[str, ...],
    again: bool,
) -> int:
    """Probe a judge for known biases: changes that add no content must not change its verdicts.

    JUDGE is the key of a grader of SUITE that calls a model. The agent is never called: stored answers and changed
    copies of them are judged. The findings are stored with the judge and shown where it is used.

    \b
    position         order of two answers (judges of pairs)
    length           answers padded by repeating them
    format           bold words, bullets and emoji
    verbosity        filler around the answer
    authority        claimed agreement of experts
    self_preference  answers of the judge's own model family (needs labels)
    injection        instructions to the judge in an answer
    repeat           several verdicts on the same answer

    Repeat the command to continue after an interruption: verdicts that are stored are not paid again.

    Exit codes: 0 nothing is flagged, 1 a bias is flagged, 2 usage error, 3 not enough data, 4 no verdict at all.
    """
    from gradeline.cli.stores import open_store
    from gradeline.engine import lifecycle
    from gradeline.engine.definition import RunOptions
    from gradeline.model.probe import PROBE_NAMES
    from gradeline.trust.probes import ProbeRequest

    settings = current_settings()
    options = RunOptions(concurrency=concurrency, overrides=overrides, budget=budget, prices=prices)
    request = ProbeRequest(
        suite, grader, run_name, baseline, PROBE_NAMES if probes is None else probes, pairs, seed, options, again
    )
    with open_store(settings) as storage:
        return lifecycle.run_event_loop(_probe(settings, storage, request))


async def _probe(settings: CliSettings, storage: Storage, request: ProbeRequest) -> int:
    import json

    import msgspec

    from gradeline.cli.execute import observer
    from gradeline.trust.probes import probe_judge

    advice = "continue with the same command: verdicts that are stored are not paid again"
    observing = observer(settings, storage, advice=lambda _: advice)
    outcome = await probe_judge(storage, request, observing)
    report = outcome.report
    if report is None:
        print_message(f"{outcome.stopped}; {advice}")
        code = stopped_code(outcome.run, outcome.stopped)
        if settings.json:
            data = {"probe_run": outcome.run.id, "stopped": outcome.stopped, "exit_code": code}
            click.echo(json.dumps(data, ensure_ascii=False))
        return code
    code = exit_code(report)
    if settings.json:
        click.echo(json.dumps({**msgspec.to_builtins(report), "exit_code": code}, ensure_ascii=False))
    elif settings.quiet:
        click.echo(", ".join(one.probe for one in report.flagged) or _QUIET[code])
    else:
        _print(settings, report)
    return code


def exit_code(report: ProbeReport) -> int:
    """1 with a bias, 4 without any verdict, 3 without enough data for every probe, else 0."""
    if report.errors and report.errors == report.verdicts:
        return 4
    codes = {EXIT_CODES[one.verdict] for one in report.findings}
    return 1 if 1 in codes else max(codes, default=0)


def stopped_code(run: Run, stopped: str | None) -> int:
    """The exit code of a command whose run of a judge ended early."""
    from gradeline.engine.execute import INTERRUPTED_REASON

    if stopped == INTERRUPTED_REASON:
        return 130
    return 4 if run.status == "failed" else 3


def _print(settings: CliSettings, report: ProbeReport) -> None:
    out = console(settings)
    out.print(safe_text(f"{report.grader}: {', '.join(report.judges)}", "bold"))
    out.print(safe_text(_summary(report)))
    for reason, count in report.left_out.items():
        out.print(safe_text(f"left out: {count:,} × {reason}"))
    print_table(out, _COLUMNS, map(_row, report.findings))


def _summary(report: ProbeReport) -> str:
    cost = "cost unknown" if report.cost is None else f"cost {report.cost:.4g}"
    errors = f", {report.errors:,} without a verdict" if report.errors else ""
    answers = f"{report.answers:,} answer{'s' * (report.answers != 1)}"
    return f"{report.verdicts:,} verdicts on {answers} from {report.source}{errors}; {cost}"


def _row(finding: ProbeFinding) -> tuple[Text, ...]:
    style = _STYLES[finding.verdict]
    p = _MISSING if finding.p is None else f"{finding.p:.2g}"
    power = _MISSING if finding.power is None else f"{finding.power:.0%}"
    text = finding.sentence
    if finding.reason is not None and finding.reason != finding.sentence:
        text = f"{text}; {finding.reason}"
    cells = (finding.probe, "cyan"), (finding.verdict.replace("_", " "), style), (p, ""), (power, ""), (text, "")
    return tuple(safe_text(cell, kind) for cell, kind in cells)
