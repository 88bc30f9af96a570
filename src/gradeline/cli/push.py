"""``gradeline push``: copy a run to a service, or the run of a baseline from it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import CliSettings, current_settings, global_options, run_argument, suite_option
from gradeline.cli.terminal import ProgressMessages, print_message, single_line

if TYPE_CHECKING:
    from gradeline.client.uploads import ReportProgress, UploadProgress
    from gradeline.model import Storage

KEY_VARIABLE = "GRADELINE_API_KEY"
"""The environment variable with the API key of a service."""
_NOT_FOUND = 404

service_key_option = click.option(
    "--key-env",
    metavar="NAME",
    default=KEY_VARIABLE,
    show_default=True,
    help="Variable with the service's API key.",
)


@click.command()
@run_argument
@click.option("--to", "url", required=True, metavar="URL", help="Service to copy the run to.")
@service_key_option
@click.option("--set-baseline", metavar="NAME", help="Also make the run this baseline of its suite in the service.")
@suite_option
@global_options
def push(run_name: str, url: str, key_env: str, set_baseline: str | None, suite: str | None) -> None:
    """Copy RUN to a service, with all its records.

    Copies cases, responses, grades, labels and the commit of the suite, and the runs that RUN regrades or was compared
    with. A run that the service already has is not copied again, and an interrupted push continues. Values of
    environment variables whose names mark them as secrets, such as OPENAI_API_KEY, are replaced by ***.

    \b
    gradeline push latest --to https://evals.example.com
    gradeline push latest --to https://evals.example.com --set-baseline main
    """
    from gradeline.cli.stores import open_store
    from gradeline.client import Client
    from gradeline.model.baseline import check_baseline_name

    settings = current_settings()
    if set_baseline is not None:
        check_baseline_name(set_baseline, "--set-baseline")
    with Client(url, service_key(key_env)) as client, open_store(settings, "read") as storage:
        try:
            done = client.upload_run(run_name, storage, suite=suite, on_progress=_progress(settings))
            if set_baseline is not None:
                client.set_baseline(set_baseline, done.run_id)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("push the run again to continue") from None
    shown = f"{url.rstrip('/')}/#/runs/{done.run_id}"
    if settings.json:
        data = {"run": done.run_id, "cases": done.cases, "digest": done.digest, "url": shown, "baseline": set_baseline}
        click.echo(json.dumps(data))
    elif not settings.quiet:
        named = f" as the baseline {set_baseline}" if set_baseline is not None else ""
        click.echo(single_line(f"pushed {done.run_id} ({done.cases:,} cases){named}: {shown}"))


def local_baseline(
    settings: CliSettings,
    storage: Storage,
    baseline: str | None,
    suite: Path,
    overrides: tuple[str, ...],
    *,
    required: bool = True,
) -> str | None:
    """The baseline as a run of the store; that of a service, as URL#NAME, is copied from there.

    One that the service does not have is an error, or if it is not required a warning.
    """
    if baseline is None or not baseline.startswith(("http://", "https://")):
        return baseline
    from gradeline.client import ApiError, Client
    from gradeline.errors import ConfigError, Problem
    from gradeline.model.text import quote
    from gradeline.suite.read import read_suite

    url, _, name = baseline.partition("#")
    if not name:
        raise ConfigError(
            Problem("--baseline", "the URL names no run; use URL#NAME, where NAME is a baseline or the id of a run")
        )
    suite_name = read_suite(suite, overrides).name
    with Client(url, service_key(KEY_VARIABLE)) as client:
        try:
            run = client.download_run(name, storage, suite=suite_name)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            unknown = f"{quote(url)} has no baseline {quote(name)} of the suite {quote(suite_name)}, and no such run"
            if required:
                raise ConfigError(Problem("--baseline", unknown)) from None
            print_message(f"warning: {unknown}")
            return None
    if not settings.quiet:
        print_message(f"baseline {name} of {url}: {run}")
    return run


def service_key(variable: str) -> str | None:
    """The API key in a variable of the environment, if there is one."""
    return os.environ.get(variable, "").strip() or None


def _progress(settings: CliSettings) -> ReportProgress:
    messages = ProgressMessages(settings)

    def report(progress: UploadProgress) -> None:
        messages.print(f"{progress.run.id}: sent {progress.received:,} of {progress.cases:,} cases")

    return report
