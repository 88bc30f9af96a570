"""``gradeline keys``: who may use the service."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from gradeline.cli.settings import Settings, current_settings, global_options
from gradeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from gradeline.service.audit import Audit
    from gradeline.service.keys import ApiKey, Keys

_SCOPES = ("read", "run", "label", "admin")
_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LASTS = re.compile(r"([1-9][0-9]{0,4})([mhdw])", re.ASCII)
_LONGEST_NAME = 100

_secret_key_file = click.option(
    "--secret-key-file",
    type=click.Path(path_type=Path),
    help="Holds the service's secret. Default: the variable GRADELINE_SECRET_KEY.",
)


@click.group()
@global_options
def keys() -> None:
    """Make, list and revoke the API keys of a store.

    \b
    read   sees everything
    run    read, and cases and runs
    label  read, and labels
    admin  everything: graders, secrets, deletes

    The first key ends local mode: from then on every request to the service needs one.

    \b
    gradeline keys create --scope run --name ci --expires 90d
    gradeline keys list
    gradeline keys revoke 0123456789ab
    """


@keys.command()
@click.option("--scope", type=click.Choice(_SCOPES), required=True, help="What the key is good for.")
@click.option("--name", default="", help="Who or what it is for.")
@click.option("--expires", metavar="TIME", help="After how long it ends: 90d, 12h, 2w. Default: never.")
@_secret_key_file
@global_options
def create(scope: str, name: str, expires: str | None, secret_key_file: Path | None) -> None:
    """Make a key and show it, this once."""
    from gradeline.service.access import Scope

    settings = current_settings()
    lasts = _seconds(expires) if expires is not None else None
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise ConfigError(Problem("--name", f"at most {_LONGEST_NAME} printable characters"))
    with _opened(settings, secret_key_file) as store:
        key, text = store.keys.create(Scope(scope), name, lasts)
        store.note("key.create", key.id, {"scope": scope, "name": name, "expires_at": key.expires_at})
    if settings.json:
        click.echo(json.dumps({**_told(key), "key": text}, ensure_ascii=False))
        return
    click.echo(text)
    if not settings.quiet:
        until = f"until {key.expires_at}" if key.expires_at else "until it is revoked"
        click.echo(f"Keep it: it is not shown again. Key {key.id}, scope {scope}, good {until}.", err=True)


@keys.command(name="list")
@global_options
def list_keys() -> None:
    """List the keys, without their secrets."""
    settings = current_settings()
    with _opened(settings, None) as store:
        found = store.keys.all()
    if settings.json:
        click.echo(json.dumps({"keys": [_told(key) for key in found]}, ensure_ascii=False))
    elif found:
        _print(settings, found)
    else:
        click.echo("No keys. Make one with: gradeline keys create --scope run")


@keys.command()
@click.argument("key_id", metavar="ID")
@global_options
def revoke(key_id: str) -> None:
    """End a key at once, in every server on this store."""
    settings = current_settings()
    with _opened(settings, None) as store:
        # whoever has only the key itself may name it by that
        wanted = key_id.split("_")[1] if key_id.startswith("gl_") and key_id.count("_") == 3 else key_id
        if not store.keys.revoke(wanted):
            known = ", ".join(key.id for key in store.keys.all()) or "none"
            raise ConfigError(Problem("", f"no key {wanted!r}; there are: {known}"))
        store.note("key.revoke", wanted, {})
    if settings.json:
        click.echo(json.dumps({"revoked": wanted}))
    elif not settings.quiet:
        click.echo(f"revoked {wanted}")


class _Store(NamedTuple):
    keys: Keys
    audit: Audit

    def note(self, action: str, subject: str, details: dict[str, object]) -> None:
        from gradeline.service.access import Scope
        from gradeline.service.caller import Caller

        self.audit.note(Caller(None, Scope.ADMIN, "command line"), action, subject, details)


@contextmanager
def _opened(settings: Settings, secret_key_file: Path | None) -> Iterator[_Store]:
    from gradeline.cli.stores import open_store
    from gradeline.service.audit import Audit
    from gradeline.service.keys import Keys
    from gradeline.service.master import read_secret_key
    from gradeline.service.settings import ServeSettings
    from gradeline.service.state import database_of

    with open_store(settings) as storage:
        database = database_of(storage)
        secret = read_secret_key(secret_key_file)
        yield _Store(Keys(database, ServeSettings(secret_key=secret)), Audit(database))


def _seconds(text: str) -> float:
    form = _LASTS.fullmatch(text)
    if form is None:
        raise ConfigError(Problem("--expires", f"{text!r} is no time; say 90d, 12h, 30m or 2w"))
    return int(form[1]) * _UNITS[form[2]]


def _told(key: ApiKey) -> dict[str, object]:
    import msgspec

    told: dict[str, object] = msgspec.to_builtins(key)
    return told


def _print(settings: Settings, found: list[ApiKey]) -> None:
    from rich.table import Table

    from gradeline.cli.terminal import console, plain

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("id", "scope", "name", "created", "expires", "last used", "revoked"):
        table.add_column(title, no_wrap=title != "name", overflow="fold")
    for key in found:
        times = (key.created_at, key.expires_at, key.last_used_at, key.revoked_at)
        table.add_row(
            key.id, key.scope.value, plain(key.name, most=100), *(f"{at[:19]}Z" if at else "–" for at in times)
        )
    console(settings).print(table)
