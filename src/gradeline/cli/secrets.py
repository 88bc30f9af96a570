"""``gradeline secrets``: credentials that the service sends to agents and judges."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import CliSettings, current_settings, global_options, secret_key_option
from gradeline.cli.stores import existing_service_store, open_service_store
from gradeline.cli.terminal import TableColumn, console, print_message, print_table, safe_text
from gradeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from gradeline.service.secrets import SecretBody, SecretInfo

_OPTIONS = {"hosts": "--host", "scopes": "--scope", "keys": "--key", "value": "value"}
_MAX_READ = 20_000
_SOURCES = "use standard input, the prompt in a terminal, or --from-env"


@click.group()
@global_options
def secrets() -> None:
    """Set, list and delete the credentials that the service sends to agents and judges.

    A secret is encrypted with the secret key of the service, sent only to its hosts and never shown again. Use it in a
    target as `headers: {Authorization: {secret: NAME}}`.

    \b
    gradeline secrets set AGENT_TOKEN --host agent.example.com --scope run < token
    gradeline secrets list
    gradeline secrets delete AGENT_TOKEN
    """


@secrets.command(name="set", context_settings={"allow_extra_args": True})
@click.argument("name")
@click.option(
    "--host", "hosts", multiple=True, required=True, help="Host that may receive it: host[:port] (repeatable)."
)
@click.option(
    "--scheme",
    type=click.Choice(("https", "http")),
    default="https",
    show_default=True,
    help="Scheme of the requests; http is unencrypted.",
)
@click.option(
    "--place",
    type=click.Choice(("header", "query", "body")),
    default="header",
    show_default=True,
    help="Part of the request that may contain it.",
)
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(("run", "admin")),
    multiple=True,
    help="Scope of the keys that may use it, besides admin (repeatable).",
)
@click.option(
    "--key", "keys", metavar="ID", multiple=True, help="Key that may use it, whatever its scope (repeatable)."
)
@click.option("--from-env", "variable", metavar="VAR", help="Read the value from this environment variable.")
@secret_key_option
@global_options
def set_secret(name: str, variable: str | None, secret_key_file: Path | None, **fields: str | tuple[str, ...]) -> None:
    """Store a secret, or replace it.

    The value is read from standard input (without the final line break), from a prompt in a terminal, or from a
    variable with --from-env. It is never an argument, because other users of the machine could see it. It is the
    complete value of the header, parameter or field, such as `Bearer 8f3kZq0wXy`.

    \b
    gradeline secrets set AGENT_TOKEN --host agent.example.com --scope run < token
    gradeline secrets set JUDGE_KEY --host judge.internal:8443 --from-env JUDGE_KEY
    gradeline secrets set AGENT_QUERY_KEY --host a.example.com --host b.example.com --place query
    """
    if click.get_current_context().args:  # click would print them
        raise ConfigError(Problem("", f"the value of a secret is not an argument; {_SOURCES}"))
    body = _body(fields, _value(variable))
    with open_service_store(secret_key_file) as store:
        from gradeline.service.errors import ServiceError
        from gradeline.service.secrets import store_secret

        secrets_store = store.secrets()
        try:
            stored = store_secret(secrets_store, store.keys(), name, body, store.recorder("secret.put"))
        except ServiceError as error:
            raise ConfigError(Problem("", error.message)) from None
        unreadable = secrets_store.unreadable()
    settings = current_settings()
    if settings.json:
        click.echo(json.dumps(_as_json(stored), ensure_ascii=False))
    elif not settings.quiet:
        click.echo(f"stored {stored.name}: {_sent_to(stored)}, for {_users(stored)}")
    if unreadable:
        print_message(
            f"note: stored with another secret key: {', '.join(unreadable)}; a service with this key cannot send them."
            " Set them again, or set this one with the key of the service"
        )


@secrets.command(name="list")
@global_options
def list_secrets() -> None:
    """List the secrets, without their values."""
    settings = current_settings()
    with existing_service_store() as store:
        found = [] if store is None else store.secrets().all()
    if settings.json:
        click.echo(json.dumps({"secrets": [_as_json(secret) for secret in found]}, ensure_ascii=False))
    elif found:
        _print(settings, found)
    else:
        click.echo("No secrets. Store one with: gradeline secrets set NAME --host HOST")


@secrets.command()
@click.argument("name")
@global_options
def delete(name: str) -> None:
    """Delete a secret. Runs that need it will fail."""
    settings = current_settings()
    with existing_service_store() as store:
        if store is None or not store.secrets().delete(name, store.recorder("secret.delete")):
            known = ", ".join(secret.name for secret in store.secrets().all()) if store is not None else ""
            raise ConfigError(Problem("", f"unknown secret {name!r}: the store has {known or 'none'}"))
    if settings.json:
        click.echo(json.dumps({"deleted": name}))
    elif not settings.quiet:
        click.echo(f"deleted {name}")


def _value(variable: str | None) -> str:
    if variable is not None:
        if variable not in os.environ:
            raise ConfigError(Problem("--from-env", f"the variable {variable!r} is not set"))
        return os.environ[variable]
    if sys.stdin.isatty():
        value: str = click.prompt("Value", hide_input=True, err=True)
        return value
    return sys.stdin.read(_MAX_READ).removesuffix("\n").removesuffix("\r")


def _body(fields: dict[str, str | tuple[str, ...]], value: str) -> SecretBody:
    """The body of the REST request; `ConfigError` with every fault, without quoting the value."""
    from pydantic import ValidationError

    from gradeline.service.responses import reason_of
    from gradeline.service.secrets import SecretBody

    data = {name: list(field) if isinstance(field, tuple) else field for name, field in fields.items()}
    try:
        return SecretBody.model_validate({**data, "value": value})
    except ValidationError as error:
        faults = [(str(fault["loc"][0]), fault) for fault in error.errors(include_url=False)]
    raise ConfigError(Problem(_OPTIONS.get(field, field), reason_of(field, fault)) for field, fault in faults)


def _as_json(secret: SecretInfo) -> dict[str, object]:
    import msgspec

    data: dict[str, object] = msgspec.to_builtins(secret)
    return data


def _sent_to(secret: SecretInfo) -> str:
    place = {"header": "in a header", "query": "in the query", "body": "in the body"}[secret.place]
    return f"sent to {', '.join(secret.hosts)} by {secret.scheme} {place}"


def _users(secret: SecretInfo) -> str:
    scopes = "keys of scope admin and run" if "run" in secret.scopes else "keys of scope admin"
    return f"{scopes}, and {', '.join(secret.keys)}" if secret.keys else scopes


def _print(settings: CliSettings, found: list[SecretInfo]) -> None:

    columns = (
        TableColumn("name", key=True),
        TableColumn("hosts", wraps=True, key=True),
        *(TableColumn(title) for title in ("scheme", "place", "scopes")),
        TableColumn("keys", wraps=True),
        TableColumn("modified"),
    )
    rows = [
        (
            safe_text(one.name),
            safe_text(", ".join(one.hosts), most=1000),
            one.scheme,
            one.place,
            ", ".join(one.scopes),
            ", ".join(one.keys) or "–",
            f"{one.modified_at[:19]}Z",
        )
        for one in found
    ]
    print_table(console(settings), columns, rows)
