"""What PostgreSQL's errors mean for whoever called the store."""

from __future__ import annotations

import asyncpg

from gradeline.errors import StoreError

_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InternalClientError,  # the driver's state, when the server took leave before it was asked anything
    OSError,
)
KEEPS_CONNECTIONS = (TimeoutError, asyncpg.TooManyConnectionsError)
"""Of a server that is busy or full, the connections that there are stay good."""
_CLASHED = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.QueryCanceledError)
BAD_ROW = (
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.DataError,
    # what the driver cannot send
    ValueError,
    OverflowError,
)
"""A value that cannot be stored: the fault of one row, not of the store."""

_REMEDIES: dict[type[Exception], str] = {
    asyncpg.InvalidAuthorizationSpecificationError: "does not let this user in; see to the user and the password in"
    " the URL, in PGUSER and PGPASSWORD, or in ~/.pgpass",
    asyncpg.InvalidCatalogNameError: "is not there; make the database with: createdb --encoding UTF8 NAME",
    asyncpg.InsufficientPrivilegeError: "does not let this user do it; let its owner say"
    " GRANT CREATE ON DATABASE … TO …, or CREATE SCHEMA gradeline AUTHORIZATION …",
    asyncpg.ReadOnlySQLTransactionError: "is read-only, as a standby is; name the primary server",
    asyncpg.DiskFullError: "cannot grow: the server's disk is full; free some space, then resume",
    TimeoutError: "did not answer in time; see how busy it is, then try again",
    asyncpg.TooManyConnectionsError: "has no connection free; try again when others have ended, raise max_connections,"
    " run fewer processes, or let each take fewer with ?pool_size=2 in the URL",
    asyncpg.QueryCanceledError: "stopped a statement that took too long; see how busy it is and try again, or allow"
    " more with ?statement_timeout=MILLISECONDS in the URL",
}


class InDoubt(Exception):  # noqa: N818 - it says what is known, and may be no error
    """The commit was sent and not answered: the rows may be stored or not."""


class RowsRefused(Exception):  # noqa: N818 - the rows are at fault, and which of them is to be found out
    """Among several rows is one that cannot be stored."""


DATABASE_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, InDoubt)
"""What comes from the server or the way to it, and is told to callers as a `StoreError`."""


def was_lost(error: BaseException) -> bool:
    """Whether there was no connection, or is none any more."""
    closed = isinstance(error, asyncpg.InterfaceError) and not isinstance(error, ValueError)
    return closed or isinstance(error, _LOST)


def may_try_again(error: BaseException) -> bool:
    """Whether nothing of it was stored, and the same may work in a moment."""
    return was_lost(error) or isinstance(error, _CLASHED)


def failure(place: str, error: BaseException) -> StoreError:
    """The error as callers of a store know it. ``place`` is shown, and must hold no password."""
    if isinstance(error, InDoubt):
        cause = error.__cause__ or error
        return StoreError(
            f"the store {place} was lost during a commit: whether its rows are stored is unknown; resume to find out"
            f" ({told(cause)})"
        )
    remedy = next((text for kind, text in _REMEDIES.items() if isinstance(error, kind)), None)
    if remedy is None and was_lost(error):
        remedy = "cannot be reached; see that the server runs and that the host and the port are right, then try again"
    message = f"the store {place} {remedy} ({told(error)})" if remedy else f"the store {place}: {told(error)}"
    return StoreError(message, retryable=may_try_again(error))


def told(error: BaseException) -> str:
    """The first line of what an error says; the others may quote rows."""
    lines = str(error.args[0] if isinstance(error, asyncpg.PostgresError) and error.args else error).splitlines()
    return lines[0][:300] if lines else type(error).__name__
