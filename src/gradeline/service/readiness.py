"""Whether the store can be written: told by writing to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from gradeline.errors import StoreError
from gradeline.service.moments import moment
from gradeline.store.database import Database, Dialect, Transaction, migrate

_LASTS_S = 1.0


def _tables(transaction: Transaction, _: Dialect) -> None:
    transaction.run("CREATE TABLE readiness (name TEXT PRIMARY KEY, at TEXT NOT NULL)")


STEPS = (_tables,)


class Readiness:
    """Writes one row. At most once a second: anybody may ask."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = Lock()
        self._checked = float("-inf")
        self._failure: StoreError | None = None
        migrate(database, "readiness", STEPS)

    def check(self) -> None:
        """`StoreError` while the store cannot be written."""
        with self._lock:
            if self._clock() - self._checked >= _LASTS_S:
                self._failure = self._write()
                self._checked = self._clock()
        if self._failure is not None:
            raise self._failure

    def _write(self) -> StoreError | None:
        statement = "INSERT INTO readiness (name, at) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET at = excluded.at"
        now = moment(time.time())
        try:
            self._database.transact(lambda transaction: transaction.run(statement, "service", now))
        except StoreError as error:
            return error
        return None
