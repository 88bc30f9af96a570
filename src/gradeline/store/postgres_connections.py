"""Connections to PostgreSQL for synchronous callers in any thread, served by an event loop in a thread of its own.

Also the URL of a store, which is checked before anything connects and shown without its password, and what the
database's errors mean to the caller of a store.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import lru_cache, partial
from itertools import count
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

import asyncpg

from gradeline.errors import ConfigError, Problem, StoreError
from gradeline.store.database import Row, T, Transaction, Value

if TYPE_CHECKING:
    from asyncpg import Record
    from asyncpg.pool import Pool, PoolConnectionProxy

    Connection: TypeAlias = PoolConnectionProxy[Record]

Isolation: TypeAlias = Literal["read_committed", "repeatable_read", "serializable"]

POOL_SIZE = 8
"""One for the writer, one for a long read, and some for the short reads of a service's threads. A dozen processes then
fit into the hundred connections that a server allows by default."""
STATEMENT_SECONDS = 60.0
_MAX_POOL_SIZE = 100
_MAX_STATEMENT_MS = 24 * 3600 * 1000
_URL_FORM = "write postgresql://user@host:5432/database"


class PostgresUrl(NamedTuple):
    """The address of a store. Only `location` may be shown: the rest may hold a password."""

    dsn: str
    location: str
    pool_size: int = POOL_SIZE
    """Maximum connections of this process."""
    statement_seconds: float = STATEMENT_SECONDS
    """How long a statement may take on the server."""

    def __repr__(self) -> str:
        return f"PostgresUrl({self.location!r})"


def read_url(url: str) -> PostgresUrl:
    """Parse a URL; the `ConfigError` for a wrong one never shows it."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise _url_error(f"not the URL of a PostgreSQL store; {_URL_FORM}")
    try:
        parts = urlsplit(f"postgresql://{rest}")
        _ = parts.port if "," not in parts.netloc else None  # raises if it is not a number
        options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise _unreadable_url() from None
    if parts.netloc.count("@") > 1 or "@" in parts.path or parts.fragment:
        raise _unreadable_url()
    database = unquote(parts.path.removeprefix("/")) or options.get("dbname", options.get("database", [""]))[-1]
    if not database:
        raise _url_error(f"the URL of the PostgreSQL store names no database; {_URL_FORM}")
    host = parts.netloc.rpartition("@")[2] or options.get("host", [""])[-1]
    pool_size = _url_option(options, "pool_size", POOL_SIZE, 1, _MAX_POOL_SIZE)
    statement_ms = _url_option(options, "statement_timeout", round(STATEMENT_SECONDS * 1000), 1, _MAX_STATEMENT_MS)
    return PostgresUrl(_dsn(rest), f"postgresql://{host}/{database}", pool_size, statement_ms / 1000)


def _url_option(options: dict[str, list[str]], name: str, default: int, minimum: int, maximum: int) -> int:
    text = options.get(name, [str(default)])[-1]
    if not (text.isascii() and text.isdigit() and minimum <= int(text) <= maximum):
        unit = " (milliseconds)" if name == "statement_timeout" else ""
        raise _url_error(
            f"{name} in the URL of the PostgreSQL store must be a whole number from {minimum} to {maximum}{unit}"
        )
    return int(text)


def _dsn(rest: str) -> str:
    """The URL without this store's own options, which the driver would send to the server."""
    address, mark, query = rest.partition("?")
    if not mark:
        return f"postgresql://{address}"
    options = [(name, value) for name, value in parse_qsl(query) if name not in ("pool_size", "statement_timeout")]
    return f"postgresql://{address}?{urlencode(options)}" if options else f"postgresql://{address}"


def _unreadable_url() -> ConfigError:
    return _url_error(
        "the URL of the PostgreSQL store cannot be parsed; write '@', ':', '/', '?', '#' and '%' in a user name or"
        f" password as %40, %3A, %2F, %3F, %23 and %25, and otherwise {_URL_FORM}"
    )


def _url_error(message: str) -> ConfigError:
    return ConfigError(Problem("store", message))


