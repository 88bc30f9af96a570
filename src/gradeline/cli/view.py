"""``gradeline view``: the runs of a store in a browser."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import click

from gradeline.cli.garbage import look_as_ever
from gradeline.cli.settings import current_settings, global_options

_HOST = "127.0.0.1"


@click.command()
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@global_options
def view(no_browser: bool) -> None:
    """Look at the runs of a store in a browser.

    Serves the web interface on a free port of this machine alone, opens it, and ends with Ctrl-C. A store that has
    API keys asks for one. `gradeline serve` is for longer and for others.

    \b
    gradeline view
    gradeline view --no-browser --store runs.db
    """
    import logging

    from gradeline.api.stores import default_store
    from gradeline.service.logs import log_to
    from gradeline.service.master import read_secret_key
    from gradeline.service.process import bind, require_keys, serve, url_of
    from gradeline.service.settings import ServeSettings
    from gradeline.service.state import build

    # somebody looks at pages, so requests are no news
    log_to(level=logging.WARNING)
    store = current_settings().store or default_store()
    service = build(ServeSettings(host=_HOST, port=0, store=store, secret_key=read_secret_key(None)))
    look_as_ever()
    try:
        require_keys(service)
        with bind(_HOST, 0) as bound:
            serve(service, bound, _opener(url_of(bound, _HOST), browse=not no_browser))
    finally:
        service.stop()


def _opener(url: str, *, browse: bool) -> Callable[[], None]:
    """What to do once the server answers. The browser is called aside: one in a terminal would hold up the server."""

    def opened() -> None:
        _announce(url)
        if browse:
            import webbrowser
            from threading import Thread

            Thread(target=webbrowser.open, args=(url,), name="gradeline-browser", daemon=True).start()

    return opened


def _announce(url: str) -> None:
    settings = current_settings()
    if settings.json:
        click.echo(json.dumps({"url": url}))
    elif settings.quiet:
        click.echo(url)
    else:
        click.echo(f"gradeline is at {url}; Ctrl-C stops it")
    sys.stdout.flush()
