"""Runs a suite in a CI job: finds the base, runs, compares, and reports to the forge."""

from __future__ import annotations

import os
from asyncio import to_thread
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

import click
import msgspec

from gradeline.analysis.base_run import BaseQuery, BaseRun, find_base
from gradeline.analysis.regressions import Regressions, find_regressions
from gradeline.cli.compare import print_comparison
from gradeline.cli.execute import observer
from gradeline.cli.export import output_text_file
from gradeline.cli.options import CliSettings
from gradeline.cli.show import print_report
from gradeline.cli.terminal import single_line
from gradeline.engine import orchestrate
from gradeline.engine.aggregate import INTERRUPTED
from gradeline.engine.comparison import Comparison, compare
from gradeline.engine.definition import RunOptions, how_to_continue
from gradeline.engine.lifecycle import Engine, RunObserver
from gradeline.engine.orchestrate import RunOutcome, RunRequest
from gradeline.engine.validation import read_with_code
from gradeline.engine.variants import variants_to_run
from gradeline.errors import ConfigError
from gradeline.forge.environment import CiEnvironment, read_environment
from gradeline.model import CodeVersion, Storage
from gradeline.report.annotations import run_annotations
from gradeline.report.ci_markdown import step_summary
from gradeline.report.ci_result import CiReport, CiRun, Undecided, ci_report, ci_run, read_ci_report
from gradeline.report.junit import write_junit
from gradeline.suite.case_positions import case_positions
from gradeline.suite.code_version import read_code_version
from gradeline.suite.read import read_suite
from gradeline.suite.spec import SuiteDefinition

_LONGEST_SUMMARY = 900_000
"""GitHub does not show a summary of more than 1 MiB."""


class CiJob(NamedTuple):
    """The values of ``gradeline ci SUITE``."""

    suite: Path
    options: RunOptions
    baseline: str | None
    base_commit: str | None
    base_branch: str | None
    margin: float
    undecided: Undecided
    stop_early: bool
    name: str | None
    seed: int | None
    output: Path
    junit: Path


class _JobRun(NamedTuple):
    """An executed run, and its comparison with the base."""

    ran: RunOutcome
    comparison: Comparison | None
    result: CiRun


async def run_job(settings: CliSettings, storage: Storage, job: CiJob, engine: Engine) -> int:
    """Run every variant of the suite, report the results and return the exit code."""
    environment = read_environment(os.environ)
    _remove_earlier_report(job.output)
    observing = observer(settings, storage)
    with _no_commands(settings, environment):
        suite = await read_with_code(lambda: read_suite(job.suite, job.options.overrides))
        observing.warn_all(suite.warnings)
        done = await _run_variants(storage, job, environment, suite, observing, engine)
        report = ci_report([one.result for one in done], job.undecided)
        _write_files(job, environment, done, report)
        if not settings.json:
            _print_runs(settings, storage, done)
        for one in done:
            if one.ran.stopped is not None:
                advice = how_to_continue(one.result.run, storage, settings.store)
                click.echo(f"{one.ran.stopped}; {advice}", err=True)
    if settings.json:
        click.echo(msgspec.json.encode(report))
    _print_annotations(settings, environment, report)
    return report.exit_code


def _remove_earlier_report(path: Path) -> None:
    """An earlier report would be mistaken for that of this job; any other file is kept until it is replaced."""
    if path.is_file():
        with suppress(ConfigError):
            read_ci_report(path)
            path.unlink()


