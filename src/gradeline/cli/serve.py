"""``gradeline serve`` and ``gradeline view``: the evaluation service, and its web interface for one session."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import current_settings, engine_options, global_options, secret_key_option

if TYPE_CHECKING:
    from gradeline.service.settings import RetentionRules, ServeSettings
    from gradeline.service.telemetry import JsonFormatter


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@secret_key_option
@click.option(
    "--graders-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The only folder that Python graders are loaded from.",
)
@click.option(
    "--allow-agent-net",
    multiple=True,
    metavar="CIDR",
    help="Allow agents in this private network: 10.1.0.0/16 or host:port (repeatable).",
)
@click.option("--allow-target", multiple=True, metavar="KIND", help="Allow another kind of target (repeatable).")
@click.option(
    "--allow-grader", multiple=True, metavar="KIND", help="Allow a kind of grader that runs programs (repeatable)."
)
@click.option(
    "--runs-at-once", type=click.IntRange(1, 64), default=4, show_default=True, help="Maximum concurrent runs."
)
@click.option(
    "--max-concurrency",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    envvar="GRADELINE_MAX_CONCURRENCY",
    show_envvar=True,
    metavar="N",
    help="Maximum calls in flight per run; larger values are lowered.",
)
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    envvar="GRADELINE_TRUSTED_PROXIES",
    show_envvar=True,
    metavar="CIDR",
    help="Trust X-Forwarded-For of this proxy: 10.0.0.7 or 10.0.0.0/24 (repeatable; default: none).",
)
@engine_options
@click.option(
    "--drain-seconds",
    "drain_s",
    type=click.FloatRange(3, 3600),
    default=8.0,
    show_default=True,
    help="Seconds to finish calls in flight on SIGTERM.",
)
@click.option(
    "--max-upload-mb",
    type=click.IntRange(1),
    default=2000,
    show_default=True,
    metavar="MB",
    help="Maximum size of a run that is pushed, in MB.",
)
@click.option("--delete-older-than", metavar="AGE", help="Delete runs that ended longer ago, hourly: 90d, 12h, 2w.")
@click.option(
    "--keep-runs", type=click.IntRange(0), metavar="N", help="Keep the newest N runs; delete the others, hourly."
)
@click.option("--keep-tag", multiple=True, metavar="TAG", help="Never delete runs of cases with this tag (repeatable).")
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    help="Level of the JSON logs on stderr (default: info; warning in a terminal).",
)
@global_options
def serve(
    log_level: str | None,
    secret_key_file: Path | None,
    graders_dir: Path | None,
    delete_older_than: str | None,
    keep_runs: int | None,
    keep_tag: tuple[str, ...],
    max_upload_mb: int,
    **options: object,
) -> None:
    """Serve the REST API and the web interface.

    On 127.0.0.1, every user of this machine has access until you create the first key with `gradeline keys create`.
    Any other address requires a key. On SIGTERM or Ctrl-C, calls in flight get --drain-seconds to finish while new
    requests get 503; the next server resumes unfinished runs.

    \b
    gradeline serve
    gradeline serve --port 0 --store memory://
    gradeline serve --host 0.0.0.0 --secret-key-file /etc/gradeline/key
    gradeline serve --engine ray --store postgresql://me@db.example/evals
    """
    import logging

    from gradeline.service.telemetry import log_to

    lines = log_to(level=getattr(logging, (log_level or _default_level()).upper()))
    options["max_upload"] = max_upload_mb * 1_000_000
    options["retention"] = _retention(delete_older_than, keep_runs, keep_tag)
    _serve(_settings(secret_key_file, graders_dir, options), lines)


def _retention(older_than: str | None, keep: int | None, tags: tuple[str, ...]) -> RetentionRules | None:
    from gradeline.service.settings import RetentionRules, age_of

    if older_than is None and keep is None and not tags:
        return None
    seconds = None if older_than is None else age_of(older_than, "--delete-older-than")
    return RetentionRules(older_than_s=seconds, keep=keep, keep_tags=tags)


def _settings(secret_key_file: Path | None, graders_dir: Path | None, options: dict[str, object]) -> ServeSettings:
    import msgspec

    from gradeline.cli.stores import store_url
    from gradeline.service.auth import read_secret_key
    from gradeline.service.settings import ServeSettings

    settings = msgspec.convert({**options, "store": store_url(current_settings())}, ServeSettings)
    return msgspec.structs.replace(
        settings, graders_dir=graders_dir and graders_dir.resolve(), secret_key=read_secret_key(secret_key_file)
    )


def _serve(settings: ServeSettings, lines: JsonFormatter) -> None:
    from gradeline.service.server import bind, require_keys, serve, url_of
    from gradeline.service.service import build_service

    service = build_service(settings)
    lines.mask = service.secrets.mask
    try:
        service.secrets.hide(service.secrets.values())
        require_keys(service)
        bound = bind(settings.host, settings.port)
        with bound:
            serve(service, bound, lambda: _announce(url_of(bound, settings.host), local=service.local))
    finally:
        service.stop()
    if not current_settings().quiet and not current_settings().json:
        click.echo("stopped", err=True)


def _announce(url: str, *, local: bool) -> None:
    settings = current_settings()
    if settings.json:
        click.echo(json.dumps({"url": url, "local": local}))
    elif settings.quiet:
        click.echo(url)
    else:
        click.echo(f"gradeline is at {url}")
        click.echo(f"{'no API key needed' if local else 'API key required'}; API: {url}/api/docs; stop with Ctrl-C")
    sys.stdout.flush()


def _default_level() -> str:
    return "warning" if sys.stderr.isatty() else "info"


_VIEW_HOST = "127.0.0.1"


@click.command()
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
@global_options
def view(no_browser: bool) -> None:
    """View the runs of a store in a browser.

    Serves the web interface on a free local port and opens it; Ctrl-C stops it. If the store has API keys, the page
    asks for one. Use `gradeline serve` for a permanent or shared service.

    \b
    gradeline view
    gradeline view --no-browser --store runs.db
    """
    import logging

    from gradeline.cli.stores import store_url
    from gradeline.service.auth import read_secret_key
    from gradeline.service.server import bind, require_keys, serve, url_of
    from gradeline.service.service import build_service
    from gradeline.service.settings import ServeSettings
    from gradeline.service.telemetry import log_to

    # only one user browses: requests are not logged
    log_to(level=logging.WARNING)
    store = store_url(current_settings())
    service = build_service(ServeSettings(host=_VIEW_HOST, port=0, store=store, secret_key=read_secret_key(None)))
    try:
        require_keys(service)
        with bind(_VIEW_HOST, 0) as bound:
            serve(service, bound, _opener(url_of(bound, _VIEW_HOST), browse=not no_browser))
    finally:
        service.stop()


def _opener(url: str, *, browse: bool) -> Callable[[], None]:
    """The callback for a started server. A terminal browser would block the server, so it runs in a thread."""

    def announce() -> None:
        _announce_view(url)
        if browse:
            import webbrowser
            from threading import Thread

            Thread(target=webbrowser.open, args=(url,), name="gradeline-browser", daemon=True).start()

    return announce


def _announce_view(url: str) -> None:
    settings = current_settings()
    if settings.json:
        click.echo(json.dumps({"url": url}))
    elif settings.quiet:
        click.echo(url)
    else:
        click.echo(f"gradeline is at {url}; stop with Ctrl-C")
    sys.stdout.flush()
