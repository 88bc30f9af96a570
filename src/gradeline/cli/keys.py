"""``gradeline keys``: the API keys of the service."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import CliSettings, current_settings, global_options, secret_key_option
from gradeline.cli.stores import existing_service_store, open_service_store
from gradeline.cli.terminal import TableColumn, console, print_table, safe_text
from gradeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from gradeline.service.auth import ApiKey

_SCOPES = ("read", "run", "label", "admin")
_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LIFETIME = re.compile(r"([1-9][0-9]{0,4})([mhdw])", re.ASCII)
_MAX_NAME = 100


@click.group()
@global_options
def keys() -> None:
    """Create, list and revoke the API keys of the service.

    \b
    read   view everything
    run    read, start runs, edit cases (delete only its own)
    label  read, add labels
    admin  everything, including graders, secrets and deletion

    The first key ends local mode: from then on, every request to the service needs a key.

    \b
    gradeline keys create --scope run --name ci --expires 90d
    gradeline keys list
    gradeline keys revoke 0123456789ab
    """


@keys.command()
@click.option("--scope", type=click.Choice(_SCOPES), required=True, help="Permissions of the key.")
@click.option("--name", default="", help="Purpose or owner of the key.")
@click.option("--expires", metavar="TIME", help="Lifetime such as 90d, 12h or 2w (default: no expiry).")
@secret_key_option
@global_options
def create(scope: str, name: str, expires: str | None, secret_key_file: Path | None) -> None:
    """Create a key and print it. It is not shown again."""
    from gradeline.service.auth import KeyScope

    settings = current_settings()
    lifetime = _seconds(expires) if expires is not None else None
    if len(name) > _MAX_NAME or not name.isprintable():
        raise ConfigError(Problem("--name", f"at most {_MAX_NAME} printable characters"))
    with open_service_store(secret_key_file) as store:
        key, text = store.keys().create(KeyScope(scope), name, lifetime, store.recorder("key.create"))
    if settings.json:
        click.echo(json.dumps({**_as_json(key), "key": text}, ensure_ascii=False))
        return
    click.echo(text)
    if not settings.quiet:
        until = key.expires_at or "revoked"
        click.echo(f"Store it now, it is not shown again. Key {key.id}, scope {scope}, valid until {until}.", err=True)


@keys.command(name="list")
@global_options
def list_keys() -> None:
    """List the keys, without their secrets."""
    settings = current_settings()
    with existing_service_store() as store:
        found = [] if store is None else store.keys().all()
    if settings.json:
        click.echo(json.dumps({"keys": [_as_json(key) for key in found]}, ensure_ascii=False))
    elif found:
        _print(settings, found)
    else:
        click.echo("No keys. Create one with: gradeline keys create --scope run")


@keys.command()
@click.argument("key_id", metavar="ID")
@global_options
def revoke(key_id: str) -> None:
    """Revoke a key at once, in every server that uses this store."""
    settings = current_settings()
    with existing_service_store() as store:
        # the full key text is accepted too
        revoked = key_id.split("_")[1] if key_id.startswith("gl_") and key_id.count("_") == 3 else key_id
        if store is None or not store.keys().revoke(revoked, store.recorder("key.revoke")):
            known = ", ".join(key.id for key in store.keys().all()) if store is not None else ""
            raise ConfigError(Problem("", f"unknown key {revoked!r}: the store has {known or 'none'}"))
    if settings.json:
        click.echo(json.dumps({"revoked": revoked}))
    elif not settings.quiet:
        click.echo(f"revoked {revoked}")


def _seconds(text: str) -> float:
    form = _LIFETIME.fullmatch(text)
    if form is None:
        raise ConfigError(Problem("--expires", f"invalid lifetime {text!r}: use a value such as 90d, 12h, 30m or 2w"))
    return int(form[1]) * _UNITS[form[2]]


def _as_json(key: ApiKey) -> dict[str, object]:
    import msgspec

    data: dict[str, object] = msgspec.to_builtins(key)
    return data


def _print(settings: CliSettings, found: list[ApiKey]) -> None:

    columns = (
        TableColumn("id", key=True),
        TableColumn("scope"),
        TableColumn("name", wraps=True, key=True),
        *(TableColumn(title) for title in ("created", "expires", "last used", "revoked")),
    )
    rows = []
    for key in found:
        times = (key.created_at, key.expires_at, key.last_used_at, key.revoked_at)
        moments = (f"{at[:19]}Z" if at else "–" for at in times)
        rows.append((key.id, key.scope.value, safe_text(key.name, most=100), *moments))
    print_table(console(settings), columns, rows)
