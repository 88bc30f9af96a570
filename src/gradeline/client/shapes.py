"""What the service answers. A field that a newer service adds is not an error, it is just not here."""

from __future__ import annotations

from typing import Any, Generic, Literal, NamedTuple, TypeVar

from msgspec import Struct

T = TypeVar("T")

Status = Literal["pending", "running", "completed", "failed", "cancelled", "interrupted"]
ENDED = frozenset(("completed", "failed", "cancelled"))


class Page(NamedTuple, Generic[T]):
    """Some entries of a list, and where the next page begins; None: there is none."""

    entries: list[T]
    next_cursor: str | None


class TestCase(Struct, frozen=True, kw_only=True):
    """A stored test case."""

    __test__ = False  # not a test class, whatever its name says to pytest

    id: str
    input: str
    expected_output: str
    description: str | None = None
    tags: tuple[str, ...] = ()
    created_at: str | None = None
    modified_at: str | None = None


class Grader(Struct, frozen=True, kw_only=True):
    """A grader: built in, stored, or a Python one of the server's folder."""

    id: str
    name: str = ""
    description: str | None = None
    type: str = ""
    config: Any = None
    config_schema: dict[str, Any] | None = None
    scoring_guide: Any = None
    default_extractor: str = ""
    version: Any = None
    fingerprint: str | None = None
    status: str = ""


class Progress(Struct, frozen=True):
    """How far an evaluation is: ``total`` is unknown until all cases are read."""

    total: int | None = None
    answered: int = 0
    graded: int = 0
    errors: int = 0


class Stopped(Struct, frozen=True):
    """A look that decided an evaluation early: ``n`` of the ``of`` cases in common with its baseline were done."""

    look: int
    n: int
    of: int


class Evaluation(Struct, frozen=True, kw_only=True):
    """An evaluation: one set of cases, one agent, one set of graders."""

    id: str
    status: Status
    name: str | None = None
    progress: Progress | None = None
    result_count: int = 0
    started_at: str | None = None
    completed_at: str | None = None
    error_message: str | None = None
    group: str | None = None
    parent: str | None = None
    stop_early: bool = False
    """Whether it was asked to end as soon as its comparison with the baseline is decided."""
    stopped: Stopped | None = None
    """Where it ended before all its cases were asked."""
    calls_saved: int = 0
    """The calls of the agent that the early end left out; `resume` with ``all`` makes them."""
    warnings: tuple[str, ...] = ()
    """What to know of its suite and its cases, such as near duplicates without a cluster."""
    pass_rates: dict[str, Figure] | None = None
    """By grader, in lists alone; `summary` has those of one evaluation."""
    held_by_service: bool | None = None
    """The service works on it, or takes it up again by itself when it is interrupted; None in lists."""

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it by itself: an interrupted run of the command line waits to be resumed."""
        return self.status in ENDED or (self.status == "interrupted" and self.held_by_service is False)


class ToolCall(Struct, frozen=True):
    """A call of a tool; ``arguments`` is the JSON text as the agent sent it."""

    name: str
    arguments: str = "{}"
    id: str | None = None


class Usage(Struct, frozen=True):
    """Tokens and cost as reported; unknown is None, never 0."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost: float | None = None


class SentRequest(Struct, frozen=True, kw_only=True):
    """A request as the agent was sent it; secrets are ``***``."""

    method: str
    url: str
    headers: dict[str, str]
    body: str | None = None
    body_truncated: bool = False


class RawAnswer(Struct, frozen=True, kw_only=True):
    """An agent's answer before anything was read from it; a body that broke off is None."""

    status: int
    headers: dict[str, str]
    body: str | None = None
    body_truncated: bool = False


class Exchange(Struct, frozen=True, kw_only=True):
    """One request; ``answer`` is None where none came."""

    request: SentRequest
    answer: RawAnswer | None = None


