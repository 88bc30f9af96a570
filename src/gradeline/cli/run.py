"""``gradeline run``, ``validate``, ``resume`` and ``regrade``; `gradeline.cli.execute` does the work.

This module loads no engine, so that ``--help`` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradeline.cli.options import (
    EngineChoice,
    assume_price_option,
    budget_option,
    case_options,
    complete_run,
    concurrency_option,
    current_settings,
    engine_options,
    global_options,
    open_engine,
    run_argument,
    set_option,
    suite_argument,
)

if TYPE_CHECKING:
    from gradeline.engine.definition import RunBudget


@click.command()
@suite_argument
@set_option
@global_options
def validate(suite: Path, overrides: tuple[str, ...]) -> int:
    """Check a suite without calling the agent: files, functions, options and gates."""
    import asyncio
    import json

    from gradeline.cli.execute import check_suite

    settings = current_settings()
    warnings: list[str] = []
    errors = asyncio.run(check_suite(settings, suite, warnings, overrides))
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


@click.command()
@suite_argument
@case_options
@click.option(
    "--failed-of", metavar="RUN", shell_complete=complete_run, help="Run only the cases that did not pass in RUN."
)
@click.option(
    "--baseline",
    metavar="RUN",
    shell_complete=complete_run,
    help="Also require the run not to be worse than RUN, or than URL#NAME of a service.",
)
@click.option("--stop-early", is_flag=True, help="Stop once the comparison with the baseline is decided.")
@click.option("--fail-fast", is_flag=True, help="Stop at the first case that does not pass.")
@engine_options
@click.option(
    "--output", type=click.Path(resolve_path=True), metavar="DIR", help="Also write letta-evals result files to DIR."
)
@click.option(
    "--cached",
    type=click.Path(path_type=Path, exists=True),
    metavar="DIR",
    help="Grade the responses in letta-evals result files instead of calling the agent.",
)
@click.option("--name", metavar="TEXT", help="Name of the run (default: the suite's).")
@global_options
def run(**options: Any) -> int:
    """Run a suite against its agent, grade the responses and store everything.

    Exit codes: 0 the gate passes, 1 it fails, 2 the suite is invalid, 3 undecided, 4 nothing could be graded,
    130 interrupted.
    """
    from gradeline.cli.execute import run_suite
    from gradeline.cli.push import local_baseline
    from gradeline.cli.stores import open_store
    from gradeline.engine import lifecycle
    from gradeline.engine.definition import RunOptions
    from gradeline.engine.orchestrate import RunRequest

    settings = current_settings()
    cached: Path | None = options.pop("cached")
    chosen = {key: options.pop(key) for key in RunOptions._fields if key in options}
    run_options = RunOptions(**chosen, cached=None if cached is None else str(cached.resolve()))
    engine_choice = EngineChoice(**{key: options.pop(key) for key in EngineChoice._fields})
    suite: Path = options.pop("suite")
    request = RunRequest(suite, run_options, **options)
    with open_engine(settings, engine_choice) as engine, open_store(settings) as storage:
        baseline = local_baseline(settings, storage, request.baseline, suite, run_options.overrides)
        request = request._replace(baseline=baseline)
        return lifecycle.run_event_loop(run_suite(settings, storage, request, engine))


@click.command()
@run_argument
@click.option("--all", "all_cases", is_flag=True, help="Also run the cases that an early stop skipped.")
@click.option("--allow-changed", is_flag=True, help="Resume although the suite or its graders changed.")
@concurrency_option
@budget_option
@assume_price_option
@engine_options
@global_options
def resume(
    run_name: str,
    all_cases: bool,
    allow_changed: bool,
    concurrency: int | None,
    budget: RunBudget | None,
    prices: tuple[str, ...],
    **engine_choice: Any,
) -> int:
    """Resume a run that was stopped. Stored responses and grades are kept.

    In a group of variants or models, those not reached yet follow. Result files for letta-evals are written as in the
    first run.
    """
    from gradeline.cli.execute import resume_run
    from gradeline.cli.stores import open_store
    from gradeline.engine import lifecycle
    from gradeline.engine.definition import RunOptions

    settings = current_settings()
    options = RunOptions(concurrency=concurrency, budget=budget, prices=prices)
    with open_engine(settings, EngineChoice(**engine_choice)) as engine, open_store(settings, "existing") as storage:
        return lifecycle.run_event_loop(
            resume_run(settings, storage, run_name, options, engine, allow_changed=allow_changed, all_cases=all_cases)
        )


@click.command()
@run_argument
@click.option("--suite", type=click.Path(path_type=Path), help="Suite to grade with (default: the run's own).")
@click.option("--grader", "graders", multiple=True, metavar="G", help="Use only this grader (repeatable).")
@set_option
@click.option("--name", metavar="TEXT", help="Name of the new run (default: the suite's).")
@assume_price_option
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
    """Grade the stored responses of a run again with the suite's current graders. The agent is not called."""
    from gradeline.cli.execute import regrade_run
    from gradeline.cli.stores import open_store
    from gradeline.engine import lifecycle
    from gradeline.engine.definition import RunOptions

    settings = current_settings()
    options = RunOptions(graders=graders, overrides=overrides, prices=prices)
    with open_engine(settings, EngineChoice(**engine_choice)) as engine, open_store(settings, "existing") as storage:
        return lifecycle.run_event_loop(regrade_run(settings, storage, run_name, suite, options, name, engine))
