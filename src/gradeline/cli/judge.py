"""``gradeline judge tune``: rubrics of a judge, compared on labels."""

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
)
from gradeline.cli.probe import stopped_code
from gradeline.cli.terminal import TableColumn, console, print_message, print_table, safe_text
from gradeline.report.formatting import MISSING, count_noun, decimal, interval

if TYPE_CHECKING:
    from rich.text import Text

    from gradeline.engine.definition import RunBudget
    from gradeline.model import Storage
    from gradeline.trust.rubric_choice import RubricAgreement, RubricChoice
    from gradeline.trust.tuning import TuneReport, TuneRequest

_COLUMNS = (
    TableColumn("rubric", wraps=True, key=True),
    *(TableColumn(title, right=True) for title in ("agrees", "95 %", "kappa", "no verdict", "chosen")),
    TableColumn("note", wraps=True),
)
_MAX_RUBRIC = 20_000


@click.group()
def judge() -> None:
    """Improve the judge of a suite."""


@judge.command()
@click.argument("run", shell_complete=complete_run)
@click.option("--grader", metavar="KEY", help="Grader whose judge to tune (default: the only one with a judge).")
@click.option("--question", metavar="NAME", help="Question that the labels answer (default: that of the grader).")
@click.option(
    "--rubric",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a rubric to try; repeat it for several.",
)
@click.option(
    "--propose",
    type=click.IntRange(0, 10),
    default=0,
    metavar="N",
    help="Rubrics that the judge's model proposes (default 0).",
)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Random seed of the folds.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a better rubric here."
)
@concurrency_option
@click.option("--budget", type=BudgetType(), metavar="5usd", help="Stop once this much is spent.")
@assume_price_option
@global_options
def tune(
    run: str,
    grader: str | None,
    question: str | None,
    files: tuple[Path, ...],
    propose: int,
    seed: int,
    output: Path | None,
    concurrency: int | None,
    budget: RunBudget | None,
    prices: tuple[str, ...],
) -> int:
    """Compare rubrics of a judge on the labelled answers of RUN.

    Each rubric grades the labelled answers; the agent is never called. The best one is chosen on four fifths of the
    labels and measured on the rest, five times, so that no rubric is measured on labels that chose it. With --propose,
    the model sees half of the labels, and all rubrics are compared on the other half.

    Repeat the command to continue after an interruption: verdicts that are stored are not paid again.

    Exit codes: 0 a rubric is better than the suite's, 3 no rubric is better for certain, 2 usage error, 4 no verdict.

    \b
    gradeline judge tune latest --rubric strict.txt --rubric steps.txt
    gradeline judge tune latest --grader quality --propose 3 --output better.txt
    """
    from gradeline.cli.stores import open_store
    from gradeline.engine import lifecycle
    from gradeline.engine.definition import RunOptions
    from gradeline.trust.tuning import TuneRequest

    settings = current_settings()
    options = RunOptions(concurrency=concurrency, budget=budget, prices=prices)
    request = TuneRequest(run, grader, question, _rubrics(files), propose, seed, options)
    with open_store(settings) as storage:
        return lifecycle.run_event_loop(_tune(settings, storage, request, output))


def _rubrics(files: tuple[Path, ...]) -> dict[str, str]:
    """The rubrics by the names of their files; `ConfigError` lists the files that hold none."""
    from gradeline.errors import ConfigError, Problem

    rubrics: dict[str, str] = {}
    problems = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig").strip()
        except UnicodeDecodeError:
            problems.append(Problem(str(file), "is not UTF-8 text"))
            continue
        if not text:
            problems.append(Problem(str(file), "is empty: write the rubric into it"))
        elif len(text) > _MAX_RUBRIC:
            problems.append(Problem(str(file), f"has {len(text):,} characters; a rubric has at most {_MAX_RUBRIC:,}"))
        elif file.stem in rubrics:
            problems.append(Problem(str(file), f"has the same name as another rubric, {file.stem!r}; rename one"))
        rubrics[file.stem] = text
    if problems:
        raise ConfigError(problems)
    return rubrics


async def _tune(settings: CliSettings, storage: Storage, request: TuneRequest, output: Path | None) -> int:
    import json

    import msgspec

    from gradeline.cli.execute import observer
    from gradeline.trust.tuning import tune_judge

    advice = "continue with the same command: verdicts that are stored are not paid again"
    outcome = await tune_judge(storage, request, observer(settings, storage, advice=lambda _: advice))
    report = outcome.report
    if report is None:
        code = stopped_code(outcome.run, outcome.stopped)
        print_message(f"{outcome.stopped}; {advice}")
        if settings.json:
            data = {"tune_run": outcome.run.id, "stopped": outcome.stopped, "exit_code": code}
            click.echo(json.dumps(data, ensure_ascii=False))
        return code
    better = report.choice.decision == "better"
    code = 0 if better else 3
    if settings.json:
        click.echo(json.dumps({**msgspec.to_builtins(report), "exit_code": code}, ensure_ascii=False))
    elif settings.quiet:
        click.echo(report.choice.winner if better else "no better rubric")
    else:
        _print(settings, report)
    if output is not None:
        _write(output, report)
    return code


def _write(output: Path, report: TuneReport) -> None:
    from gradeline.model.files import output_file

    if report.choice.decision != "better":
        print_message(f"{output} is not written: no rubric is better for certain")
        return
    with output_file(output) as file:
        file.write(report.rubrics[report.choice.winner].encode() + b"\n")
    print_message(f"wrote the rubric {report.choice.winner} to {output}")


def _print(settings: CliSettings, report: TuneReport) -> None:
    out, choice = console(settings), report.choice
    print_table(out, _COLUMNS, (_row(one, choice) for one in choice.rubrics))
    style = "green" if choice.decision == "better" else "yellow"
    out.print(safe_text(sentence(report), style))
    cost = "unknown" if report.cost is None else f"{report.cost:.4g}"
    out.print(safe_text(f"cost of the verdicts: {cost}"))


def _row(one: RubricAgreement, choice: RubricChoice) -> tuple[Text, ...]:
    cells = (
        (one.name, "cyan"),
        (f"{one.agreed} of {one.of}" if one.of else MISSING, ""),
        (interval(one.agreement_ci), ""),
        (MISSING if one.kappa is None else f"{one.kappa:.2f}", ""),
        (str(one.missing), ""),
        (f"{one.chosen} of {choice.folds}", ""),
        (f"left out: {one.left_out}" if one.left_out else "", ""),
    )
    return tuple(safe_text(cell, style) for cell, style in cells)


def sentence(report: TuneReport) -> str:
    """The result in words."""
    choice = report.choice
    low, high = choice.difference_ci
    left_out = f"; {count_noun(choice.left_out, 'label')} left out, without all verdicts" if choice.left_out else ""
    shown = f"; {count_noun(report.shown, 'label')} shown to the model that proposed" if report.shown else ""
    measured = (
        f"on labels that did not choose it: agreement {decimal(choice.agreement)} ({interval(choice.agreement_ci)}),"
        f" {choice.difference:+.3f} ({low:+.3f}…{high:+.3f}) against the suite's rubric,"
        f" {count_noun(choice.labels, 'label')}{left_out}{shown}"
    )
    if choice.decision == "better":
        return f"better: {choice.winner}; {measured}"
    return f"no rubric is better for certain; the best, {choice.winner}, {measured}"
