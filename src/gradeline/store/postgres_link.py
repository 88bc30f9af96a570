"""Connections to PostgreSQL, served by an event loop of their own, for callers that wait in any thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import asyncpg

from gradeline.errors import ConfigError, Problem, StoreError
from gradeline.store.postgres_errors import (
    DATABASE_ERRORS,
    KEEPS_CONNECTIONS,
    InDoubt,
    failure,
    may_try_again,
    was_lost,
)
from gradeline.store.postgres_url import PostgresUrl

if TYPE_CHECKING:
    from asyncpg import Record
    from asyncpg.pool import Pool, PoolConnectionProxy

    Connection: TypeAlias = PoolConnectionProxy[Record]

T = TypeVar("T")
Isolation: TypeAlias = Literal["read_committed", "repeatable_read", "serializable"]

CONNECT_SECONDS = 10.0
LONG_SECONDS = 3600.0
"""For a migration, or what stands beside a large run that is deleted."""
SCHEMA = "gradeline"
_CLOSE_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_GRACE_SECONDS = 5.0
"""The server's own word about a statement that takes too long is waited for."""
IDLE_SECONDS = 10.0
"""How long a transaction may be idle, unless it copies a store. Less than the lease of a run: a process that is frozen
while it renews its claim must not keep the row of that claim locked when another process takes over."""
_SESSION = """
    SELECT set_config('search_path', $1, false), set_config('jit', 'off', false), set_config('synchronous_commit',
        CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END,
        false), set_config('statement_timeout', $2, false),
        set_config('idle_in_transaction_session_timeout', $3, false),
        set_config('max_parallel_workers_per_gather', '0', false)"""
"""What is acknowledged must be on disk, whatever the server does by default. No statement here is long enough for its
compilation to pay, or for other processes that help with it. The timeouts are the server's: of a client that is gone,
no statement and no lock outlives them."""


class Link:
    """A pool of connections, for synchronous callers in any thread, also from inside a running event loop.

    What was lost before its commit was sent, or clashed with another transaction, is tried again for
    ``patience`` seconds: a server that is restarted is waited for. Then it is a `StoreError` that is
    retryable; one lost during the commit is not, since nobody knows what became of it.
    """

    def __init__(self, url: PostgresUrl, *, patience: float) -> None:
        self.place = url.place
        self._patience = patience
        self._process = os.getpid()
        self._lock = Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="gradeline-postgres", daemon=True)
        self._thread.start()
        try:
            self._pool = self._wait(self._opened(url))
        except BaseException:
            self._closed = True
            self._end_loop()
            raise

    def read(self, statement: str, *values: object) -> list[Record]:
        """The rows of a statement that changes nothing."""

        async def fetch() -> list[Record]:
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                return await connection.fetch(statement, *values)

        return self._wait(self._patiently(fetch))

    def write(self, act: Callable[[Connection], Awaitable[T]], *, isolation: Isolation = "read_committed") -> T:
        """Do it in one transaction, return when that is durable. ``act`` may be called several times."""

        async def transact() -> T:
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                transaction = connection.transaction(isolation=isolation)
                await transaction.start()
                try:
                    done = await act(connection)
                except BaseException:
                    with suppress(Exception):  # the first error tells more
                        await transaction.rollback()
                    raise
                await _commit(transaction)
                return done

        return self._wait(self._patiently(transact))

    def maintain(self, statement: str) -> None:
        """Run a statement that no transaction may contain, however long it takes."""

        async def run() -> None:
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                before = await connection.fetchval("SELECT current_setting('statement_timeout')")
                await connection.execute("SELECT set_config('statement_timeout', '0', false)")
                try:
                    await connection.execute(statement, timeout=LONG_SECONDS)
                finally:
                    await connection.execute("SELECT set_config('statement_timeout', $1, false)", before)

        self._wait(self._patiently(run))

    def close(self) -> None:
        """Let statements end that are under way, then let go of all connections."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._process == os.getpid():  # threads do not survive a fork
            asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result()
            self._end_loop()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            refusal = self._refusal()
            if refusal is not None:
                work.close()
                raise StoreError(refusal)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise StoreError(f"the store {self.place} is closed") from None
        except BaseException:
            future.cancel()  # an interrupted caller leaves nothing behind
            raise

    def _refusal(self) -> str | None:
        if self._closed:
            return f"the store {self.place} is closed"
        if self._process != os.getpid():
            return f"the store {self.place} was opened by the process that this one was forked from; open it anew"
        return None

    async def _opened(self, url: PostgresUrl) -> Pool[Record]:
        try:
            pool = await asyncpg.create_pool(
                url.dsn,
                min_size=0,  # connections that the pool makes for itself tell nobody but its log why they fail
                max_size=url.pool_size,
                timeout=CONNECT_SECONDS,
                command_timeout=url.statement_seconds + _GRACE_SECONDS,
                server_settings={"application_name": "gradeline"},
                init=partial(_begin_session, statement_seconds=url.statement_seconds),
                reset=_as_it_is,
            )
            async with pool.acquire(timeout=CONNECT_SECONDS):
                return pool
        except (asyncpg.PostgresError, asyncpg.InternalClientError, OSError) as error:
            raise failure(self.place, error) from error
        except (asyncpg.InterfaceError, ValueError):  # whose words may quote the URL
            raise ConfigError(Problem("store", f"an option in the URL of {self.place} is wrong")) from None

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        deadline = self._loop.time() + self._patience
        while True:
            try:
                return await attempt()
            except DATABASE_ERRORS as error:
                if self._closed or not may_try_again(error) or self._loop.time() >= deadline:
                    raise self._failure(error) from error
                if was_lost(error) and not isinstance(error, KEEPS_CONNECTIONS):
                    await self._pool.expire_connections()
            await asyncio.sleep(_PAUSE_SECONDS)

    def _failure(self, error: Exception) -> StoreError:
        return StoreError(f"the store {self.place} is closed") if self._closed else failure(self.place, error)

    async def _ended(self) -> None:
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

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _commit(transaction: asyncpg.transaction.Transaction) -> None:
    try:
        await transaction.commit()
    except Exception as error:
        if may_try_again(error) and not was_lost(error):
            raise
        raise InDoubt from error


async def _begin_session(connection: asyncpg.Connection[Record], statement_seconds: float) -> None:
    """By a statement, since PgBouncer takes few settings with the connection itself."""
    await connection.execute(_SESSION, SCHEMA, str(round(statement_seconds * 1000)), str(round(IDLE_SECONDS * 1000)))


async def take_time(connection: Connection) -> None:
    """Lets the statements of this transaction take long on the server; say ``timeout=LONG_SECONDS`` with each."""
    await connection.execute("SELECT set_config('statement_timeout', $1, true)", str(round(LONG_SECONDS * 1000)))


async def _as_it_is(connection: asyncpg.Connection[Record]) -> None:
    """Nothing here changes a session, so that the driver's statement to reset one would be a way for nothing."""