_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    asyncpg.InternalClientError,  # the driver's state when the server closed an idle connection
    OSError,
)
_BUSY = (TimeoutError, asyncpg.TooManyConnectionsError)
"""The server is busy or full; existing connections stay usable."""
_CONFLICT = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.QueryCanceledError)
BAD_ROW = (
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.DataError,
    # values that the driver cannot encode
    ValueError,
    OverflowError,
)
"""A value that cannot be stored: the error of one row, not of the store."""

_REMEDIES: dict[type[Exception], str] = {
    asyncpg.InvalidAuthorizationSpecificationError: "refused the user; check the user and password in the URL, in"
    " PGUSER and PGPASSWORD, or in ~/.pgpass",
    asyncpg.InvalidCatalogNameError: "does not exist; create the database with: createdb --encoding UTF8 NAME",
    asyncpg.InsufficientPrivilegeError: "does not permit this to the user; let its owner run"
    " GRANT CREATE ON DATABASE … TO …, or CREATE SCHEMA gradeline AUTHORIZATION …",
    asyncpg.ReadOnlySQLTransactionError: "is read-only, as a standby is; use the primary server",
    asyncpg.DiskFullError: "cannot grow: the server's disk is full; free some space, then resume",
    TimeoutError: "did not answer in time; check its load, then try again",
    asyncpg.TooManyConnectionsError: "has no free connection; try again when others have ended, raise max_connections,"
    " run fewer processes, or let each use fewer with ?pool_size=2 in the URL",
    asyncpg.QueryCanceledError: "stopped a statement that took too long; check its load and try again, or allow more"
    " with ?statement_timeout=MILLISECONDS in the URL",
}


class CommitInDoubtError(Exception):
    """The commit was sent and not answered: the rows may be stored or not."""


class RowsRefusedError(Exception):
    """One of several rows cannot be stored."""


DATABASE_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    CommitInDoubtError,
)
"""Errors of the server or the connection, raised to callers as `StoreError`."""


def was_lost(error: BaseException) -> bool:
    """Whether there was no connection, or it was lost."""
    closed = isinstance(error, asyncpg.InterfaceError) and not isinstance(error, ValueError)
    return closed or isinstance(error, _LOST)


def may_retry(error: BaseException) -> bool:
    """Whether nothing was stored and a retry may work."""
    return was_lost(error) or isinstance(error, _CONFLICT)


def store_error(location: str, error: BaseException) -> StoreError:
    """The error for callers of a store. ``location`` appears in the message and must not hold a password."""
    if isinstance(error, CommitInDoubtError):
        cause = error.__cause__ or error
        return StoreError(
            f"the store {location} was lost during a commit: whether its rows are stored is unknown; resume to find"
            f" out ({error_text(cause)})"
        )
    remedy = next((text for kind, text in _REMEDIES.items() if isinstance(error, kind)), None)
    if remedy is None and was_lost(error):
        remedy = "cannot be reached; check that the server runs and that host and port are right, then try again"
    message = (
        f"the store {location} {remedy} ({error_text(error)})"
        if remedy
        else f"the store {location}: {error_text(error)}"
    )
    return StoreError(message, retryable=may_retry(error))


def error_text(error: BaseException) -> str:
    """The first line of an error's text; the others may quote rows."""
    lines = str(error.args[0] if isinstance(error, asyncpg.PostgresError) and error.args else error).splitlines()
    return lines[0][:300] if lines else type(error).__name__


CONNECT_SECONDS = 10.0
LONG_SECONDS = 3600.0
"""For a migration, a copy, or the rows that are deleted with a large run."""
SCHEMA = "gradeline"
_CLOSE_SECONDS = 10.0
_RETRY_SECONDS = 0.1
_GRACE_SECONDS = 5.0
"""Time for the server's own error about a statement that takes too long to arrive."""
IDLE_SECONDS = 10.0
"""Timeout of an idle transaction, unless it copies a store. Less than the lease of a run: a process that freezes while
it renews its lease must not keep that row locked when another process takes over."""
_SESSION = """
    SELECT set_config('search_path', $1, false), set_config('jit', 'off', false), set_config('synchronous_commit',
        CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END,
        false), set_config('statement_timeout', $2, false),
        set_config('idle_in_transaction_session_timeout', $3, false),
        set_config('max_parallel_workers_per_gather', '0', false)"""
