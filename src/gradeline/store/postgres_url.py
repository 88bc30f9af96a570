"""A PostgreSQL URL: checked before anything is dialled, and named without what is secret in it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from gradeline.errors import ConfigError, Problem

_SHAPE = "say postgresql://user@host:5432/database"


class PostgresUrl(NamedTuple):
    """Where a store is. Only `place` may be shown: the rest may hold a password."""

    dsn: str
    place: str

    def __repr__(self) -> str:
        return f"PostgresUrl({self.place!r})"


def read_url(url: str) -> PostgresUrl:
    """The URL as the driver takes it, or `ConfigError`, which never shows the URL."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise _wrong(f"this is no URL of a PostgreSQL store; {_SHAPE}")
    dsn = f"postgresql://{rest}"
    try:
        parts = urlsplit(dsn)
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
    return PostgresUrl(dsn, f"postgresql://{host}/{database}")


def _unreadable() -> ConfigError:
    return _wrong(
        "the URL of the PostgreSQL store cannot be read; write '@', ':', '/', '?', '#' and '%' of a user's name or"
        f" password as %40, %3A, %2F, %3F, %23 and %25, and else {_SHAPE}"
    )


def _wrong(message: str) -> ConfigError:
    return ConfigError(Problem("store", message))
