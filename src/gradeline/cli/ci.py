"""``gradeline ci``: run a suite in continuous integration; `gradeline.cli.ci_job` does the work.

This module loads no engine, so that ``--help`` is fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gradeline.cli.options import (
    EngineChoice,
    case_options,
    complete_run,
    current_settings,
    engine_options,
    global_options,
    margin_option,
    open_engine,
    suite_argument,
)

REPORT = "gradeline-ci.json"
_JUNIT = "junit.xml"
_HELP = ("-h", "--help")


class _RunsByDefault(click.Group):
    """``gradeline ci SUITE`` is short for ``gradeline ci run SUITE``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in _HELP:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_RunsByDefault)
@global_options
def ci() -> None:
    """Run a suite in a CI job, and report the result where the change is reviewed.

    Jobs of GitHub Actions and GitLab CI/CD are detected; elsewhere, name the base with --base-commit, --base-branch or
    --baseline. "gradeline ci SUITE" is short for "gradeline ci run SUITE".

    \b
    gradeline ci suite.yaml
    gradeline ci suite.yaml --undecided fail --baseline main
    gradeline ci comment
    """


@ci.command()
@suite_argument
@case_options
@click.option(
    "--baseline",
    metavar="RUN",
    shell_complete=complete_run,
    help="Run or baseline to compare with, or URL#NAME of a service (default: that of the base commit or branch).",
)
@click.option(
    "--base-commit", metavar="SHA", help="Full SHA of the commit to compare with (default: the pull request's base)."
)
@click.option("--base-branch", metavar="NAME", help="Branch to compare with (default: the pull request's base).")
@margin_option
@click.option(
    "--undecided",
    type=click.Choice(["fail", "warn", "pass"]),
    default="warn",
    show_default=True,
    help="How an undecided run affects the job; only fail exits with 3.",
)
@click.option("--stop-early", is_flag=True, help="Stop once the comparison with the base is decided.")
@engine_options
@click.option("--name", metavar="TEXT", help="Name of the run (default: the suite's).")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=REPORT,
    show_default=True,
    metavar="FILE",
    help="JSON file for the result, which ci comment reads.",
)
@click.option(
    "--junit",
    type=click.Path(path_type=Path),
    default=_JUNIT,
    show_default=True,
    metavar="FILE",
    help="File for the JUnit report.",
)
@global_options
def run(**options: Any) -> int:
    """Run a suite, compare it with the base, and report the result to the job.

    The base is a complete run in the store, of the same suite, variant and cases. The run must not be worse than it,
    and must pass the gate of the suite. Without a base the result is undecided, except on the default branch.

    Writes a job summary, a JUnit report, and annotations for the ten worst regressions, each at the line of its case.
    On GitHub it sets the step outputs verdict, run and exit_code.

    Exit codes: 0 pass, 1 fail, 2 the suite is invalid, 3 undecided with --undecided fail, 4 nothing could be graded,
    130 interrupted.
    """
    from gradeline.cli.ci_job import CiJob, run_job
    from gradeline.cli.push import local_baseline
    from gradeline.cli.stores import open_store
    from gradeline.engine import lifecycle
    from gradeline.engine.definition import RunOptions

    settings = current_settings()
    run_options = RunOptions(
        **{key: options.pop(key) for key in RunOptions._fields if key in options and key != "output"}
    )
    engine_choice = EngineChoice(**{key: options.pop(key) for key in EngineChoice._fields})
    job = CiJob(options=run_options, **options)
    with open_engine(settings, engine_choice) as engine, open_store(settings) as storage:
        baseline = local_baseline(settings, storage, job.baseline, job.suite, run_options.overrides, required=False)
        return lifecycle.run_event_loop(run_job(settings, storage, job._replace(baseline=baseline), engine))


@ci.command()
@click.argument("reports", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@global_options
def comment(reports: tuple[Path, ...]) -> None:
    """Comment on the pull request: one comment per suite, edited by later jobs.

    FILE is a result of gradeline ci (default: gradeline-ci.json). The variable GITHUB_TOKEN, or GITLAB_TOKEN on GitLab,
    must hold a token that may write comments.

    Writes nothing outside a pull request, or for a change from a fork, whose jobs get no such token: the job summary
    and the annotations show the result. A token that may not write comments is a warning.
    """
    import asyncio

    from gradeline.cli.ci_comment import write_comments

    asyncio.run(write_comments(current_settings(), reports or (Path(REPORT),)))
