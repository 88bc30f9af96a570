"""The verdicts of runs that were not worked on here: the command line prints them and keeps none."""

from __future__ import annotations

from threading import Lock
from typing import Any

from gradeline.engine.conclude import conclude
from gradeline.engine.definition import Rules
from gradeline.errors import ConfigError
from gradeline.model import Run, Storage

_MOST_RESULTS = 100_000
"""A larger run is not walked through while somebody waits."""
_MOST_KEPT = 1000


class Verdicts:
    """Works out the verdict of a completed run, once, until the run itself is continued: ``resume --all`` does that."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[str, tuple[Run, dict[str, Any] | None]] = {}
        self._lock = Lock()

    def of(self, run: Run) -> dict[str, Any] | None:
        """What its gate says; None where it has no gate, or is too large."""
        with self._lock:
            known, verdict = self._known.get(run.id, (None, None))
            if known == run:
                return verdict
        verdict = self._concluded(run)
        with self._lock:
            while len(self._known) >= _MOST_KEPT:
                del self._known[next(iter(self._known))]
            self._known[run.id] = (run, verdict)
        return verdict

    def _concluded(self, run: Run) -> dict[str, Any] | None:
        if Rules.of(run).gate is None or (run.total or 0) > _MOST_RESULTS:
            return None
        try:
            verdict: dict[str, Any] = conclude(self._storage, run).to_data()["verdict"]
        except ConfigError:  # its baseline is gone
            return None
        return verdict