async def _run_variants(
    storage: Storage,
    job: CiJob,
    environment: CiEnvironment,
    suite: SuiteDefinition,
    observing: RunObserver,
    engine: Engine,
) -> list[_JobRun]:
    """Each variant has a base of its own."""
    code_version = await to_thread(_code_version, suite.folder, environment)
    variants = variants_to_run(suite, job.options)
    done: list[_JobRun] = []
    for variant in variants:
        options = job.options if variant.name is None else job.options._replace(variants=(variant.name,))
        name = job.name or suite.name
        request = RunRequest(
            suite,
            options,
            name if len(variants) == 1 else f"{name} [{variant.name}]",
            job.seed,
            margin=job.margin,
            code_version=code_version,
        )
        query = BaseQuery(
            suite.name,
            options,
            variant.name,
            job.baseline,
            job.base_commit or environment.base_commit,
            job.base_branch or environment.base_branch,
        )
        base = find_base(storage, query)
        observing.note(single_line(f"base: {base.run.id}, {base.reason}" if base.run else base.reason))
        if base.run is not None:
            request = request._replace(baseline=base.run.id, stop_early=job.stop_early)
        outcome = await orchestrate.run_suite(storage, request, observing, engine)
        required = job.baseline is not None or not environment.on_default_branch
        done.append(
            _compared(storage, outcome.suite, outcome.runs[0], base, job.margin, environment, required=required)
        )
        if done[-1].result.exit_code == INTERRUPTED or observing.failed:
            break
    return done


def _code_version(folder: Path, environment: CiEnvironment) -> CodeVersion | None:
    """The commit and branch of the job; the checkout of a job is on no branch."""
    known = read_code_version(folder)
    if environment.forge is None or (known is None and environment.commit is None):
        return known
    if known is None:  # git may be absent, or refuse a checkout of another user
        return CodeVersion(commit=environment.commit or "", branch=environment.branch)
    return msgspec.structs.replace(known, branch=environment.branch or known.branch)


def _compared(
    storage: Storage,
    suite: SuiteDefinition,
    ran: RunOutcome,
    base: BaseRun,
    margin: float,
    environment: CiEnvironment,
    *,
    required: bool,
) -> _JobRun:
    comparison, regressions = None, Regressions()
    if base.run is not None:
        comparison = compare(storage, base.run, ran.report.run, margin=margin)
        regressions = find_regressions(storage, comparison)
    positions = case_positions(suite, {one.case for one in regressions.cases})
    result = ci_run(
        ran.report,
        base,
        comparison,
        regressions,
        positions,
        environment.folder,
        exit_code=ran.exit_code,
        base_required=required,
    )
    return _JobRun(ran, comparison, result)


def _write_files(job: CiJob, environment: CiEnvironment, done: Sequence[_JobRun], report: CiReport) -> None:
    if environment.summary is not None:
        room = _LONGEST_SUMMARY
        for one in done:
            text = step_summary(one.ran.report, one.result, job.undecided)
            room -= len(text.encode())
            if room < 0:
                _append(environment.summary, f"The summary is too small for all {len(done)} runs.\n")
                break
            _append(environment.summary, text)
    with output_text_file(job.junit) as file:
        write_junit(file, *(one.ran.report for one in done))
    with output_text_file(job.output) as file:
        file.write(f"{msgspec.json.format(msgspec.json.encode(report)).decode()}\n")
    if environment.output is not None:
        outputs = {"verdict": report.verdict, "run": report.run, "exit_code": report.exit_code}
        _append(environment.output, "".join(f"{name}={value}\n" for name, value in outputs.items()))


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(text)


def _print_runs(settings: CliSettings, storage: Storage, done: Sequence[_JobRun]) -> None:
    for one in done:
        if settings.quiet:
            click.echo(one.result.verdict)
            continue
        print_report(settings, one.ran.report, storage)
        if one.comparison is not None:
            click.echo()
            print_comparison(settings, one.comparison)
        else:
            click.echo(single_line(f"not compared: {one.result.base_reason}"))


def _print_annotations(settings: CliSettings, environment: CiEnvironment, report: CiReport) -> None:
    """Print them to stdout, as GitHub documents it, unless stdout must be one JSON object."""
    on_github = environment.forge == "github"
    for run in report.runs:
        for annotation in run_annotations(run, report.undecided):
            text = annotation.command() if on_github else annotation.text()
            click.echo(text, err=settings.json or not on_github)


@contextmanager
def _no_commands(settings: CliSettings, environment: CiEnvironment) -> Iterator[None]:
    """GitHub executes commands in the output of a job; what an agent, its code or a case prints must not be one."""
    if environment.forge != "github" or settings.json:
        yield
        return
    token = token_hex(16)
    click.echo(f"::stop-commands::{token}")
    try:
        yield
    finally:
        click.echo(f"::{token}::")
