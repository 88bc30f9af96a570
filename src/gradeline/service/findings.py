"""What is found by looking at every row of a run: once for each state of the run, kept in memory and, of large runs,
in a table."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread
from time import monotonic
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

from gradeline.errors import ConfigError, DataError, StoreError
from gradeline.model import Counts, Run, digest_of, from_json, to_json
from gradeline.service.run_rows import ENDED
from gradeline.store.database import Database

T = TypeVar("T", bound=Struct)

_KEPT_IN_MEMORY = 256
_WORTH_STORING = 5_000
"""Results of a run whose finding is worth a row; of a smaller one it is found again after a restart."""
_PATIENCE = 20.0
"""While a run goes on, a finding is used for this many times as long as it took."""
_LOCKS = 16


class _Known(NamedTuple, Generic[T]):
    version: str
    finding: T
    until: float
    """When it is too old for a run that still goes on."""


class Findings(Generic[T]):
    """Findings of one kind. They are stored as JSON in ``column`` of ``table``, beside ``run`` (its key) and
    ``version``."""

    def __init__(self, database: Database, kind: type[T], table: str, column: str) -> None:
        self._database = database
        self._kind = kind
        self._table = table
        self._column = column
        self._known: OrderedDict[str, _Known[T]] = OrderedDict()
        self._guard = Lock()
        self._locks = tuple(Lock() for _ in range(_LOCKS))
        self._in_background: set[str] = set()

    def of(self, run: Run, counts: Counts, find: Callable[[], T]) -> T:
        """What is known of the run as it stands, or what ``find`` finds."""
        known = self.usable(run, counts)
        if known is not None:
            return known
        # one caller looks, the others wait for what it finds
        with self._locks[hash(run.id) % _LOCKS]:
            known = self.usable(run, counts)
            return self._found(run, counts, find) if known is None else known

    def usable(self, run: Run, counts: Counts) -> T | None:
        """What is known of the run as it stands; of one that goes on, also what is not too old."""
        with self._guard:
            known = self._known.get(run.id)
        if known is None:
            return None
        still_going = run.status not in ENDED and monotonic() < known.until
        return known.finding if still_going or known.version == _version(run, counts) else None

    def known(self, run: Run, counts: Counts) -> T | None:
        """What is known of an ended run as it is, in memory or in the table. Reads no rows of the run."""
        known = self.usable(run, counts)
        if known is not None or sum(counts.responses.values()) < _WORTH_STORING:
            return known
        version = _version(run, counts)
        stored = self._stored(run.id, version)
        if stored is not None:
            self._remember(run.id, _Known(version, stored, monotonic()))
        return stored

    def find_in_background(self, run: Run, counts: Counts, find: Callable[[], T]) -> None:
        """Start a thread that looks at the rows, unless one is at it; its finding is usable when it has ended."""
        with self._guard:
            if run.id in self._in_background:
                return
            self._in_background.add(run.id)
        Thread(target=self._find, args=(run, counts, find), name=self._table, daemon=True).start()

    def _find(self, run: Run, counts: Counts, find: Callable[[], T]) -> None:
        try:
            # the run may be deleted meanwhile, or the store closed
            with suppress(StoreError, ConfigError):
                self.of(run, counts, find)
        finally:
            with self._guard:
                self._in_background.discard(run.id)

    def latest(self, run: Run) -> T | None:
        """What is known of the run, however old."""
        with self._guard:
            known = self._known.get(run.id)
        return None if known is None else known.finding

    def _found(self, run: Run, counts: Counts, find: Callable[[], T]) -> T:
        version = _version(run, counts)
        is_large = sum(counts.responses.values()) >= _WORTH_STORING
        finding = self._stored(run.id, version) if is_large else None
        began = monotonic()
        if finding is None:
            finding = find()
            if is_large and run.status in ENDED:
                self._store(run.id, version, finding)
        ended = monotonic()
        self._remember(run.id, _Known(version, finding, ended + _PATIENCE * (ended - began)))
        return finding

    def _remember(self, run: str, known: _Known[T]) -> None:
        with self._guard:
            self._known[run] = known
            self._known.move_to_end(run)
            while len(self._known) > _KEPT_IN_MEMORY:
                self._known.popitem(last=False)

    def _stored(self, run: str, version: str) -> T | None:
        rows = self._database.read(
            f"SELECT {self._column} FROM {self._table} WHERE run = ? AND version = ?",  # noqa: S608 - names of the code
            run,
            version,
        )
        # what another version of the program stored in another shape is found anew
        with suppress(DataError):
            return from_json(self._kind, rows[0][0]) if rows else None
        return None

    def _store(self, run: str, version: str, finding: T) -> None:
        statement = (
            f"INSERT INTO {self._table} (run, version, {self._column}) VALUES (?, ?, ?) ON CONFLICT (run)"  # noqa: S608 - as above
            f" DO UPDATE SET version = excluded.version, {self._column} = excluded.{self._column}"
        )
        # only a saving of time: whoever reads a run must not fail because it cannot be written
        with suppress(StoreError):
            self._database.transact(lambda transaction: transaction.run(statement, run, version, to_json(finding)))


def _version(run: Run, counts: Counts) -> str:
    """Changes with whatever a look at all rows could find changed."""
    return digest_of(f"{run.status} {run.completed_at} {run.total} {to_json(counts)}")
