"""Runs and their cases as rows, for transactions that change more than the store's own methods do at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from gradeline.model import Run, Sample
from gradeline.model.record import to_json
from gradeline.rest_types import EvaluationProgress
from gradeline.store.database import Transaction, Value
from gradeline.store.leases import observed_run
from gradeline.store.rows import validate_run, with_changes

ENDED = frozenset({"completed", "failed", "cancelled"})
_ROWS_AT_ONCE = 100

_PROGRESS = """
    SELECT (SELECT last_event FROM jobs WHERE run = ?),
        EXISTS (SELECT 1 FROM jobs WHERE run = ? AND state <> 'done'), (SELECT run FROM runs WHERE id = ?),
        (SELECT coalesce(CAST(sum(count) AS BIGINT), 0) FROM response_counts WHERE run = ?),
        (SELECT coalesce(CAST(sum(count) AS BIGINT), 0) FROM response_counts WHERE run = ? AND status <> 'success'),
        (SELECT CAST(coalesce(min(total), 0) AS BIGINT) FROM
            (SELECT sum(count) AS total FROM grade_counts WHERE run = ? GROUP BY grader) AS by_grader)"""


class Standing(NamedTuple):
    """A run with how far it has come, as of one moment."""

    run: Run
    progress: EvaluationProgress
    last_event: int | None
    """None: the run has no log."""
    held: bool
    """The service works on it, or takes it up again by itself."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to the run by itself."""
        return self.run.status in ENDED or (self.run.status == "interrupted" and not self.held)


def read_run(transaction: Transaction, run: str) -> Run | None:
    """The run as it is in this transaction."""
    rows = transaction.run("SELECT run FROM runs WHERE id = ?", run)
    return observed_run(rows[0][0], transaction.run) if rows else None


def insert_run(transaction: Transaction, run: Run) -> None:
    """Add a run that has an id."""
    run = validate_run(run)
    transaction.run(
        "INSERT INTO runs (id, name, parent, run) VALUES (?, ?, ?, ?)", run.id, run.name, run.parent, to_json(run)
    )


def change_run(transaction: Transaction, run: Run, **changes: Any) -> Run:
    """The run with some fields replaced."""
    new = with_changes(run, changes)
    transaction.run("UPDATE runs SET run = ? WHERE id = ?", to_json(new), new.id)
    return new


def insert_samples(transaction: Transaction, run: str, samples: Sequence[Sample]) -> None:
    """Add the cases of a run, in their order."""
    rows = ((run, sample.case_key, place, to_json(sample)) for place, sample in enumerate(samples))
    while chunk := list(islice(rows, _ROWS_AT_ONCE)):
        places = ", ".join(["(?, ?, ?, ?)"] * len(chunk))
        values: list[Value] = [value for row in chunk for value in row]
        transaction.run(f"INSERT INTO samples (run, case_key, position, sample) VALUES {places}", *values)  # noqa: S608


Reader = Callable[..., list[tuple[Any, ...]]]
"""Runs a query: `Database.read`, or `Transaction.run`, which sees what the transaction has written."""


def standing(read: Reader, run: str) -> Standing | None:
    """How the run stands. One statement, so that all of it is of the same moment."""
    source = source_of(read, run)
    (row,) = read(_PROGRESS, run, run, run, source, source, run)
    last_event, held, text, answered, errors, graded = row
    if text is None:
        return None
    stored = observed_run(text, read)
    return Standing(stored, EvaluationProgress(stored.total, answered, graded, errors), last_event, bool(held))


def source_of(read: Reader, run: str) -> str:
    """Whose responses a run reads: its own, or those of the run it regrades."""
    seen: set[str] = set()
    while run not in seen:
        seen.add(run)
        rows = read(
            "SELECT parent FROM runs WHERE id = ?"
            " AND NOT EXISTS (SELECT 1 FROM response_counts WHERE run = ? AND count > 0)",
            run,
            run,
        )
        if not rows or rows[0][0] is None:
            break
        run = rows[0][0]
    return run
