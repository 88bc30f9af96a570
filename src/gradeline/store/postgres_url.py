"""A PostgreSQL URL: checked before anything is dialled, and named without what is secret in it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

from gradeline.errors import ConfigError, Problem

POOL_SIZE = 8
"""One for the writer, one for a long read, and some for the short reads of a service's threads. A dozen processes then
fit into the hundred connections that a server has by default."""
STATEMENT_SECONDS = 60.0
_MOST_CONNECTIONS = 100
_LONGEST_MS = 24 * 3600 * 1000
_SHAPE = "say postgresql://user@host:5432/database"


class PostgresUrl(NamedTuple):
    """Where a store is. Only `place` may be shown: the rest may hold a password."""

    dsn: str
    place: str
    pool_size: int = POOL_SIZE
    """The most connections of this process."""
    statement_seconds: float = STATEMENT_SECONDS
    """How long the server works on a statement before it gives up."""

    def __repr__(self) -> str:
        return f"PostgresUrl({self.place!r})"


def read_url(url: str) -> PostgresUrl:
    """The URL as the driver takes it, or `ConfigError`, which never shows the URL."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise _wrong(f"this is no URL of a PostgreSQL store; {_SHAPE}")
    try:
        parts = urlsplit(f"postgresql://{rest}")
        _ = parts.port if "," not in parts.netloc else None  # read, since a wrong one raises
        options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise _unreadable() from None
    if parts.netloc.count("@") > 1 or "@" in parts.path or parts.fragment:
        raise _unreadable()
    database = unquote(parts.path.removeprefix("/")) or options.get("dbname", options.get("database", [""]))[-1]
    if not database:
        raise _wrong(f"the URL of the PostgreSQL store names no database; {_SHAPE}")
    host = parts.netloc.rpartition("@")[2] or options.get("host", [""])[-1]
    pool_size = _number(options, "pool_size", POOL_SIZE, 1, _MOST_CONNECTIONS)
    statement_ms = _number(options, "statement_timeout", round(STATEMENT_SECONDS * 1000), 1, _LONGEST_MS)
    return PostgresUrl(_dsn(rest), f"postgresql://{host}/{database}", pool_size, statement_ms / 1000)


def _number(options: dict[str, list[str]], name: str, default: int, least: int, most: int) -> int:
    text = options.get(name, [str(default)])[-1]
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        unit = " (milliseconds)" if name == "statement_timeout" else ""
        raise _wrong(f"{name} in the URL of the PostgreSQL store must be a whole number from {least} to {most}{unit}")
    return int(text)


def _dsn(rest: str) -> str:
    """Without what is meant for this store: the driver would send it to the server."""
    address, mark, query = rest.partition("?")
    if not mark:
        return f"postgresql://{address}"
    theirs = [(name, value) for name, value in parse_qsl(query) if name not in ("pool_size", "statement_timeout")]
    return f"postgresql://{address}?{urlencode(theirs)}" if theirs else f"postgresql://{address}"


def _unreadable() -> ConfigError:
    return _wrong(
        "the URL of the PostgreSQL store cannot be read; write '@', ':', '/', '?', '#' and '%' of a user's name or"
        f" password as %40, %3A, %2F, %3F, %23 and %25, and else {_SHAPE}"
    )


def _wrong(message: str) -> ConfigError:
    return ConfigError(Problem("store", message))
