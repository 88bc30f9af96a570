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
    f"INSERT INTO observations ({', '.join(_STORED)}, units)"  # noqa: S608 - made of constants
    f" VALUES ({', '.join('?' * (len(_STORED) + 1))}) ON CONFLICT (idempotency_key) DO NOTHING"
)
_COLUMNS = ", ".join(("id", *_STORED))
_KEYS_AT_ONCE = 500


class Case(NamedTuple):
    """A case as one judge observed it of one adapter against one baseline: it counts once."""

    task_family: str
    candidate_adapter: str
    baseline_adapter: str
    grader_id: str
    case_key: str
    observation: str
    """Empty where the case is known; else the key of the observation, which is a case of its own."""


class Cell(NamedTuple):
    """Some observations of a case; scores in `SCORE_UNIT`."""

    case: Case
    total: int
    scored: int
    units: int
    latest: str


_ROW = Case._fields[:4]
"""What the observations of one row of the ledger have in common."""


def put_observations(connection: sqlite3.Connection, observations: Sequence[Observation]) -> list[int]:
    """Keep each whose key is new, and give the ids under which the keys are kept. Within a transaction that writes."""
    connection.executemany(_INSERT, [(*_values(one), score_units(one.score)[0]) for one in observations])
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
    """The statement and its values that add up the cases of each row. Rows become sums by `sums_of_row`."""
    chosen = where.chosen()
    return sums_of_cases(" AND ".join(f"{name} = ?" for name in chosen) or "TRUE"), list(chosen.values())


def sums_of_cases(condition: str) -> str:
    """As `sums_of` does it, in whole numbers: the mean of each case, then the sums of the means and of their squares.

    No product is larger than the databases' integers: a mean is split into its upper and lower six digits.
    """
    cells = f"""
        SELECT {", ".join(_ROW)}, sum(total) AS total, sum(scored) AS scored, max(latest) AS latest,
            CAST(sum(units) AS BIGINT) / nullif(CAST(sum(scored) AS BIGINT), 0) AS mean
        FROM observation_cases WHERE {condition} GROUP BY {", ".join(Case._fields)}"""  # noqa: S608 - columns alone
    high, low = "(mean / 1000000)", "(mean % 1000000)"
    square = f"{high} * {high} + (2 * {high} * {low} + {low} * {low} / 1000000) / 1000000"
    return f"""
        SELECT {", ".join(_ROW)}, sum(total), sum(scored), count(mean), coalesce(sum(mean), 0),
            coalesce(sum({square}), 0), max(latest)
        FROM ({cells}) AS cells GROUP BY {", ".join(_ROW)} ORDER BY {", ".join(_ROW)}"""  # noqa: S608 - columns alone


def sums_of_row(row: Sequence[Any]) -> ObservationSums:
    *names, total, scored, cases, units, squares, latest = row
    return _sums((*names,), [int(number) for number in (total, scored, cases, units, squares)], latest)


def sums_of(cells: Iterable[Cell]) -> list[ObservationSums]:
    """The cells of each row added up, a case once with its mean. In whole numbers: no order of adding changes them."""
    cases: dict[Case, Cell] = {}
    for cell in cells:
        known = cases.get(cell.case)
        cases[cell.case] = cell if known is None else added(known, cell)
    rows: dict[tuple[str, ...], list[Cell]] = {}
    for case, cell in cases.items():
        rows.setdefault(case[:4], []).append(cell)
    return [_sums(names, _added_up(found), max(one.latest for one in found)) for names, found in sorted(rows.items())]


def _added_up(cases: Sequence[Cell]) -> tuple[int, ...]:
    means = [case.units // case.scored for case in cases if case.scored]
    squares = sum(mean * mean // SCORE_UNIT for mean in means)
    return sum(case.total for case in cases), sum(case.scored for case in cases), len(means), sum(means), squares


def _sums(names: tuple[str, ...], numbers: Sequence[int], latest: str) -> ObservationSums:
    family, candidate, baseline, grader = names
    total, scored, cases, units, squares = numbers
    return ObservationSums(
        family,
        candidate,
        baseline,
        grader,
        total,
        scored,
        cases,
        units / SCORE_UNIT,
        squares / SCORE_UNIT,
        latest,
    )


def added(first: Cell, second: Cell) -> Cell:
    """Two cells of the same case as one."""
    return first._replace(
        total=first.total + second.total,
        scored=first.scored + second.scored,
        units=first.units + second.units,
        latest=max(first.latest, second.latest),
    )


def cell_of(observation: Observation) -> Cell:
    """What one observation adds."""
    case = observation.case_key
    return Cell(
        Case(
            observation.task_family,
            observation.candidate_adapter,
            observation.baseline_adapter,
            observation.grader_id,
            case or "",
            observation.idempotency_key if case is None else "",
        ),
        1,
        int(observation.score is not None),
        score_units(observation.score)[0],
        observation.observed_at,
    )


def _values(observation: Observation) -> tuple[object, ...]:
    return tuple(getattr(observation, name) for name in _STORED)
