"""What happened in a run, as a durable log: an event's id is its position there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from gradeline.store.database import Database, Dialect, Transaction, Value, migrate

Kind = Literal["snapshot", "progress", "result", "status", "done"]

_AT_ONCE = 100


class Event(NamedTuple):
    """One event of a run."""

    n: int
    kind: str
    data: str
    """JSON."""


class Happened(NamedTuple):
    """What is to be written into the log; what has the same ``once`` is there already."""

    kind: Kind
    data: Any
    once: str | None = None


def _events(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        "CREATE TABLE run_events (run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, n BIGINT NOT NULL,"
        " kind TEXT NOT NULL, once TEXT, data TEXT NOT NULL, PRIMARY KEY (run, n), UNIQUE (run, once))"
    )


STEPS = (_events,)


class EventLog:
    """The logs of all runs that the service has worked on. A run's row in ``jobs`` counts its events.

    Whoever writes holds that row until the transaction ends, so that events become visible in their order.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        migrate(database, "events", STEPS)

    def append(self, transaction: Transaction, run: str, happened: Sequence[Happened]) -> None:
        """Add to a run's log, where it has one."""
        rows = transaction.run("UPDATE jobs SET last_event = last_event WHERE run = ? RETURNING last_event", run)
        if not rows:
            return
        known = _known(transaction, run, [one.once for one in happened if one.once is not None])
        new = [one for one in happened if one.once is None or one.once not in known]
        last: int = rows[0][0]
        values: list[tuple[Value, ...]] = [
            (run, n, one.kind, one.once, msgspec.json.encode(one.data).decode()) for n, one in enumerate(new, last + 1)
        ]
        for chunk in _chunks(values):
            places = ", ".join(["(?, ?, ?, ?, ?)"] * len(chunk))
            transaction.run(
                f"INSERT INTO run_events (run, n, kind, once, data) VALUES {places}",  # noqa: S608 - made of constants
                *(value for row in chunk for value in row),
            )
        transaction.run("UPDATE jobs SET last_event = ? WHERE run = ?", last + len(new), run)

    def after(self, run: str, n: int, limit: int) -> list[Event]:
        """The next events behind a position."""
        rows = self._database.read(
            "SELECT n, kind, data FROM run_events WHERE run = ? AND n > ? ORDER BY n LIMIT ?", run, n, limit
        )
        return [Event(*row) for row in rows]

    def last(self, runs: Iterable[str]) -> dict[str, int]:
        """The position of the last event of each run that has a log."""
        wanted = list(runs)
        found: dict[str, int] = {}
        for chunk in _chunks(wanted):
            places = ", ".join("?" * len(chunk))
            rows = self._database.read(
                f"SELECT run, last_event FROM jobs WHERE run IN ({places})",  # noqa: S608 - made of constants
                *chunk,
            )
            found.update(dict(rows))
        return found


def _known(transaction: Transaction, run: str, onces: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for chunk in _chunks(onces):
        places = ", ".join("?" * len(chunk))
        rows = transaction.run(
            f"SELECT once FROM run_events WHERE run = ? AND once IN ({places})",  # noqa: S608 - made of constants
            run,
            *chunk,
        )
        found.update(once for (once,) in rows)
    return found


def _chunks(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))
