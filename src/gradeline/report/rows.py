"""Records as rows: one for each (case, repeat, grader)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gradeline.errors import Outcome
from gradeline.model import ErrorInfo, Grade, Record, RunGrader


class Row(NamedTuple):
    """What one grader said of one response. ``grade`` is None where it has said nothing yet."""

    record: Record
    grader: str
    kind: str
    grade: Grade | None

    @property
    def outcome(self) -> Outcome | None:
        """None where an answer waits to be graded; a failed call is skipped, whether or not a grade says so."""
        if self.grade is not None:
            return self.grade.outcome
        return None if self.record.response.error is None else Outcome.SKIPPED

    @property
    def error(self) -> ErrorInfo | None:
        """Why there is no score: the grader's error, or that of the agent's call."""
        own = None if self.grade is None else self.grade.error
        return self.record.response.error if own is None else own


def rows(records: Iterable[Record], graders: Mapping[str, RunGrader] | None = None) -> Iterator[Row]:
    """The rows of records. With a run's graders, each has its row in every record, graded or not.

    Without them a record has the rows of its grades, and one without a grader where it has none.
    """
    for record in records:
        if graders is not None:
            for key, grader in graders.items():
                yield Row(record, key, grader.kind, record.grades.get(key))
        elif record.grades:
            for key, grade in record.grades.items():
                yield Row(record, key, grade.kind, grade)
        else:
            yield Row(record, "", "", None)
