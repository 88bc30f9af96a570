"""Rows and statements for the observations of the quality ledger."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from gradeline.model.observation import Observation, ObservationFilter, ObservationSums
from gradeline.store.rows import SCORE_UNIT, score_units

if TYPE_CHECKING:
    import sqlite3

    from gradeline.store.postgres_connections import Connection

_FIELDS = tuple(name for name in Observation.__struct_fields__ if name != "id")
_COLUMNS = ", ".join((*_FIELDS, "units"))
_GROUP = ("task_family", "candidate_adapter", "baseline_adapter", "grader_id")
"""Columns by which observations are grouped."""
_CASE = (*_GROUP, "case_key", "observation")
"""Columns of a case, which counts once. For observations without a case ``observation`` is the key."""
_KEYS_AT_ONCE = 500

_SQLITE_INSERT = (
    f"INSERT INTO observations ({_COLUMNS}) VALUES ({', '.join('?' * (len(_FIELDS) + 1))})"  # noqa: S608 - made of constants
    " ON CONFLICT (idempotency_key) DO NOTHING"
)
_POSTGRES_LOCK = 0x67726C6F
"""The advisory lock of transactions that add to the ledger."""
_NUMBERS = ("score", "cost", "latency_ms")
_ARRAYS = ", ".join(
    [f"${place}::{'float8' if name in _NUMBERS else 'text'}[]" for place, name in enumerate(_FIELDS, 1)]
    + [f"${len(_FIELDS) + 1}::bigint[]"]
)
_POSTGRES_INSERT = (
    f"INSERT INTO observations ({_COLUMNS}) SELECT {_COLUMNS}"  # noqa: S608 - made of constants
    f" FROM unnest({_ARRAYS}) WITH ORDINALITY AS new ({_COLUMNS}, turn)"
    " ORDER BY turn ON CONFLICT (idempotency_key) DO NOTHING"
)
_POSTGRES_IDS = "SELECT idempotency_key, id FROM observations WHERE idempotency_key = ANY($1::text[])"


def put_in_sqlite(connection: sqlite3.Connection, observations: Sequence[Observation]) -> list[int]:
    """Insert the observations whose key is new, and return the id of each key. Within a transaction."""
    connection.executemany(_SQLITE_INSERT, map(_row, observations))
    keys = iter(dict.fromkeys(one.idempotency_key for one in observations))
    ids: dict[str, int] = {}
    while some := list(islice(keys, _KEYS_AT_ONCE)):
        places = ", ".join("?" * len(some))
        statement = f"SELECT idempotency_key, id FROM observations WHERE idempotency_key IN ({places})"  # noqa: S608
        ids.update(connection.execute(statement, some))
    return [ids[one.idempotency_key] for one in observations]


async def put_in_postgres(connection: Connection, observations: Sequence[Observation]) -> list[int]:
    """As `put_in_sqlite`. One writer at a time, so that ids become visible in their order and a reader that continues
    after an id misses nothing."""
    if not observations:
        return []
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _POSTGRES_LOCK)
    await connection.execute(_POSTGRES_INSERT, *map(list, zip(*map(_row, observations), strict=True)))
    keys = [one.idempotency_key for one in observations]
    ids = dict[str, int]((row[0], row[1]) for row in await connection.fetch(_POSTGRES_IDS, keys))
    return [ids[key] for key in keys]


def _row(observation: Observation) -> tuple[object, ...]:
    return *(getattr(observation, name) for name in _FIELDS), score_units(observation.score)[0]


def page_statement(where: ObservationFilter, after: int, limit: int) -> tuple[str, list[object]]:
    """The statement and its values that read a page, by id. `observation_of_row` decodes the rows."""
    criteria = where.criteria()
    condition = " AND ".join(("id > ?", *(f"{name} = ?" for name in criteria)))
    columns = ", ".join(("id", *_FIELDS))
    statement = f"SELECT {columns} FROM observations WHERE {condition} ORDER BY id LIMIT ?"  # noqa: S608 - made of constants
    return statement, [after, *criteria.values(), limit]


def observation_of_row(row: Sequence[Any]) -> Observation:
    return Observation(id=row[0], **dict(zip(_FIELDS, row[1:], strict=True)))


def sums_statement(where: ObservationFilter) -> tuple[str, list[object]]:
    """The statement and its values that sum up observations, each case with its mean. `sums_of_row` decodes the rows.

    In integers, so that the order of rows cannot change a sum: the mean of each case, then the sums of the means and of
    their squares. To avoid overflow, a mean is split into its upper and lower six digits.
    """
    criteria = where.criteria()
    condition = " AND ".join(f"{name} = ?" for name in criteria) or "TRUE"
    group = ", ".join(_GROUP)
    cases = f"""
        SELECT {group}, sum(total) AS total, sum(scored) AS scored, max(latest) AS latest,
            CAST(sum(units) AS BIGINT) / nullif(CAST(sum(scored) AS BIGINT), 0) AS mean
        FROM observation_cases WHERE {condition} GROUP BY {", ".join(_CASE)}"""  # noqa: S608 - made of constants
    high, low = "(mean / 1000000)", "(mean % 1000000)"
    square = f"{high} * {high} + (2 * {high} * {low} + {low} * {low} / 1000000) / 1000000"
    statement = f"""
        SELECT {group}, sum(total), sum(scored), count(mean), coalesce(sum(mean), 0),
            coalesce(sum({square}), 0), max(latest)
        FROM ({cases}) AS cells GROUP BY {group} ORDER BY {group}"""  # noqa: S608 - made of constants
    return statement, list(criteria.values())


def sums_of_row(row: Sequence[Any]) -> ObservationSums:
    family, candidate, baseline, grader, total, scored, cases, units, squares, latest = row
    return ObservationSums(
        family,
        candidate,
        baseline,
        grader,
        int(total),
        int(scored),
        int(cases),
        int(units) / SCORE_UNIT,
        int(squares) / SCORE_UNIT,
        latest,
    )
