"""``gradeline secrets``: credentials that the service sends to agents and judges."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradeline.cli.service_store import existing_service_store, opened_service_store, secret_key_option
from gradeline.cli.settings import Settings, current_settings, global_options
from gradeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from gradeline.service.secret_shapes import SecretBody
    from gradeline.service.secrets import SecretInfo

_OPTIONS = {"hosts": "--host", "scopes": "--scope", "keys": "--key", "value": "value"}
_MOST_READ = 20_000
_SOURCES = "it is read from standard input, from a prompt in a terminal, or from a variable with --from-env"


@click.group()
@global_options
def secrets() -> None:
    """Set, list and delete the secrets that the service sends to agents and judges.

    A secret is encrypted with the service's secret key, sent only to its hosts, and never shown again. A target uses
    it as `headers: {Authorization: {secret: NAME}}`.

    \b
    gradeline secrets set AGENT_TOKEN --host agent.example.com --scope run < token
    gradeline secrets list
    gradeline secrets delete AGENT_TOKEN
    """


@secrets.command(name="set", context_settings={"allow_extra_args": True})
@click.argument("name")
@click.option("--host", "hosts", multiple=True, required=True, help="Where it may be sent: host[:port]. Repeatable.")
@click.option(
    "--scheme",
    type=click.Choice(("https", "http")),
    default="https",
    show_default=True,
    help="http sends it unencrypted.",
)
@click.option(
    "--place",
    type=click.Choice(("header", "query", "body")),
    default="header",
    show_default=True,
    help="Where in a request it may be.",
)
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(("run", "admin")),
    multiple=True,
    help="Scope of keys that may use it. Repeatable. Default: admin, which always may.",
)
@click.option("--key", "keys", metavar="ID", multiple=True, help="Key that may use it, whatever its scope. Repeatable.")
@click.option("--from-env", "variable", metavar="VAR", help="Take the value from this environment variable.")
@secret_key_option
@global_options
def set_secret(name: str, variable: str | None, secret_key_file: Path | None, **fields: str | tuple[str, ...]) -> None:
    """Store a secret, or replace it whole.

    The value is read from standard input without its line break, from a prompt in a terminal, or with --from-env from
    a variable. It is never an argument, which other users of the machine could see. It is the whole value of the
    header, parameter or field, such as `Bearer 8f3kZq0wXy`.

    \b
    gradeline secrets set AGENT_TOKEN --host agent.example.com --scope run < token
    gradeline secrets set JUDGE_KEY --host judge.internal:8443 --from-env JUDGE_KEY
    gradeline secrets set AGENT_QUERY_KEY --host a.example.com --host b.example.com --place query
    """
    if click.get_current_context().args:  # click would print them
        raise ConfigError(Problem("", f"the value of a secret is not an argument: {_SOURCES}"))
    body = _body(fields, _value(variable))
    with opened_service_store(secret_key_file) as store:
        from gradeline.service.failures import ApiError
        from gradeline.service.secret_shapes import store_secret

        kept = store.secrets()
        try:
            stored = store_secret(kept, store.keys(), name, body, store.recorder("secret.put"))
        except ApiError as error:
            raise ConfigError(Problem("", error.message)) from None
        unreadable = kept.unreadable()
    settings = current_settings()
    if settings.json:
        click.echo(json.dumps(_as_json(stored), ensure_ascii=False))
    elif not settings.quiet:
        click.echo(f"stored {stored.name}: {_sent_to(stored)}, for {_users(stored)}")
    if unreadable:
        from gradeline.cli.terminal import say

        say(
            f"note: stored with another secret key: {', '.join(unreadable)}; a service that has this one cannot send"
            " them. Set them again, or set this one with the key that the service has"
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
    """Delete a secret. Runs that need it fail from then on."""
    settings = current_settings()
    with existing_service_store() as store:
        if store is None or not store.secrets().delete(name, store.recorder("secret.delete")):
            known = ", ".join(secret.name for secret in store.secrets().all()) if store is not None else ""
            raise ConfigError(Problem("", f"no secret {name!r}; the store has: {known or 'none'}"))
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
    return sys.stdin.read(_MOST_READ).removesuffix("\n").removesuffix("\r")


def _body(fields: dict[str, str | tuple[str, ...]], value: str) -> SecretBody:
    """What REST takes; `ConfigError` with every fault, none of which quotes the value."""
    from pydantic import ValidationError

    from gradeline.service.errors_http import reason_of
    from gradeline.service.secret_shapes import SecretBody

    given = {name: list(field) if isinstance(field, tuple) else field for name, field in fields.items()}
    try:
        return SecretBody.model_validate({**given, "value": value})
    except ValidationError as error:
        faults = [(str(fault["loc"][0]), fault) for fault in error.errors(include_url=False)]
    raise ConfigError(Problem(_OPTIONS.get(field, field), reason_of(field, fault)) for field, fault in faults)


def _as_json(secret: SecretInfo) -> dict[str, object]:
    import msgspec

    shown: dict[str, object] = msgspec.to_builtins(secret)
    return shown


def _sent_to(secret: SecretInfo) -> str:
    place = {"header": "in a header", "query": "in the query", "body": "in the body"}[secret.place]
    return f"sent to {', '.join(secret.hosts)} by {secret.scheme} {place}"


def _users(secret: SecretInfo) -> str:
    scopes = "keys of scope admin and run" if "run" in secret.scopes else "keys of scope admin"
    return f"{scopes}, and {', '.join(secret.keys)}" if secret.keys else scopes


def _print(settings: Settings, found: list[SecretInfo]) -> None:
    from gradeline.cli.tables import Column, print_table
    from gradeline.cli.terminal import console, plain

    columns = (
        Column("name", key=True),
        Column("hosts", wraps=True, key=True),
        *(Column(title) for title in ("scheme", "place", "scopes")),
        Column("keys", wraps=True),
        Column("modified"),
    )
    rows = [
        (
            plain(one.name),
            plain(", ".join(one.hosts), most=1000),
            one.scheme,
            one.place,
            ", ".join(one.scopes),
            ", ".join(one.keys) or "–",
            f"{one.modified_at[:19]}Z",
        )
        for one in found
    ]
    print_table(console(settings), columns, rows)
