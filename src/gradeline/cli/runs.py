"""``gradeline run`` and what is done with runs afterwards; `gradeline.cli.running` does the work."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from gradeline.cli.engines import EngineChoice, engine_options, open_engine
from gradeline.cli.settings import Settings, complete_run, current_settings, global_options, run_argument, run_or_latest
from gradeline.cli.streams import streaming_output

if TYPE_CHECKING:
    from gradeline.engine.execute import Budget
    from gradeline.model import Run, Storage
    from gradeline.store.usage import RunUsage

suite_file = click.argument("suite", type=click.Path(path_type=Path))


_set = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Stand over a value of the suite (repeatable)."
)


@click.command()
@suite_file
@_set
@global_options
def validate(suite: Path, overrides: tuple[str, ...]) -> int:
    """Check a suite without calling the agent: files, functions, options, gates."""
    import asyncio
    import json

    from gradeline.cli.running import check_suite

    settings = current_settings()
    warnings: list[str] = []
    errors = asyncio.run(check_suite(suite, warnings, overrides))
    if settings.json:
        click.echo(json.dumps({"valid": not errors, "errors": errors, "warnings": warnings}, ensure_ascii=False))
        return 2 if errors else 0
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    for problem in errors:
        place = ":".join(str(problem[key]) for key in ("file", "line", "column") if problem[key])
        click.echo(": ".join(part for part in (place, problem["path"], problem["message"]) if part), err=True)
    if not errors:
        click.echo(f"{suite}: valid")
    return 2 if errors else 0


class BudgetType(click.ParamType["Budget"]):
    """``5usd``, ``5``, ``0.5 usd`` or ``1000calls``."""

    name = "budget"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Budget:
        import re

        from gradeline.engine.execute import Budget

        if isinstance(value, Budget):
            return value
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(usd|calls?)?", str(value).strip().lower())
        if found is None or float(found[1]) <= 0:
            self.fail(f"invalid budget {value!r}: use an amount such as 5usd, or 1000calls", param, ctx)
        if (found[2] or "usd") == "usd":
            return Budget(cost=float(found[1]))
        if "." in found[1]:
            self.fail(f"{value!r}: calls are whole numbers", param, ctx)
        return Budget(calls=int(found[1]))


class PriceType(click.ParamType[str]):
    """``0.15/0.60``, or ``MODEL=0.15/0.60``."""

    name = "price"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from gradeline.adapters.prices import assumed_prices
        from gradeline.errors import ConfigError

        try:
            assumed_prices([str(value)])
        except ConfigError as error:
            self.fail(error.problems[0].message, param, ctx)
        return str(value)


assume_price = click.option(
    "--assume-price",
    "prices",
    type=PriceType(),
    multiple=True,
    metavar="[MODEL=]IN/OUT",
    help="US dollars per million input and output tokens, where no price is known or of MODEL (repeatable).",
)
_budget = click.option("--budget", type=BudgetType(), metavar="5usd", help="End the run when so much is spent.")
_concurrency = click.option("--concurrency", type=click.IntRange(1), metavar="N", help="So many calls at once.")


@click.command()
@suite_file
@click.option("--limit", type=click.IntRange(0), metavar="N", help="Run the first N cases alone.")
@click.option("--sample", "samples", multiple=True, metavar="ID", help="Run this case alone (repeatable).")
@click.option("--tag", "tags", multiple=True, metavar="T", help="Run the cases that have this tag (repeatable).")
@click.option("--grader", "graders", multiple=True, metavar="G", help="Use this grader alone (repeatable).")
@click.option(
    "--failed-of", metavar="RUN", shell_complete=complete_run, help="Run the cases that did not pass in that run."
)
@click.option("--model", "models", multiple=True, metavar="M", help="Ask this model (repeatable: one run each).")
@click.option("--repeats", type=click.IntRange(1), metavar="N", help="Ask each case so many times.")
@_concurrency
@_set
@_budget
@assume_price
@click.option("--seed", type=int, metavar="N", help="Kept with the run.")
@click.option(
    "--baseline",
    metavar="RUN",
    shell_complete=complete_run,
    help="The gate also wants the run not to be worse than that one.",
)
@click.option(
    "--stop-early", is_flag=True, help="End as soon as the cases so far decide the comparison with the baseline."
)
@click.option("--fail-fast", is_flag=True, help="End at the first case that does not pass.")
@engine_options
@click.option(
    "--output", type=click.Path(resolve_path=True), metavar="DIR", help="Write letta's result files there too."
)
@click.option(
    "--cached",
    type=click.Path(path_type=Path, exists=True),
    metavar="DIR",
    help="Grade the answers in letta's result files; no agent is asked.",
)
@click.option("--name", metavar="TEXT", help="The run's name; by default the suite's.")
@global_options
def run(**options: Any) -> int:
    """Run a suite against its agent, grade the answers, and store everything.

    Exits with 0 when its gate passes, 1 when it fails, 2 when the suite is wrong, 3 when it is undecided, 4 when
    nothing could be graded, 130 when interrupted.
    """
    from gradeline.cli.warming import warm_up

    warm_up(options["suite"])
    from gradeline.cli.running import run_suite
    from gradeline.cli.stores import open_store
    from gradeline.engine import event_loop
    from gradeline.engine.prepare import Choice
    from gradeline.engine.suites import Order

    settings = current_settings()
    cached: Path | None = options.pop("cached")
    chosen = {key: options.pop(key) for key in Choice._fields if key in options}
    choice = Choice(**chosen, cached=None if cached is None else str(cached.resolve()))
    engine_choice = EngineChoice(**{key: options.pop(key) for key in EngineChoice._fields})
    order = Order(options.pop("suite"), choice, **options)
    with open_engine(settings, engine_choice) as engine, open_store(settings) as storage:
        return event_loop.run(run_suite(settings, storage, order, engine))


@click.command()
@run_argument
@click.option("--all", "whole", is_flag=True, help="Ask also the cases that an early stop left out.")
@click.option("--allow-changed", is_flag=True, help="Go on although the suite or its graders changed.")
@_concurrency
@_budget
@assume_price
@engine_options
@global_options
def resume(
    run_name: str,
    whole: bool,
    allow_changed: bool,
    concurrency: int | None,
    budget: Budget | None,
    prices: tuple[str, ...],
    **engine_choice: Any,
) -> int:
    """Go on with a run that was stopped: what is answered and graded is not done again.

    Of several models, those that were not come to are run after it. Letta's result files are written as they would have
    been.
    """
    from gradeline.cli.running import resume_run
    from gradeline.cli.stores import open_store
    from gradeline.engine import event_loop
    from gradeline.engine.prepare import Choice

    settings = current_settings()
    choice = Choice(concurrency=concurrency, budget=budget, prices=prices)
    with open_engine(settings, EngineChoice(**engine_choice)) as engine, open_store(settings, "existing") as storage:
        return event_loop.run(
            resume_run(settings, storage, run_name, choice, engine, allow_changed=allow_changed, whole=whole)
        )


@click.command()
@run_argument
@click.option("--suite", type=click.Path(path_type=Path), help="The suite to grade with; by default the run's own.")
@click.option("--grader", "graders", multiple=True, metavar="G", help="Use this grader alone (repeatable).")
@_set
@click.option("--name", metavar="TEXT", help="The new run's name; by default the suite's.")
@assume_price
@engine_options
@global_options
def regrade(
    run_name: str,
    suite: Path | None,
    graders: tuple[str, ...],
    overrides: tuple[str, ...],
    name: str | None,
    prices: tuple[str, ...],
    **engine_choice: Any,
) -> int:
    """Grade a run's answers again, as the suite's graders are now. The agent is not called."""
    from gradeline.cli.running import regrade_run
    from gradeline.cli.stores import open_store
    from gradeline.engine import event_loop
    from gradeline.engine.prepare import Choice

    settings = current_settings()
    choice = Choice(graders=graders, overrides=overrides, prices=prices)
    with open_engine(settings, EngineChoice(**engine_choice)) as engine, open_store(settings, "existing") as storage:
        return event_loop.run(regrade_run(settings, storage, run_name, suite, choice, name, engine))


@click.command("list")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="So many of the newest.")
@click.option("--usage", is_flag=True, help="Show what each run takes in the store; reads all its rows.")
@global_options
def list_runs(limit: int, usage: bool) -> None:
    """List the stored runs, the newest first.

    With --usage, the bytes of a run are an estimate: its values without indexes and the database's overhead.
    """
    import json

    from gradeline.cli.stores import open_store
    from gradeline.engine.conclude import run_data

    settings = current_settings()
    with open_store(settings, "read") as storage:
        runs = storage.list_runs(limit)
        sizes = _usage_of(storage, runs) if usage else {}
    if settings.json:
        listed = [{**run_data(one), **_usage_data(sizes.get(one.id))} for one in runs]
        click.echo(json.dumps({"runs": listed}, ensure_ascii=False))
    elif runs:
        _print_runs(settings, runs, sizes if usage else None)
    else:
        from gradeline.cli.stores import store_file

        file = store_file(settings)
        click.echo(f"No runs yet{'' if file is None else f' in {file}'}. Start one with: gradeline run SUITE")


def _usage_of(storage: Storage, runs: list[Run]) -> dict[str, RunUsage]:
    """What each of these runs takes; one that was deleted meanwhile is left out."""
    if not runs:
        return {}
    from gradeline.cli.stores import in_database
    from gradeline.store.usage import usage_of_run

    database = in_database(storage).database
    found = (usage_of_run(database, run.id) for run in runs)
    return {one.id: one for one in found if one is not None}


def _usage_data(usage: RunUsage | None) -> dict[str, int]:
    return {} if usage is None else {"rows": usage.rows, "estimated_bytes": usage.bytes}


def _print_runs(settings: Settings, runs: list[Run], sizes: dict[str, RunUsage] | None) -> None:
    from gradeline.cli.tables import Column, print_table
    from gradeline.cli.terminal import console, mebibytes, plain

    columns = (
        Column("id", key=True),
        Column("name", wraps=True, key=True),
        *(Column(title) for title in ("status", "started", "cases")),
        *(() if sizes is None else (Column("rows", right=True), Column("about", right=True))),
    )
    rows = []
    for one in runs:
        row = [one.id[:8], one.name, one.status, one.started_at or "", str(one.total or "")]
        if sizes is not None:
            size = sizes.get(one.id)
            row += ["–", "–"] if size is None else [f"{size.rows:,}", mebibytes(size.bytes)]
        rows.append([plain(cell) for cell in row])
    print_table(console(settings), columns, rows)


@click.command()
@run_or_latest
@click.option("--records", is_flag=True, help="Print the records, one JSON object a line.")
@global_options
def show(run_name: str, records: bool) -> None:
    """Show a stored run: by id, the start of an id, its name, latest or latest~1."""
    from gradeline.cli.running import show_run
    from gradeline.cli.stores import open_store

    settings = current_settings()
    with open_store(settings, "read") as storage:
        found = storage.find_run(run_name)
        if records:
            with streaming_output() as stream:
                _write_records(storage, found, stream)
        else:
            show_run(settings, storage, found)


def _write_records(storage: Storage, found: Run, file: IO[str]) -> None:
    from gradeline.model import to_json

    for record in storage.records(found.id):
        file.write(to_json(record) + "\n")
