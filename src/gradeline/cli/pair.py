"""``gradeline pair``: a candidate beside a baseline, judged, and kept in the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.runs import BudgetType, assume_price, suite_file
from gradeline.cli.settings import Settings, complete_run, current_settings, global_options

if TYPE_CHECKING:
    from gradeline.engine.execute import Budget
    from gradeline.engine.pairs import Pair, PairOrder, Side
    from gradeline.model import Storage

_OFFLINE = ("exact-match", "embedding")


class JudgeType(click.ParamType[str]):
    """A judge as it is written on the command line: the kind of a grader of this name, as YAML."""

    name = "judge"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in _OFFLINE:
            return json.dumps({"kind": "baseline", "judge": value})
        provider, colon, model = value.partition(":")
        if not colon or not provider or not model:
            self.fail(f"{value!r} is no judge; write {', '.join(_OFFLINE)} or PROVIDER:MODEL", param, ctx)
        return json.dumps({"kind": "baseline", "judge": "llm", "provider": provider, "model": model})


@click.command()
@suite_file
@click.option("--baseline", metavar="MODEL", help="The model to compare with.")
@click.option("--candidate", metavar="MODEL", help="The model that is judged.")
@click.option("--baseline-run", metavar="RUN", shell_complete=complete_run, help="Stored answers to compare with.")
@click.option("--candidate-run", metavar="RUN", shell_complete=complete_run, help="Stored answers that are judged.")
@click.option(
    "--judge",
    type=JudgeType(),
    metavar="JUDGE",
    help="exact-match, embedding, or PROVIDER:MODEL; by default the suite's graders that compare (pairwise, baseline).",
)
@click.option("--limit", type=click.IntRange(0), metavar="N", help="Ask the first N cases alone.")
@click.option("--tag", "tags", multiple=True, metavar="T", help="Ask the cases that have this tag (repeatable).")
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="So many calls at once, on each side.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Another value for a key of the suite.")
@click.option("--budget", type=BudgetType(), metavar="5usd", help="End each of the runs when so much is spent.")
@click.option("--name", metavar="TEXT", help="The name of the run that judges.")
@assume_price
@click.option("--again", is_flag=True, help="Judge anew, although the same pair was judged in the same way.")
@click.option("--no-ledger", is_flag=True, help="Do not add what was judged to the quality ledger.")
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
    budget: Budget | None,
    prices: tuple[str, ...],
    name: str | None,
    again: bool,
    no_ledger: bool,
) -> int:
    """Ask a baseline and a candidate the same cases, and have a judge compare their answers.

    Both are asked at the same time; then every pair is judged, and the judge's word is added to the quality ledger.
    Each step is a stored run: whatever ends it, the same command with --baseline-run and --candidate-run goes on.

    A judge's scores are heuristic: longer answers, familiar formatting, the order of the answers and the judge's own
    model family can sway it. Calibrate it before it decides anything.
    """
    from gradeline.cli.stores import open_store
    from gradeline.engine import event_loop
    from gradeline.engine.pairs import PairOrder
    from gradeline.engine.prepare import Choice

    settings = current_settings()
    sides = (_side("baseline", baseline, baseline_run), _side("candidate", candidate, candidate_run))
    choice = Choice(limit=limit, tags=tags, concurrency=concurrency, overrides=overrides, budget=budget, prices=prices)
    order = PairOrder(suite, *sides, choice, judge, name, again)
    with open_store(settings) as storage:
        return event_loop.run(_pair(settings, storage, order, record=not no_ledger))


def _side(name: str, model: str | None, run: str | None) -> Side:
    from gradeline.engine.pairs import Side

    if (model is None) is (run is None):
        raise click.UsageError(f"Name the {name}: either --{name} MODEL or --{name}-run RUN.")
    return Side(model, run)


async def _pair(settings: Settings, storage: Storage, order: PairOrder, *, record: bool) -> int:
    from gradeline.cli import running
    from gradeline.engine.pairs import pair_runs
    from gradeline.engine.suites import STOPPED_BY_HAND
    from gradeline.ledger.judged_runs import record_run

    pair = await pair_runs(storage, order, running.watcher(settings, storage, together=True))
    if pair.judged is None or pair.stopped is not None:
        click.echo(f"{pair.stopped}; continue with: {_going_on(order, pair)}", err=True)
        code = 130 if pair.stopped == STOPPED_BY_HAND else _stopped_code(pair)
        if settings.json:
            data = {"stopped": pair.stopped} if pair.judged is None else pair.judged.to_data()
            sides = {"baseline": pair.baseline.id, "candidate": pair.candidate.id}
            click.echo(json.dumps({**data, **sides, "exit_code": code}, ensure_ascii=False))
        return code
    recorded = record_run(storage, pair.judged.report.run) if record else 0
    if not settings.json and not settings.quiet:
        click.echo(f"baseline   {pair.baseline.id}  {pair.baseline.name}")
        click.echo(f"candidate  {pair.candidate.id}  {pair.candidate.name}")
    code = running.print_runs(settings, storage, [pair.judged], baseline=pair.baseline.id, candidate=pair.candidate.id)
    if recorded and not settings.json and not settings.quiet:
        click.echo(f"{recorded} observations in the ledger; see them with: gradeline ledger")
    return code


def _stopped_code(pair: Pair) -> int:
    """4 where nothing was judged because a provider refused the caller, else 3: undecided."""
    if pair.judged is not None:
        return pair.judged.exit_code
    return 4 if "failed" in (pair.baseline.status, pair.candidate.status) else 3


def _going_on(order: PairOrder, pair: Pair) -> str:
    import shlex

    words = ["gradeline", "pair", str(order.suite), "--baseline-run", pair.baseline.id]
    words += ["--candidate-run", pair.candidate.id]
    if order.judge is not None:
        judge = json.loads(order.judge)
        words += ["--judge", f"{judge['provider']}:{judge['model']}" if judge["judge"] == "llm" else judge["judge"]]
    for override in order.choice.overrides:
        words += ["--set", override]
    return shlex.join(words)
