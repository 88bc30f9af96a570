"""``gradeline keys``: who may use the service."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.service_store import existing_service_store, opened_service_store, secret_key_option
from gradeline.cli.settings import Settings, current_settings, global_options
from gradeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from gradeline.service.keys import ApiKey

_SCOPES = ("read", "run", "label", "admin")
_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LASTS = re.compile(r"([1-9][0-9]{0,4})([mhdw])", re.ASCII)
_LONGEST_NAME = 100


@click.group()
@global_options
def keys() -> None:
    """Make, list and revoke the API keys of a store.

    \b
    read   sees everything
    run    read, and cases (deletes its own) and runs
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
@secret_key_option
@global_options
def create(scope: str, name: str, expires: str | None, secret_key_file: Path | None) -> None:
    """Make a key and show it, this once."""
    from gradeline.service.access import Scope

    settings = current_settings()
    lasts = _seconds(expires) if expires is not None else None
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise ConfigError(Problem("--name", f"at most {_LONGEST_NAME} printable characters"))
    with opened_service_store(secret_key_file) as store:
        key, text = store.keys().create(Scope(scope), name, lasts, store.recorder("key.create"))
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
    with existing_service_store() as store:
        found = [] if store is None else store.keys().all()
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
    with existing_service_store() as store:
        # a key can also be named by its whole text
        wanted = key_id.split("_")[1] if key_id.startswith("gl_") and key_id.count("_") == 3 else key_id
        if store is None or not store.keys().revoke(wanted, store.recorder("key.revoke")):
            known = ", ".join(key.id for key in store.keys().all()) if store is not None else ""
            raise ConfigError(Problem("", f"no key {wanted!r}; the store has: {known or 'none'}"))
    if settings.json:
        click.echo(json.dumps({"revoked": wanted}))
    elif not settings.quiet:
        click.echo(f"revoked {wanted}")


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
    from gradeline.cli.tables import Column, print_table
    from gradeline.cli.terminal import console, plain

    columns = (
        Column("id", key=True),
        Column("scope"),
        Column("name", wraps=True, key=True),
        *(Column(title) for title in ("created", "expires", "last used", "revoked")),
    )
    rows = []
    for key in found:
        times = (key.created_at, key.expires_at, key.last_used_at, key.revoked_at)
        shown = (f"{at[:19]}Z" if at else "–" for at in times)
        rows.append((key.id, key.scope.value, plain(key.name, most=100), *shown))
    print_table(console(settings), columns, rows)