"""A commit must be on disk, whatever the server's default. No statement is long enough for JIT or parallel workers to
pay off. The server enforces the timeouts, so that no statement or lock outlives its client."""
_PLACEHOLDER = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|\?""")


class PostgresConnectionPool:
    """A pool of connections for synchronous callers in any thread, also from inside a running event loop.

    Work that was lost before its commit was sent, or that conflicted with another transaction, is retried for
    ``retry_seconds``, long enough for a restart of the server. Then it is a retryable `StoreError`. Work lost during
    the commit is not retried, since it may have been stored.
    """

    def __init__(self, url: PostgresUrl, *, retry_seconds: float) -> None:
        self.location = url.location
        self._retry_seconds = retry_seconds
        self._process = os.getpid()
        self._lock = Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="gradeline-postgres", daemon=True)
        self._thread.start()
        try:
            self._pool = self._wait(self._open(url))
        except BaseException:
            self._closed = True
            self._stop_loop()
            raise

    def read(self, statement: str, *values: object) -> list[Record]:
        """The rows of a query."""

        async def fetch() -> list[Record]:
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                return await connection.fetch(statement, *values)

        return self._wait(self._retry(fetch))

    def write(self, work: Callable[[Connection], Awaitable[T]], *, isolation: Isolation = "read_committed") -> T:
        """Run ``work`` in one transaction and return once it is durable. It may be called several times."""

        async def transact() -> T:
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                transaction = connection.transaction(isolation=isolation)
                await transaction.start()
                try:
                    result = await work(connection)
                except BaseException:
                    with suppress(Exception):  # the first error is the cause
                        await transaction.rollback()
                    raise
                await _commit(transaction)
                return result

        return self._wait(self._retry(transact))

    def maintain(self, statement: str) -> None:
        """Run a statement that cannot be in a transaction, without its time limit."""

        async def run() -> None:
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                before = await connection.fetchval("SELECT current_setting('statement_timeout')")
                await connection.execute("SELECT set_config('statement_timeout', '0', false)")
                try:
                    await connection.execute(statement, timeout=LONG_SECONDS)
                finally:
                    await connection.execute("SELECT set_config('statement_timeout', $1, false)", before)

        self._wait(self._retry(run))

    def close(self) -> None:
        """Wait for running statements, then close all connections."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._process == os.getpid():  # threads do not survive a fork
            asyncio.run_coroutine_threadsafe(self._close_pool(), self._loop).result()
            self._stop_loop()

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            problem = self._unusable()
            if problem is not None:
                coroutine.close()
                raise StoreError(problem)
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise StoreError(f"the store {self.location} is closed") from None
        except BaseException:
            future.cancel()  # an interrupted caller leaves no work behind
            raise

    def _unusable(self) -> str | None:
        if self._closed:
            return f"the store {self.location} is closed"
        if self._process != os.getpid():
            return f"the store {self.location} was opened by the parent process of this one; open it again"
        return None

    async def _open(self, url: PostgresUrl) -> Pool[Record]:
        try:
            pool = await asyncpg.create_pool(
                url.dsn,
                min_size=0,  # the pool would only log why its own connections fail
                max_size=url.pool_size,
                timeout=CONNECT_SECONDS,
                command_timeout=url.statement_seconds + _GRACE_SECONDS,
                server_settings={"application_name": "gradeline"},
                init=partial(_begin_session, statement_seconds=url.statement_seconds),
                reset=_keep_session,
            )
            async with pool.acquire(timeout=CONNECT_SECONDS):
                return pool
        except (asyncpg.PostgresError, asyncpg.InternalClientError, OSError) as error:
            raise store_error(self.location, error) from error
        except (asyncpg.InterfaceError, ValueError):  # their text may quote the URL
            raise ConfigError(Problem("store", f"invalid option in the URL of {self.location}")) from None

    async def _retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        deadline = self._loop.time() + self._retry_seconds
        while True:
            try:
                return await attempt()
            except DATABASE_ERRORS as error:
                if self._closed or not may_retry(error) or self._loop.time() >= deadline:
                    raise self._store_error(error) from error
                if was_lost(error) and not isinstance(error, _BUSY):
                    await self._pool.expire_connections()
            await asyncio.sleep(_RETRY_SECONDS)

    def _store_error(self, error: Exception) -> StoreError:
        return StoreError(f"the store {self.location} is closed") if self._closed else store_error(self.location, error)

    async def _close_pool(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._pool.close()
        except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            self._pool.terminate()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _commit(transaction: asyncpg.transaction.Transaction) -> None:
    try:
        await transaction.commit()
    except Exception as error:
        if may_retry(error) and not was_lost(error):
            raise
        raise CommitInDoubtError from error


async def _begin_session(connection: asyncpg.Connection[Record], statement_seconds: float) -> None:
    """By a statement: PgBouncer accepts few settings at connection time."""
    await connection.execute(_SESSION, SCHEMA, str(round(statement_seconds * 1000)), str(round(IDLE_SECONDS * 1000)))


async def take_time(connection: Connection) -> None:
    """Raise the server's time limit for the statements of this transaction; pass ``timeout=LONG_SECONDS`` to each."""
    await connection.execute("SELECT set_config('statement_timeout', $1, true)", str(round(LONG_SECONDS * 1000)))


async def _keep_session(connection: asyncpg.Connection[Record]) -> None:
    """No session is changed, so the driver's reset statement would be a wasted round trip."""


class PostgresDialect(NamedTuple):
    name: Literal["postgresql"] = "postgresql"
    serial: str = "BIGSERIAL PRIMARY KEY"


class PostgresDatabase:
    """`Database` on the connections of a store. Transactions are serializable, as SQLite's are: one that conflicts with
    another is retried.
    """

    dialect = PostgresDialect()

    def __init__(self, pool: PostgresConnectionPool) -> None:
        self._pool = pool

    def read(self, statement: str, *values: Value) -> list[Row]:
        return [tuple(row) for row in self._pool.read(numbered(statement), *values)]

    def transact(self, work: Callable[[Transaction], T]) -> T:
        return self._pool.write(partial(run_in, work=work), isolation="serializable")

    def snapshot(self, work: Callable[[Transaction], T]) -> T:
        return self._pool.write(partial(_run_long, work=work), isolation="repeatable_read")

    def transact_in_bulk(self, work: Callable[[Transaction], T]) -> T:
        return self._pool.write(partial(_run_long, work=work))


class PostgresTransaction:
    """A transaction that is open on a connection, for a thread that may block."""

    def __init__(
        self, connection: Connection, loop: asyncio.AbstractEventLoop, statement_seconds: float | None = None
    ) -> None:
        """``statement_seconds`` overrides the connection's time limit of a statement."""
        self._connection = connection
        self._loop = loop
        self._seconds = statement_seconds

    def run(self, statement: str, *values: Value) -> list[Row]:
        rows = self._connection.fetch(numbered(statement), *values, timeout=self._seconds)
        return [tuple(row) for row in asyncio.run_coroutine_threadsafe(rows, self._loop).result()]


async def run_in(connection: Connection, work: Callable[[Transaction], T], statement_seconds: float | None = None) -> T:
    """Run ``work`` in the open transaction, in a thread because it blocks on statements that need this loop."""
    transaction = PostgresTransaction(connection, asyncio.get_running_loop(), statement_seconds)
    return await asyncio.to_thread(work, transaction)


async def _run_long(connection: Connection, work: Callable[[Transaction], T]) -> T:
    await take_time(connection)
    # the other end of a copy may be slow
    milliseconds = str(round(LONG_SECONDS * 1000))
    await connection.execute("SELECT set_config('idle_in_transaction_session_timeout', $1, true)", milliseconds)
    return await run_in(connection, work, LONG_SECONDS)


@lru_cache(maxsize=1000)
def numbered(statement: str) -> str:
    """Replace each ``?`` outside quotes by ``$1``, ``$2`` …"""
    numbers = count(1)
    return _PLACEHOLDER.sub(lambda found: f"${next(numbers)}" if found[0] == "?" else found[0], statement)
