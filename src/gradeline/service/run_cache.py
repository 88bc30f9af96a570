"""What is computed by reading all rows of a run: once for each state of the run, cached in memory and, for large runs,
in a table."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from gradeline.engine.aggregate import conclude
from gradeline.engine.definition import Rules
from gradeline.engine.judge_trust import trust_version
from gradeline.errors import ConfigError, DataError, StoreError
from gradeline.model import Counts, Run, Storage, digest_of, from_json, to_json
from gradeline.service.events import ENDED
from gradeline.store.database import Database, Dialect, Transaction, migrate

T = TypeVar("T", bound=Struct)

_MAX_ENTRIES = 256
_MIN_RESULTS_TO_STORE = 5_000
"""Results of a run for which the value is stored; of a smaller run it is computed again after a restart."""
_STALE_FACTOR = 20.0
"""While a run is in progress, a value is used for this multiple of the time that it took to compute."""
_LOCKS = 16


class _Entry(NamedTuple, Generic[T]):
    version: str
    value: T
    stale_at: float
    """When the value is too old for a run in progress."""


def _create_table(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        "CREATE TABLE run_cache (run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, name TEXT NOT NULL,"
        " version TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (run, name))"
    )


RUN_CACHE_STEPS = (_create_table,)


class RunCache(Generic[T]):
    """Caches one kind of value by run."""

    def __init__(
        self, database: Database, kind: type[T], name: str, state: Callable[[Run], object] = lambda _: ""
    ) -> None:
        """``state`` changes when something that is no part of the run could change a value."""
        self._database = database
        self._state = state
        self._kind = kind
        self._name = name
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()
        self._guard = Lock()
        self._locks = tuple(Lock() for _ in range(_LOCKS))
        self._in_background: set[str] = set()
        migrate(database, "run_cache", RUN_CACHE_STEPS)

    def get(self, run: Run, counts: Counts, compute: Callable[[], T]) -> T:
        """The cached value for the run as it is now, or the result of ``compute``."""
        value = self.fresh(run, counts)
        if value is not None:
            return value
        # one caller computes, the others wait for the result
        with self._locks[hash(run.id) % _LOCKS]:
            value = self.fresh(run, counts)
            return self._load_or_compute(run, counts, compute) if value is None else value

    def fresh(self, run: Run, counts: Counts) -> T | None:
        """The value in memory for the run as it is now; for a run in progress, also one that is not yet stale."""
        with self._guard:
            entry = self._entries.get(run.id)
        if entry is None:
            return None
        not_stale = run.status not in ENDED and monotonic() < entry.stale_at
        return entry.value if not_stale or entry.version == self._version(run, counts) else None

    def lookup(self, run: Run, counts: Counts) -> T | None:
        """The value for an ended run, from memory or the table. Reads no rows of the run."""
        value = self.fresh(run, counts)
        if value is not None or sum(counts.responses.values()) < _MIN_RESULTS_TO_STORE:
            return value
        version = self._version(run, counts)
        stored = self._load(run.id, version)
        if stored is not None:
            self._remember(run.id, _Entry(version, stored, monotonic()))
        return stored

    def compute_in_background(self, run: Run, counts: Counts, compute: Callable[[], T]) -> None:
        """Compute the value in a thread, unless one is already doing it."""
        with self._guard:
            if run.id in self._in_background:
                return
            self._in_background.add(run.id)
        Thread(target=self._background, args=(run, counts, compute), name=self._name, daemon=True).start()

    def _background(self, run: Run, counts: Counts, compute: Callable[[], T]) -> None:
        try:
            # the run may be deleted meanwhile, or the store closed
            with suppress(StoreError, ConfigError):
                self.get(run, counts, compute)
        finally:
            with self._guard:
                self._in_background.discard(run.id)

    def stale(self, run: Run) -> T | None:
        """The value in memory, however old."""
        with self._guard:
            entry = self._entries.get(run.id)
        return None if entry is None else entry.value

    def _load_or_compute(self, run: Run, counts: Counts, compute: Callable[[], T]) -> T:
        version = self._version(run, counts)
        is_large = sum(counts.responses.values()) >= _MIN_RESULTS_TO_STORE
        value = self._load(run.id, version) if is_large else None
        started = monotonic()
        if value is None:
            value = compute()
            if is_large and run.status in ENDED:
                self._store(run.id, version, value)
        ended = monotonic()
        self._remember(run.id, _Entry(version, value, ended + _STALE_FACTOR * (ended - started)))
        return value

    def _remember(self, run: str, entry: _Entry[T]) -> None:
        with self._guard:
            self._entries[run] = entry
            self._entries.move_to_end(run)
            while len(self._entries) > _MAX_ENTRIES:
                self._entries.popitem(last=False)

    def _load(self, run: str, version: str) -> T | None:
        rows = self._database.read(
            "SELECT value FROM run_cache WHERE run = ? AND name = ? AND version = ?", run, self._name, version
        )
        # a value that another version of the program stored in another shape is computed again
        with suppress(DataError):
            return from_json(self._kind, rows[0][0]) if rows else None
        return None

    def _store(self, run: str, version: str, value: T) -> None:
        statement = (
            "INSERT INTO run_cache (run, name, version, value) VALUES (?, ?, ?, ?) ON CONFLICT (run, name)"
            " DO UPDATE SET version = excluded.version, value = excluded.value"
        )
        # a read must not fail because the cache cannot be written
        with suppress(StoreError):
            values = (run, self._name, version, to_json(value))
            self._database.transact(lambda transaction: transaction.run(statement, *values))

    def _version(self, run: Run, counts: Counts) -> str:
        """Changes when anything changes that could change a computed value."""
        return digest_of(f"{run.status} {run.completed_at} {run.total} {to_json(counts)} {self._state(run)}")


_MAX_VERDICT_RESULTS = 100_000
"""The verdict of a larger run is not computed during a request."""
_MAX_VERDICTS = 1000


class VerdictCache:
    """The verdicts of completed runs of the command line, which stores none; each is computed once.

    It is computed again when the run has changed (``gradeline resume --all`` continues a completed run), or what is
    known of its judges: labels, calibrations, probes, anchors.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._verdicts: dict[str, tuple[Run, tuple[int, int, str], dict[str, Any] | None]] = {}
        self._lock = Lock()

    def get(self, run: Run) -> dict[str, Any] | None:
        """The verdict of the run's gate; None if it has no gate or too many results."""
        version = trust_version(self._storage, run)
        with self._lock:
            known, before, verdict = self._verdicts.get(run.id, (None, None, None))
            if known == run and before == version:
                return verdict
        verdict = self._compute(run)
        with self._lock:
            while len(self._verdicts) >= _MAX_VERDICTS:
                del self._verdicts[next(iter(self._verdicts))]
            self._verdicts[run.id] = (run, version, verdict)
        return verdict

    def _compute(self, run: Run) -> dict[str, Any] | None:
        if Rules.of(run).gate is None or (run.total or 0) > _MAX_VERDICT_RESULTS:
            return None
        try:
            verdict: dict[str, Any] = conclude(self._storage, run).to_data()["verdict"]
        except ConfigError:  # its baseline was deleted
            return None
        return verdict
