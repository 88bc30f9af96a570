"""The ledger's rows in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradeline.model.observation import Observation, ObservationFilter
from gradeline.store.observations import sums_of_cases
from gradeline.store.rows import score_units

if TYPE_CHECKING:
    from gradeline.store.postgres_link import Connection

_LOCK = 0x67726C6F
"""Of all advisory locks of the database, the one of who adds to the ledger."""

_NUMBERS = ("score", "cost", "latency_ms")
_FIELDS = tuple(name for name in Observation.__struct_fields__ if name != "id")
_ROW = ", ".join((*_FIELDS, "units"))
_ARRAYS = ", ".join(
    [f"${place}::{'float8' if name in _NUMBERS else 'text'}[]" for place, name in enumerate(_FIELDS, 1)]
    + [f"${len(_FIELDS) + 1}::bigint[]"]
)
_INSERT = (
    f"INSERT INTO observations ({_ROW}) SELECT {_ROW} FROM unnest({_ARRAYS}) WITH ORDINALITY AS new ({_ROW}, turn)"  # noqa: S608 - made of constants
    " ORDER BY turn ON CONFLICT (idempotency_key) DO NOTHING"
)
_IDS = "SELECT idempotency_key, id FROM observations WHERE idempotency_key = ANY($1::text[])"


async def put_observations(connection: Connection, observations: Sequence[Observation]) -> list[int]:
    """Keep each whose key is new, and give the ids under which the keys are kept. Within a transaction.

    One writer at a time: ids then become visible in their order, and who reads on behind an id misses nothing.
    """
    if not observations:
        return []
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
    rows = [(*(getattr(one, name) for name in _FIELDS), score_units(one.score)[0]) for one in observations]
    await connection.execute(_INSERT, *map(list, zip(*rows, strict=True)))
    keys = [one.idempotency_key for one in observations]
    ids = dict[str, int]((row[0], row[1]) for row in await connection.fetch(_IDS, keys))
    return [ids[key] for key in keys]


def page_of_observations(where: ObservationFilter, after: int, limit: int) -> tuple[str, list[object]]:
    """The statement and its values that read a page, by id. Rows become observations by `observation_of_row`."""
    chosen = where.chosen()
    condition = "".join(f" AND {name} = ${place}" for place, name in enumerate(chosen, 3))
    columns = ", ".join(("id", *_FIELDS))
    statement = f"SELECT {columns} FROM observations WHERE id > $1{condition} ORDER BY id LIMIT $2"  # noqa: S608 - columns alone
    return statement, [after, limit, *chosen.values()]


def observation_of_row(row: Sequence[Any]) -> Observation:
    return Observation(id=row[0], **dict(zip(_FIELDS, row[1:], strict=True)))


def sums_statement(where: ObservationFilter) -> tuple[str, list[object]]:
    """The statement and its values that add up the cases of each row. Rows become sums by `sums_of_row`."""
    chosen = where.chosen()
    condition = " AND ".join(f"{name} = ${place}" for place, name in enumerate(chosen, 1)) or "TRUE"
    return sums_of_cases(condition), list(chosen.values())
