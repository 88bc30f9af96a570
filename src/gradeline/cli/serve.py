"""``gradeline serve``: the evaluation service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.engines import engine_options
from gradeline.cli.garbage import look_as_ever
from gradeline.cli.settings import current_settings, global_options

if TYPE_CHECKING:
    from gradeline.service.logs import JsonLines
    from gradeline.service.settings import RetentionRules, ServeSettings


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any that is free.")
@click.option(
    "--secret-key-file",
    type=click.Path(path_type=Path),
    help="Holds the secret that protects stored secrets and API keys. Default: the variable GRADELINE_SECRET_KEY.",
)
@click.option(
    "--graders-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Python graders are loaded from this folder, and from nowhere else.",
)
@click.option(
    "--allow-agent-net",
    multiple=True,
    metavar="CIDR",
    help="Agents may be called in this network, which is refused otherwise (10.1.0.0/16, host:port). Repeatable.",
)
@click.option("--allow-target", multiple=True, metavar="KIND", help="Allow one more kind of target. Repeatable.")
@click.option("--runs-at-once", type=click.IntRange(1, 64), default=4, show_default=True, help="Runs side by side.")
@click.option(
    "--max-concurrency",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    envvar="GRADELINE_MAX_CONCURRENCY",
    show_envvar=True,
    metavar="N",
    help="Maximum calls in flight of one run, whatever asks for more.",
)
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    multiple=True,
    envvar="GRADELINE_TRUSTED_PROXIES",
    show_envvar=True,
    metavar="CIDR",
    help="Take client addresses from X-Forwarded-For of this proxy (10.0.0.7, 10.0.0.0/24). Repeatable. Default: none.",
)
@engine_options
@click.option(
    "--drain-seconds",
    "drain_s",
    type=click.FloatRange(3, 3600),
    default=8.0,
    show_default=True,
    help="Longest time to finish what is in flight on SIGTERM.",
)
@click.option("--delete-older-than", metavar="AGE", help="Delete runs that ended longer ago, hourly: 90d, 12h, 2w.")
@click.option("--keep-runs", type=click.IntRange(0), metavar="N", help="With it or alone: keep the newest N runs.")
@click.option("--keep-tag", multiple=True, metavar="TAG", help="Never delete runs of cases with this tag. Repeatable.")
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error")),
    help="Of the JSON lines on standard error. Default: info, in a terminal warning.",
)
@global_options
def serve(
    log_level: str | None,
    secret_key_file: Path | None,
    graders_dir: Path | None,
    delete_older_than: str | None,
    keep_runs: int | None,
    keep_tag: tuple[str, ...],
    **options: object,
) -> None:
    """Serve the REST API and the web interface.

    On 127.0.0.1 anybody on this machine may use it, until the first key is made with `gradeline keys create`. Any
    other address needs a key. SIGTERM or Ctrl-C lets what is in flight finish, for up to --drain-seconds, while new
    requests get 503; what is not finished is resumed by the next server.

    \b
    gradeline serve
    gradeline serve --port 0 --store memory://
    gradeline serve --host 0.0.0.0 --secret-key-file /etc/gradeline/key
    gradeline serve --engine ray --store postgresql://me@db.example/evals
    """
    import logging

    from gradeline.service.logs import log_to

    lines = log_to(level=getattr(logging, (log_level or _default_level()).upper()))
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

    from gradeline.api.stores import default_store
    from gradeline.service.master import read_secret_key
    from gradeline.service.settings import ServeSettings

    made = msgspec.convert({**options, "store": current_settings().store or default_store()}, ServeSettings)
    return msgspec.structs.replace(
        made, graders_dir=graders_dir and graders_dir.resolve(), secret_key=read_secret_key(secret_key_file)
    )


def _serve(settings: ServeSettings, lines: JsonLines) -> None:
    from gradeline.service.process import bind, require_keys, serve, url_of
    from gradeline.service.state import build

    service = build(settings)
    lines.masked = service.secrets.masked
    look_as_ever()
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
        import json

        click.echo(json.dumps({"url": url, "local": local}))
    elif settings.quiet:
        click.echo(url)
    else:
        click.echo(f"gradeline is at {url}")
        click.echo(f"{'no key is needed here' if local else 'a key is needed'}; API: {url}/api/docs; Ctrl-C stops it")
    sys.stdout.flush()


def _default_level() -> str:
    return "warning" if sys.stderr.isatty() else "info"
