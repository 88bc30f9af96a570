"""A run, and what it comes to so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from gradeline.errors import Outcome
from gradeline.model.record import ResponseKey

TurnRule = Literal["all", "mean"]
"""When a conversation passes that is graded turn by turn: every turn passes, or the mean reaches the threshold."""

RunStatus = Literal["pending", "running", "completed", "failed", "cancelled", "interrupted"]
"""``interrupted`` is not stored: a store gives it to a run whose owner is gone when the run is read."""


class RunGrader(msgspec.Struct, frozen=True):
    """A grader of a run: what it was, so that like is compared with like."""

    kind: str
    fingerprint: str
    judges: tuple[str, ...] = ()
    """The models that its scores come from."""
    pass_threshold: float | None = None
    """The score from which a grade passes; None: the grader decides."""
    turns: TurnRule | None = None
    """When a conversation passes; None in runs of versions in which only the mean decided."""
    both_orders: bool = False
    """Whether its judge is shown two answers in both orders, and has no score where they disagree."""
    judge_id: str = ""
    """The judge of pairs and its version, whichever run it compares with; empty where it compares with none."""
    noise: float = 0.0
    """A smaller change of a case's score counts as same where this run is compared with a baseline."""


class EarlyStopping(msgspec.Struct, frozen=True):
    """The looks at a run that ends as soon as its comparison with a baseline is decided.

    Its cases are in random order. ``n`` of the ``of`` cases that it has in common with the baseline were done at the
    last look, and ``place`` of all its cases: what comes after them in the order of the run was not looked at.
    """

    baseline: str
    of: int
    cases: int
    """All cases of the run, whether they were asked or not."""
    graders: int = 1
    """The graders that share the error rate."""
    look: int = 0
    """0: none was taken yet."""
    n: int = 0
    place: int = 0
    all_cases: bool = False
    """The rest is asked too, so that no look decides any more."""
    obstacle: str | None = None
    """Why the run is not looked at: it asks all cases, in the order of the dataset."""

    @property
    def decides(self) -> bool:
        """Whether the run is judged by its looks."""
        return not self.all_cases and self.obstacle is None

    @property
    def stopped(self) -> bool:
        """Whether cases were left out because the answer was known."""
        return self.decides and 0 < self.n < self.of

    def to_data(self) -> dict[str, int] | None:
        """As JSON shows it; None where no case was left out."""
        return {"look": self.look, "n": self.n, "of": self.of} if self.stopped else None


class Run(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """One suite, one target variant, one set of graders.

    Times are ISO 8601 texts in UTC. ``total`` is cases x repeats where that is known.
    ``definition`` is the suite as JSON text, so that the run can be resumed; ``owner`` names the
    process that runs it as ``host:pid:start``, see `gradeline.store.owner`. An empty id is filled in by ``save_run``.
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
    early: EarlyStopping | None = None
    """Where it may end before all its cases are asked."""
    warnings: tuple[str, ...] = ()
    """What a person should know of its suite and its cases, found before it began."""

    @property
    def calls_saved(self) -> int:
        """The calls of the agent that an early end left out; 0 where it asked all, or grades the answers of another."""
        if self.early is None or not self.early.stopped or self.status != "completed" or self.parent is not None:
            return 0
        return self.early.cases * self.repeats - (self.total or 0)


class GraderCounts(msgspec.Struct, frozen=True):
    """What one grader said so far: how often which outcome, and the moments of its scores."""

    outcomes: dict[str, int]
    score_sum: float
    score_squares: float


class Counts(msgspec.Struct, frozen=True):
    """What a run holds: its responses by status, its grades by grader. Every status and outcome is listed."""

    responses: dict[str, int]
    graders: dict[str, GraderCounts]


class OrderCounts(NamedTuple):
    """Of one grader, the grades without a score because the order of two answers decided: in favour of which one."""

    first: int
    second: int


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
    cluster: str | None = None
    """The cluster of the case, where it has one and digests were asked for."""


class ResponseColumns(NamedTuple):
    """Responses in numbers, as many in each column."""

    cases: Sequence[str] = ()
    statuses: Sequence[str] = ()
    latencies_ms: Sequence[float | None] = ()
    costs: Sequence[float | None] = ()
    digests: Sequence[str] = ()
    """As in `Measure`."""
    positions: Sequence[int] = ()
    """The place of each case in the run."""


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
    """The graders that failed; not those whose judge gave a verdict in both orders, and another one in each."""
