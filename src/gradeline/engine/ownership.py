"""Whose run it is while it is worked on: who takes it, writes its rows, and says how it ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from typing import Any, Protocol, TypeAlias

from gradeline.errors import ConfigError, Problem, StoreError
from gradeline.model import Run, Storage
from gradeline.model.protocols import StoreWriter
from gradeline.store.database import SharedStorage
from gradeline.store.leases import HEARTBEAT_S, this_process, write_heartbeat

WriterFactory: TypeAlias = "Callable[[Storage], StoreWriter]"
"""Makes what writes the rows of one run into the store; it can be sent to other processes."""


class RunLock(Protocol):
    """Takes a run, and lets it go."""

    def begin(self) -> Run:
        """The run, now this keeper's; `ConfigError` where it is somebody else's."""

    def writer(self) -> StoreWriter:
        """Writes what comes of the run."""

    def writer_elsewhere(self) -> WriterFactory:
        """Writes it from another process, as long as the run is this keeper's."""

    def end(self, cause: BaseException | None = None, **changes: Any) -> Run:
        """Let go of the run, with these fields changed; ``cause`` is what broke it off."""


class ProcessLock:
    """Keeps a run for this process as long as that lives."""

    def __init__(self, storage: Storage, run: Run) -> None:
        self._storage = storage
        self._run = run
        self._heartbeat: _Heartbeat | None = None

    def begin(self) -> Run:
        me, wanted = this_process(), self._run
        run = self._storage.claim_run(wanted.id, me, wanted.owner) or self._storage.claim_run(wanted.id, me, me)
        if run is None:
            raise ConfigError(Problem(wanted.id, "was taken by another process at this very moment; it runs there"))
        if isinstance(self._storage, SharedStorage):
            self._heartbeat = _Heartbeat(self._storage, run.id)
        return run

    def writer(self) -> StoreWriter:
        return self._storage.writer()

    def writer_elsewhere(self) -> WriterFactory:
        return partial(_writer_for_owner, run=self._run.id, owner=this_process())

    def end(self, cause: BaseException | None = None, **changes: Any) -> Run:  # noqa: ARG002 - told in the changes
        if self._heartbeat is not None:
            self._heartbeat.stop()
        return self._storage.update_run(self._run.id, **changes)


class _Heartbeat:
    """Writes that this process lives, for readers on other hosts. In a thread: user code may block the event loop."""

    def __init__(self, storage: SharedStorage, run: str) -> None:
        self._database = storage.database
        self._run = run
        self._stopped = Event()
        self._thread = Thread(target=self._beat, name="gradeline-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            with suppress(StoreError):  # the run's own rows report what is wrong with the store
                self._database.transact(lambda transaction: write_heartbeat(transaction.run, self._run))


def _writer_for_owner(storage: Storage, *, run: str, owner: str) -> StoreWriter:
    found = storage.get_run(run)
    if found is None or found.owner != owner:
        raise ConfigError(Problem(run, "is worked on by another process now"))
    return storage.writer()