class Tried(Struct, frozen=True, kw_only=True):
    """What became of one call of an agent, and all that went over the wire for it."""

    response_status: Literal["success", "timeout", "error"]
    agent_response: str | None = None
    agent_response_truncated: bool = False
    tool_calls: tuple[ToolCall, ...] | None = None
    """None where the answer does not report them; an agent that reports none gives an empty tuple."""
    tool_calls_omitted: int = 0
    usage: Usage | None = None
    response_latency_ms: float | None = None
    error_type: str | None = None
    error_message: str | None = None
    timeout_s: float | None = None
    exchanges: tuple[Exchange, ...] = ()
    exchanges_omitted: int = 0


class Score(Struct, frozen=True, kw_only=True):
    """What one grader said. There is a value only where there was a pass or a fail."""

    grader_id: str
    grader_name: str
    score_status: Literal["pass", "fail", "error", "skipped"]
    score_value: float | None = None
    rationale: str | None = None
    details: dict[str, Any] | None = None
    error_type: str | None = None
    error_message: str | None = None
    latency_ms: float | None = None


class Result(Struct, frozen=True, kw_only=True):
    """One case of an evaluation, asked once. Long texts are cut where ``truncated`` says so."""

    result_id: str
    test_case_id: str
    test_case_input: str
    response_status: Literal["success", "timeout", "error"]
    repeat: int = 0
    test_case_expected: str | None = None
    agent_response: str | None = None
    response_latency_ms: float | None = None
    error_message: str | None = None
    scores: tuple[Score, ...] = ()
    scores_succeeded: int = 0
    scores_failed: int = 0
    truncated: bool = False


class ResultDetail(Result, frozen=True, kw_only=True):
    """A result with everything that is stored of it."""

    evaluation_id: str = ""
    sample: dict[str, Any] = {}
    response: dict[str, Any] = {}
    submissions: dict[str, str] = {}
    grades: dict[str, Any] = {}
    history: list[Any] = []


class Figure(Struct, frozen=True):
    """A number with its 95 % interval, and what it is the number of."""

    value: float | None
    low: float | None
    high: float | None
    scored: int
    total: int


class Coverage(Struct, frozen=True):
    """How many of the results have a score."""

    scored: int
    total: int
    share: float | None


class OrderFinding(Struct, frozen=True):
    """How often the order in which a judge was shown two answers decided, and in favour of which one."""

    decided: int
    of: int
    first: int
    second: int
    p: float | None
    verdict: str
    sentence: str


class Summary(Struct, frozen=True, kw_only=True):
    """A whole evaluation in numbers."""

    total_results: int
    successful_responses: int
    failed_responses: int
    timeout_responses: int
    grader_pass_counts: dict[str, int]
    grader_fail_counts: dict[str, int]
    grader_error_counts: dict[str, int]
    grader_skipped_counts: dict[str, int]
    average_scores: dict[str, Figure]
    pass_rates: dict[str, Figure]
    coverage: dict[str, Coverage]
    sentence: str
    orders: dict[str, OrderFinding] = {}
    average_latency_ms: float | None = None
    p50_latency_ms: float | None = None
    p95_latency_ms: float | None = None
    p99_latency_ms: float | None = None
    clusters: int | None = None
    """The clusters of the cases; None where no case has one."""


class Bin(Struct, frozen=True, kw_only=True):
    """How many values there are from ``low`` to ``high``, both included."""

    low: float
    high: float
    count: int


class Histograms(Struct, frozen=True, kw_only=True):
    """How the scores of each grader and the latencies of successful responses are spread."""

    evaluation_id: str
    scores: dict[str, tuple[Bin, ...]]
    latency_ms: tuple[Bin, ...] = ()


class Comparability(Struct, frozen=True):
    """Whether like would be compared with like, and what differs."""

    comparable: bool
    reasons: tuple[str, ...] = ()


class Drop(Struct, frozen=True):
    """A case whose score fell."""

    case: str
    baseline: float
    candidate: float


class GraderDifference(Struct, frozen=True, kw_only=True):
    """Candidate minus baseline, as one grader has it."""

    difference: float | None
    low: float | None
    high: float | None
    decision: str | None
    n: int
    cases_to_decide: int | None = None
    reasons: tuple[str, ...] = ()
    """Why it is undecided, and what is certain all the same."""
    coverage: float | None = None
    """The share of the baseline's cases, without edited ones, that have a score in both evaluations."""
    clusters: int | None = None
    """The clusters of the n cases; None where no case has one."""
    test: str | None = None
    noise_threshold: float | None = None
    """A smaller mean difference is what chance makes of changes such as these."""
    noise: float = 0.0
    """The suite's threshold for this grader: a smaller change of a case counts as same."""
    within_noise: int = 0
    """The cases that count as same only because of it."""
    largest_drops: tuple[Drop, ...] = ()
    """The cases that fell most, at most 5."""


