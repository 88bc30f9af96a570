"""A run, and what it comes to so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from gradeline.errors import Outcome
from gradeline.model.record import ResponseKey

RunStatus = Literal["pending", "running", "completed", "failed", "cancelled"]


class RunGrader(msgspec.Struct, frozen=True):
    """A grader of a run: what it was, so that like is compared with like."""

    kind: str
    fingerprint: str
    judges: tuple[str, ...] = ()
    """The models whose word its scores are."""


class Run(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """One suite, one target variant, one set of graders.

    Times are ISO 8601 texts in UTC. ``total`` is cases x repeats where that is known.
    ``definition`` is the suite as JSON text, so that the run can be resumed; ``owner`` names the
    process that runs it as ``host:pid:start``. An empty id is filled in by ``save_run``.
    """

    id: str = ""
    name: str
    suite: str
    suite_digest: str = ""
    status: RunStatus = "pending"
    target: dict[str, Any] = {}
    graders: dict[str, RunGrader] = {}
    group: str | None = None
    parent: str | None = None
    seed: int | None = None
    repeats: int = 1
    total: int | None = None
    started_at: str | None = None
    completed_at: str | None = None
    error_message: str | None = None
    definition: str | None = None
    owner: str | None = None


class GraderCounts(msgspec.Struct, frozen=True):
    """What one grader said so far: how often which outcome, and the moments of its scores."""

    outcomes: dict[str, int]
    score_sum: float
    score_squares: float


class Counts(msgspec.Struct, frozen=True):
    """What a run holds: its responses by status, its grades by grader. Every status and outcome is listed."""

    responses: dict[str, int]
    graders: dict[str, GraderCounts]


class GradeMeasure(NamedTuple):
    """A grade in numbers."""

    outcome: Outcome
    score: float | None
    self_reported_error: bool
    cost: float | None = None
    """What a judge was paid for it, where that is known."""


class Measure(NamedTuple):
    """One (case, repeat) of a run in numbers: what summaries and comparisons need of a record."""

    case: str
    repeat: int
    status: str
    latency_ms: float | None
    cost: float | None
    grades: dict[str, GradeMeasure]
    digest: str
    """Tells an edited case from the one it was; empty where it was not asked for."""


class ResponseColumns(NamedTuple):
    """Responses in numbers, as many in each column."""

    cases: Sequence[str] = ()
    statuses: Sequence[str] = ()
    latencies_ms: Sequence[float | None] = ()
    costs: Sequence[float | None] = ()


class GradeColumns(NamedTuple):
    """Grades in numbers, as many in each column."""

    cases: Sequence[str] = ()
    graders: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    scores: Sequence[float | None] = ()
    self_reported_errors: Sequence[int] = ()
    costs: Sequence[float | None] = ()


class Columns(NamedTuple):
    """Some cases of a run in numbers, column by column: a tenth of what a `Measure` of each would take."""

    responses: ResponseColumns
    grades: GradeColumns


class StoredKey(NamedTuple):
    """What is there already of one (run, case, repeat): the response's status and the fingerprint of each grade."""

    key: ResponseKey
    status: str
    fingerprints: dict[str, str]
    digest: str
    """Tells an edited case from the one that was asked."""
    errors: frozenset[str] = frozenset()
    """The graders that gave no score."""
