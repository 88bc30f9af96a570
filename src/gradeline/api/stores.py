"""Which store is meant, and how long it stays open."""

from __future__ import annotations

from pathlib import Path
from weakref import finalize

from gradeline.errors import ConfigError, Problem
from gradeline.model import Storage, quote
from gradeline.store import InMemoryStorage, default_store, open_storage


class OpenStore:
    """A store that stays open as long as somebody holds this; one that was given open is left so."""

    def __init__(self, wanted: str | Path | Storage | None = None) -> None:
        self._close: finalize[[], OpenStore] | None = None
        if wanted is None or isinstance(wanted, str | Path):
            self.storage = open_storage(default_store() if wanted is None else wanted)
            self._close = finalize(self, self.storage.close)
        elif isinstance(wanted, Storage):
            self.storage = wanted
        else:
            problem = f"expected a path, a URL such as sqlite:///runs.db or memory://, or a store, got {quote(wanted)}"
            raise ConfigError(Problem("store", problem))

    @property
    def lasts(self) -> bool:
        """Whether what is in it outlives the process."""
        return not isinstance(self.storage, InMemoryStorage)

    def close(self) -> None:
        """Let go of the store now."""
        if self._close is not None:
            self._close()
