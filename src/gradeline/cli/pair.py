"""``gradeline pair``: judge a candidate against a baseline and record it in the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import (
    BudgetType,
    CliSettings,
    assume_price_option,
    complete_run,
    current_settings,
    global_options,
    set_option,
    suite_argument,
)

if TYPE_CHECKING:
    from gradeline.engine.definition import RunBudget
    from gradeline.engine.pairwise import Pair, PairRequest, Side
    from gradeline.model import Storage

_OFFLINE = ("exact-match", "embedding")


class JudgeType(click.ParamType[str]):
    """A judge on the command line, converted to the configuration of a grader as JSON."""

    name = "judge"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in _OFFLINE:
            return json.dumps({"kind": "baseline", "judge": value})
        provider, colon, model = value.partition(":")
        if not colon or not provider or not model:
            self.fail(f"invalid judge {value!r}: use {', '.join(_OFFLINE)} or PROVIDER:MODEL", param, ctx)
        return json.dumps({"kind": "baseline", "judge": "llm", "provider": provider, "model": model})


@click.command()
@suite_argument
@click.option("--baseline", metavar="MODEL", help="Model or variant to compare with.")
@click.option("--candidate", metavar="MODEL", help="Model or variant to judge.")
@click.option(
    "--baseline-run", metavar="RUN", shell_complete=complete_run, help="Run whose stored responses to compare with."
)
@click.option(
    "--candidate-run", metavar="RUN", shell_complete=complete_run, help="Run whose stored responses to judge."
)
@click.option(
    "--judge",
    type=JudgeType(),
    metavar="JUDGE",
    help="exact-match, embedding or PROVIDER:MODEL (default: the suite's pairwise and baseline graders).",
)
@click.option("--limit", type=click.IntRange(0), metavar="N", help="Run only the first N cases.")
@click.option("--tag", "tags", multiple=True, metavar="T", help="Run only cases with this tag (repeatable).")
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum calls in flight per side (default: the suite's, else 15).",
)
@set_option
@click.option("--budget", type=BudgetType(), metavar="5usd", help="Stop each run once this much is spent.")
@click.option("--name", metavar="TEXT", help="Name of the judging run.")
@assume_price_option
@click.option("--again", is_flag=True, help="Judge again even if this pair was judged the same way.")
@click.option("--no-ledger", is_flag=True, help="Do not record the verdicts in the quality ledger.")
@global_options
def pair(
    suite: Path,
    baseline: str | None,
    candidate: str | None,
    baseline_run: str | None,
    candidate_run: str | None,
    judge: str | None,
    limit: int | None,
    tags: tuple[str, ...],
    concurrency: int | None,
    overrides: tuple[str, ...],
    budget: RunBudget | None,
    prices: tuple[str, ...],
    name: str | None,
    again: bool,
    no_ledger: bool,
) -> int:
    """Run a baseline and a candidate on the same cases and let a judge compare their responses.

    Both run at the same time. Then every pair is judged, and the verdicts are added to the quality ledger. Each step is
    a stored run: after an interruption, continue with --baseline-run and --candidate-run.

    A judge's scores are heuristic: longer answers, familiar formatting, the order of the answers and the judge's own
    model family can bias it. Calibrate it before you rely on it.
    """
    from gradeline.cli.stores import open_store
    from gradeline.engine import lifecycle
    from gradeline.engine.definition import RunOptions
    from gradeline.engine.pairwise import PairRequest

    settings = current_settings()
    sides = (_side("baseline", baseline, baseline_run), _side("candidate", candidate, candidate_run))
    choice = RunOptions(
        limit=limit, tags=tags, concurrency=concurrency, overrides=overrides, budget=budget, prices=prices
    )
    request = PairRequest(suite, *sides, choice, judge, name, again)
    with open_store(settings) as storage:
        return lifecycle.run_event_loop(_pair(settings, storage, request, record=not no_ledger))


def _side(name: str, model: str | None, run: str | None) -> Side:
    from gradeline.engine.pairwise import Side

    if (model is None) is (run is None):
        raise click.UsageError(f"Name the {name}: either --{name} MODEL or --{name}-run RUN.")
    return Side(model, run)


async def _pair(settings: CliSettings, storage: Storage, request: PairRequest, *, record: bool) -> int:
    from gradeline.cli import execute
    from gradeline.engine.execute import INTERRUPTED_REASON
    from gradeline.engine.pairwise import pair_runs
    from gradeline.ledger.judged_runs import record_run

    pair = await pair_runs(storage, request, execute.observer(settings, storage, shared_display=True))
    if pair.judged is None or pair.stopped is not None:
        click.echo(f"{pair.stopped}; continue with: {_resume_command(request, pair)}", err=True)
        code = 130 if pair.stopped == INTERRUPTED_REASON else _stopped_code(pair)
        if settings.json:
            data = {"stopped": pair.stopped} if pair.judged is None else pair.judged.to_data()
            sides = {"baseline": pair.baseline.id, "candidate": pair.candidate.id}
            click.echo(json.dumps({**data, **sides, "exit_code": code}, ensure_ascii=False))
        return code
    recorded = record_run(storage, pair.judged.report.run) if record else 0
    if not settings.json and not settings.quiet:
        click.echo(f"baseline   {pair.baseline.id}  {pair.baseline.name}")
        click.echo(f"candidate  {pair.candidate.id}  {pair.candidate.name}")
    code = execute.print_runs(settings, storage, [pair.judged], baseline=pair.baseline.id, candidate=pair.candidate.id)
    if recorded and not settings.json and not settings.quiet:
        click.echo(f"{recorded} observations in the ledger; see them with: gradeline ledger")
    return code


def _stopped_code(pair: Pair) -> int:
    """4 if a failed side left nothing to judge, else 3 (undecided)."""
    if pair.judged is not None:
        return pair.judged.exit_code
    return 4 if "failed" in (pair.baseline.status, pair.candidate.status) else 3


def _resume_command(request: PairRequest, pair: Pair) -> str:
    import shlex

    words = ["gradeline", "pair", str(request.suite), "--baseline-run", pair.baseline.id]
    words += ["--candidate-run", pair.candidate.id]
    if request.judge is not None:
        judge = json.loads(request.judge)
        words += ["--judge", f"{judge['provider']}:{judge['model']}" if judge["judge"] == "llm" else judge["judge"]]
    for override in request.options.overrides:
        words += ["--set", override]
    return shlex.join(words)
