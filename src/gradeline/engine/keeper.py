"""Whose run it is while it is worked on: who takes it, writes its rows, and says how it ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias

from gradeline.engine.owner import this_process
from gradeline.errors import ConfigError, Problem
from gradeline.model import Run, Storage
from gradeline.model.protocols import StoreWriter

OpenWriter: TypeAlias = "Callable[[Storage], StoreWriter]"
"""Makes what writes the rows of one run into the store; it can be sent to other processes."""


class Keeper(Protocol):
    """Takes a run, and lets it go."""

    def begin(self) -> Run:
        """The run, now this keeper's; `ConfigError` where it is somebody else's."""

    def writer(self) -> StoreWriter:
        """Writes what comes of the run."""

    def writer_elsewhere(self) -> OpenWriter:
        """Writes it from another process, as long as the run is this keeper's."""

    def end(self, cause: BaseException | None = None, **changes: Any) -> Run:
        """Let go of the run, with these fields changed; ``cause`` is what broke it off."""


class ProcessKeeper:
    """Keeps a run for this process as long as that lives."""

    def __init__(self, storage: Storage, run: Run) -> None:
        self._storage = storage
        self._run = run

    def begin(self) -> Run:
        me, wanted = this_process(), self._run
        run = self._storage.claim_run(wanted.id, me, wanted.owner) or self._storage.claim_run(wanted.id, me, me)
        if run is None:
            raise ConfigError(Problem(wanted.id, "was taken by another process at this very moment; it runs there"))
        return run

    def writer(self) -> StoreWriter:
        return self._storage.writer()

    def writer_elsewhere(self) -> OpenWriter:
        return partial(_writer_for_owner, run=self._run.id, owner=this_process())

    def end(self, cause: BaseException | None = None, **changes: Any) -> Run:  # noqa: ARG002 - told in the changes
        return self._storage.update_run(self._run.id, **changes)


def _writer_for_owner(storage: Storage, *, run: str, owner: str) -> StoreWriter:
    found = storage.get_run(run)
    if found is None or found.owner != owner:
        raise ConfigError(Problem(run, "is worked on by another process now"))
    return storage.writer()