class CaseChange(Struct, frozen=True, kw_only=True):
    """What became of one case."""

    test_case_id: str
    change: str
    baseline: dict[str, float | None]
    candidate: dict[str, float | None]
    changes: dict[str, str] = {}
    """What became of it by grader; a change below the grader's noise is ``same``."""
    input: str | None = None
    """The beginning of it, as of the answers: at most 200 characters."""
    baseline_output: str | None = None
    candidate_output: str | None = None


class Comparison(Struct, frozen=True, kw_only=True):
    """Two evaluations compared."""

    comparability: Comparability
    graders: dict[str, GraderDifference]
    cases: tuple[CaseChange, ...] = ()
    decision: str | None = None
    sentence: str | None = None
    """The decision with the graders behind it, and what is known of the others."""
    primary: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What to know of the cases and graders of either evaluation."""


class RankedScore(Struct, frozen=True, kw_only=True):
    """One evaluation by one grader, over the cases that have a score in every evaluation."""

    mean: float | None
    low: float | None
    high: float | None
    rank_best: int | None
    """The best rank that it may have; the same as the worst where it is certain."""
    rank_worst: int | None
    scored: int
    total: int


class RankedEvaluation(Struct, frozen=True, kw_only=True):
    """An evaluation of several, and what its own answers cost and took."""

    evaluation_id: str
    name: str
    scores: dict[str, RankedScore]
    cost_per_case: float | None = None
    """None is unknown, not free."""
    cost_unknown: int = 0
    latency_ms: dict[str, float] | None = None
    on_front: bool | None = None
    """Whether no other is as good for less, or better for as much; None where its mean or its cost is unknown."""


class RankedPair(Struct, frozen=True, kw_only=True):
    """Candidate minus baseline; the interval holds with 95 % for all pairs together."""

    baseline_id: str
    candidate_id: str
    difference: float
    low: float
    high: float
    p_value: float
    p_adjusted: float
    decision: str
    winner_id: str | None = None
    """The one that is better for certain; None where the two are tied."""


class Ranking(Struct, frozen=True, kw_only=True):
    """Three or more evaluations ranked, the highest mean first."""

    comparability: Comparability
    evaluations: tuple[RankedEvaluation, ...]
    pairs: dict[str, tuple[RankedPair, ...]]
    cases: int
    left_out: int = 0
    edited: tuple[str, ...] = ()
    primary: tuple[str, ...] = ()
    noise: dict[str, float] = {}
    """By grader: a smaller change of a case between two evaluations counts as same, in pairs and ranks."""
    best: tuple[str, ...] = ()
    """Those that may be the best: no other is better for certain."""
    sentence: str | None = None
    warnings: tuple[str, ...] = ()
    """What to know of the cases and graders of the evaluations."""


class TrendPoint(Struct, frozen=True, kw_only=True):
    """One evaluation of a series."""

    evaluation_id: str
    name: str
    started_at: str | None
    mean: float | None
    low: float | None
    high: float | None
    scored: int
    total: int
    segment: int
    """Means compare only within a segment: a new one begins where the grader changed."""
    cost: float | None = None
    cost_unknown: int = 0
    latency_ms: dict[str, float] | None = None
    changes: tuple[str, ...] = ()
    """What changed since the one before: ``grader``, ``cases``, ``target``."""
    reasons: tuple[str, ...] = ()


class Trend(Struct, frozen=True, kw_only=True):
    """The newest evaluations of a suite by one grader, the oldest first."""

    suite: str
    grader: str
    runs: int
    points: tuple[TrendPoint, ...]


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened in an evaluation: ``snapshot``, ``progress``, ``result``, ``status`` or ``done``."""

    id: str | None
    type: str
    data: Any
