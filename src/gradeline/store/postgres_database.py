"""The `Database` of a PostgreSQL store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import count
from typing import TYPE_CHECKING, Literal, NamedTuple

from gradeline.store.database import Row, T, Transaction, Value
from gradeline.store.postgres_link import LONG_SECONDS, take_time

if TYPE_CHECKING:
    from gradeline.store.postgres_link import Connection, Link

_MARK = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|\?""")


class PostgresDialect(NamedTuple):
    name: Literal["postgresql"] = "postgresql"
    serial: str = "BIGSERIAL PRIMARY KEY"


class PostgresDatabase:
    """Uses the store's own connections. Transactions are serializable, as SQLite's are: one that reads
    before it writes is done again where another came between.
    """

    dialect = PostgresDialect()

    def __init__(self, link: Link) -> None:
        self._link = link

    def read(self, statement: str, *values: Value) -> list[Row]:
        return [tuple(row) for row in self._link.read(numbered(statement), *values)]

    def transact(self, work: Callable[[Transaction], T]) -> T:
        return self._link.write(partial(done_in, work=work), isolation="serializable")

    def snapshot(self, work: Callable[[Transaction], T]) -> T:
        return self._link.write(partial(_done_at_length, work=work), isolation="repeatable_read")

    def transact_in_bulk(self, work: Callable[[Transaction], T]) -> T:
        return self._link.write(partial(_done_at_length, work=work))


class PostgresTransaction:
    """A transaction that is open on a connection, for a thread that may wait."""

    def __init__(
        self, connection: Connection, loop: asyncio.AbstractEventLoop, statement_seconds: float | None = None
    ) -> None:
        """``statement_seconds``: how long a statement may take; None: as long as the connection allows."""
        self._connection = connection
        self._loop = loop
        self._seconds = statement_seconds

    def run(self, statement: str, *values: Value) -> list[Row]:
        rows = self._connection.fetch(numbered(statement), *values, timeout=self._seconds)
        return [tuple(row) for row in asyncio.run_coroutine_threadsafe(rows, self._loop).result()]


async def done_in(
    connection: Connection, work: Callable[[Transaction], T], statement_seconds: float | None = None
) -> T:
    """Do the work in a connection's transaction: in a thread, since it waits for statements that need this loop."""
    transaction = PostgresTransaction(connection, asyncio.get_running_loop(), statement_seconds)
    return await asyncio.to_thread(work, transaction)


async def _done_at_length(connection: Connection, work: Callable[[Transaction], T]) -> T:
    await take_time(connection)
    # the other end of a copy may be slow
    milliseconds = str(round(LONG_SECONDS * 1000))
    await connection.execute("SELECT set_config('idle_in_transaction_session_timeout', $1, true)", milliseconds)
    return await done_in(connection, work, LONG_SECONDS)


@lru_cache(maxsize=1000)
def numbered(statement: str) -> str:
    """The statement with ``$1``, ``$2`` … in the place of each ``?`` outside quotes."""
    numbers = count(1)
    return _MARK.sub(lambda found: f"${next(numbers)}" if found[0] == "?" else found[0], statement)
