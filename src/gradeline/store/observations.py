"""The ledger's rows: how SQLite keeps observations, and how every store sums them up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from gradeline.model.observation import Observation, ObservationFilter, ObservationSums
from gradeline.store.rows import SCORE_UNIT, score_units

if TYPE_CHECKING:
    import sqlite3

_STORED = tuple(name for name in Observation.__struct_fields__ if name != "id")
_INSERT = (
    f"INSERT INTO observations ({', '.join(_STORED)}, units, squares)"  # noqa: S608 - made of constants
    f" VALUES ({', '.join('?' * (len(_STORED) + 2))}) ON CONFLICT (idempotency_key) DO NOTHING"
)
_COLUMNS = ", ".join(("id", *_STORED))
_KEYS_AT_ONCE = 500


class Cell(NamedTuple):
    """A part of the sums of one adapter in one family; scores in `SCORE_UNIT`."""

    task_family: str
    candidate_adapter: str
    total: int
    scored: int
    units: int
    squares: int
    latest: str


def put_observations(connection: sqlite3.Connection, observations: Sequence[Observation]) -> list[int]:
    """Keep each whose key is new, and give the ids under which the keys are kept. Within a transaction that writes."""
    connection.executemany(_INSERT, [(*_values(one), *score_units(one.score)) for one in observations])
    keys = iter(dict.fromkeys(one.idempotency_key for one in observations))
    ids: dict[str, int] = {}
    while some := list(islice(keys, _KEYS_AT_ONCE)):
        asked = f"SELECT idempotency_key, id FROM observations WHERE idempotency_key IN ({', '.join('?' * len(some))})"  # noqa: S608
        ids.update(connection.execute(asked, some))
    return [ids[one.idempotency_key] for one in observations]


def page_of_observations(where: ObservationFilter, after: int, limit: int) -> tuple[str, list[object]]:
    """The statement and its values that read a page, by id. Rows become observations by `observation_of_row`."""
    chosen = where.chosen()
    condition = " AND ".join(("id > ?", *(f"{name} = ?" for name in chosen)))
    statement = f"SELECT {_COLUMNS} FROM observations WHERE {condition} ORDER BY id LIMIT ?"  # noqa: S608 - columns alone
    return statement, [after, *chosen.values(), limit]


def observation_of_row(row: Sequence[Any]) -> Observation:
    return Observation(id=row[0], **dict(zip(_STORED, row[1:], strict=True)))


def sums_statement(where: ObservationFilter) -> tuple[str, list[object]]:
    """The statement and its values that read the `Cell`s of the roll-up."""
    chosen = where.chosen()
    condition = " AND ".join(f"{name} = ?" for name in chosen) or "TRUE"
    return f"SELECT {', '.join(Cell._fields)} FROM observation_sums WHERE {condition}", list(chosen.values())  # noqa: S608


def sums_of(cells: Iterable[Cell]) -> list[ObservationSums]:
    """Cells added up by family and adapter, in their order. Whole numbers: no order of adding changes the sums."""
    found: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        known = found.get(cell[:2])
        found[cell[:2]] = cell if known is None else added(known, cell)
    return [
        ObservationSums(*cell[:4], cell.units / SCORE_UNIT, cell.squares / SCORE_UNIT, cell.latest)
        for _, cell in sorted(found.items())
    ]


def added(first: Cell, second: Cell) -> Cell:
    """Two cells of the same family and adapter as one."""
    return first._replace(
        total=first.total + second.total,
        scored=first.scored + second.scored,
        units=first.units + second.units,
        squares=first.squares + second.squares,
        latest=max(first.latest, second.latest),
    )


def cell_of(observation: Observation) -> Cell:
    """What one observation adds."""
    return Cell(
        observation.task_family,
        observation.candidate_adapter,
        1,
        int(observation.score is not None),
        *score_units(observation.score),
        observation.observed_at,
    )


def _values(observation: Observation) -> tuple[object, ...]:
    return tuple(getattr(observation, name) for name in _STORED)
