"""Runs, their counts, and their results in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from gradeline.errors import Outcome
from gradeline.model.learned_judging import PanelWeighting, SelectiveThreshold
from gradeline.model.record import ResponseKey

TurnRule = Literal["all", "mean"]
"""When a conversation graded turn by turn passes: every turn passes, or the mean reaches the threshold."""

RunStatus = Literal["pending", "running", "completed", "failed", "cancelled", "interrupted"]
"""``interrupted`` is not stored: the store reports it for a run whose owner is gone."""


class RunGrader(msgspec.Struct, frozen=True):
    """A grader of a run, for comparing like with like."""

    kind: str
    fingerprint: str
    judges: tuple[str, ...] = ()
    """The models that score."""
    pass_threshold: float | None = None
    """Minimum score that passes; None: the grader decides."""
    turns: TurnRule | None = None
    """When a conversation passes; None in runs of versions that only used the mean."""
    both_orders: bool = False
    """Whether the judge sees two answers in both orders, with no score if the verdicts disagree."""
    judge_id: str = ""
    """Judge of pairs and its version, independent of the baseline; empty for other graders."""
    noise: float = 0.0
    """Smaller changes of a case's score count as same in comparisons with a baseline."""
    judge_fingerprint: str = ""
    """The fingerprint of a judge without what it learned from labels, and without a baseline run; empty where it is
    the same as ``fingerprint``."""
    prompt_hash: str = ""
    """Digest of a judge's prompt; empty for other graders."""
    rubric_version: str = ""
    """The id of a judge's shipped rubric; empty for a text of the suite."""
    weights: PanelWeighting | None = None
    """How a panel weighted its members; None for other graders."""
    selective: SelectiveThreshold | None = None
    """From which confidence the judge's verdicts count; None: all do."""

    @property
    def calibrated_as(self) -> str:
        """The fingerprint that a calibration of this grader is filed under."""
        return self.judge_fingerprint or self.fingerprint


class EarlyStopping(msgspec.Struct, frozen=True):
    """The state of a run that stops as soon as its comparison with a baseline is decided.

    Its cases are in random order. At the last interim look, ``n`` of the ``of`` cases in common with the baseline were
    done, and ``place`` of all its cases: later cases of the run were not included.
    """

    baseline: str
    of: int
    cases: int
    """All cases of the run, called or not."""
    graders: int = 1
    """The graders that share the error rate."""
    look: int = 0
    """Number of the last look; 0: none yet."""
    n: int = 0
    place: int = 0
    all_cases: bool = False
    """All cases are run after all, so looks no longer decide."""
    obstacle: str | None = None
    """Why early stopping is off: the run calls all cases, in the order of the dataset."""

    @property
    def decides(self) -> bool:
        """Whether the looks decide."""
        return not self.all_cases and self.obstacle is None

    @property
    def stopped(self) -> bool:
        """Whether cases were skipped because the comparison was decided."""
        return self.decides and 0 < self.n < self.of

    def to_data(self) -> dict[str, int] | None:
        """The JSON form; None if no case was skipped."""
        return {"look": self.look, "n": self.n, "of": self.of} if self.stopped else None


class CodeVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The commit of the repository that a suite was run from."""

    commit: str
    branch: str | None = None
    """None for a commit that was checked out without a branch."""
    dirty: bool | None = None
    """Whether tracked files had changes that are not committed; None if that is unknown."""


class Run(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """One suite, one target variant, one set of graders.

    Times are ISO 8601 strings in UTC. ``total`` is cases x repeats if known. ``definition`` is the suite as JSON, for
    resuming; ``owner`` is the process that runs it, as ``host:pid:start`` (`gradeline.store.leases`). ``save_run``
    replaces an empty id.
    """

    id: str = ""
    name: str
    suite: str
    suite_digest: str = ""
    status: RunStatus = "pending"
    target: dict[str, Any] = {}
    variant: str | None = None
    """The variant of the suite that the target is; None if the suite has only one."""
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
    """Set if the run may stop early."""
    warnings: tuple[str, ...] = ()
    """Warnings about suite and cases, found before the start."""
    code_version: CodeVersion | None = None
    """None for a suite that is in no repository; a regrade has that of its responses."""

    @property
    def calls_saved(self) -> int:
        """Agent calls saved by early stopping; 0 for a run that regrades another."""
        if self.early is None or not self.early.stopped or self.status != "completed" or self.parent is not None:
            return 0
        return self.early.cases * self.repeats - (self.total or 0)


class GraderCounts(msgspec.Struct, frozen=True):
    """Outcome counts and score sums of one grader."""

    outcomes: dict[str, int]
    score_sum: float
    score_squares: float


class Counts(msgspec.Struct, frozen=True):
    """Responses by status and grades by grader. Every status and outcome is listed."""

    responses: dict[str, int]
    graders: dict[str, GraderCounts]


class OrderCounts(NamedTuple):
    """Grades of one grader without a score because the order of two answers decided, by the favoured position."""

    first: int
    second: int


class SelectiveCounts(NamedTuple):
    """Grades of one grader that its own judge was not sure of."""

    second: int
    """A second judge gave the verdict."""
    unsure: int
    """No verdict counts."""


class GradeMeasure(NamedTuple):
    """The numbers of a grade."""

    outcome: Outcome
    score: float | None
    self_reported_error: bool
    cost: float | None = None
    """Cost of the judge, if known."""


class Measure(NamedTuple):
    """The numbers of one (case, repeat), for summaries and comparisons."""

    case: str
    repeat: int
    status: str
    latency_ms: float | None
    cost: float | None
    grades: dict[str, GradeMeasure]
    digest: str
    """Detects edited cases; empty if not requested."""
    cluster: str | None = None
    """Cluster of the case, if any and if digests were requested."""


class ResponseColumns(NamedTuple):
    """The numbers of responses, in columns of equal length."""

    cases: Sequence[str] = ()
    statuses: Sequence[str] = ()
    latencies_ms: Sequence[float | None] = ()
    costs: Sequence[float | None] = ()
    digests: Sequence[str] = ()
    """As in `Measure`."""
    positions: Sequence[int] = ()
    """Position of each case in the run."""


class GradeColumns(NamedTuple):
    """The numbers of grades, in columns of equal length."""

    cases: Sequence[str] = ()
    graders: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    scores: Sequence[float | None] = ()
    self_reported_errors: Sequence[int] = ()
    costs: Sequence[float | None] = ()


class Columns(NamedTuple):
    """The numbers of some cases in columns, in a tenth of the memory of one `Measure` per case."""

    responses: ResponseColumns
    grades: GradeColumns


class StoredKey(NamedTuple):
    """What is stored for one (run, case, repeat): response status and fingerprint of each grade."""

    key: ResponseKey
    status: str
    fingerprints: dict[str, str]
    digest: str
    """Detects edited cases."""
    errors: frozenset[str] = frozenset()
    """Graders that failed, except judges whose verdicts differ between the two orders."""
