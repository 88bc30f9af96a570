"""What the service answers. A field that a newer service adds is not an error, it is just not here."""

from __future__ import annotations

from typing import Any, Generic, Literal, NamedTuple, TypeVar

from msgspec import Struct

T = TypeVar("T")

Status = Literal["pending", "running", "completed", "failed", "cancelled"]
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
    version: Any = None
    fingerprint: str | None = None
    status: str = ""


class Progress(Struct, frozen=True):
    """How far an evaluation is: ``total`` is unknown until all cases are read."""

    total: int | None = None
    answered: int = 0
    graded: int = 0
    errors: int = 0


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
    pass_rates: dict[str, Figure] | None = None
    """By grader, in lists alone; `summary` has those of one evaluation."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it by itself."""
        return self.status in ENDED


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
    tool_calls: tuple[ToolCall, ...] = ()
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
    average_latency_ms: float | None = None
    p50_latency_ms: float | None = None
    p95_latency_ms: float | None = None
    p99_latency_ms: float | None = None


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


class GraderDifference(Struct, frozen=True, kw_only=True):
    """Candidate minus baseline, as one grader has it."""

    difference: float | None
    low: float | None
    high: float | None
    decision: str | None
    n: int
    cases_to_decide: int | None = None


class CaseChange(Struct, frozen=True, kw_only=True):
    """What became of one case."""

    test_case_id: str
    change: str
    baseline: dict[str, float | None]
    candidate: dict[str, float | None]
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


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened in an evaluation: ``snapshot``, ``progress``, ``result``, ``status`` or ``done``."""

    id: str | None
    type: str
    data: Any
