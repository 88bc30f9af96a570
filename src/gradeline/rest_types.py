"""The data types of the REST API: the service encodes them, the client decodes them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote as percent_encoded
from urllib.parse import unquote

from msgspec import UNSET, Struct, UnsetType

from gradeline.errors import Outcome
from gradeline.model import Grade, Response, Sample, ToolCall, Usage
from gradeline.model.response import ResponseStatus
from gradeline.verdict import OrderFinding
from gradeline.verdict.paired_decision import Decision, Drop

T = TypeVar("T")


class ErrorBody(Struct, frozen=True, omit_defaults=True):
    """The error of a response; ``code`` is one of the service's error codes."""

    code: str
    message: str
    details: Mapping[str, Any] | None = None


class Envelope(Struct, Generic[T], frozen=True):
    """The body of every JSON response: ``data`` if it is a success, else ``error``."""

    success: bool
    data: T
    error: ErrorBody | None = None


def utc_timestamp(seconds: float) -> str:
    """A time since the epoch as text; such texts sort as their times do."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


GraderSource = Literal["built-in", "stored", "python"]


class GraderInfo(Struct, frozen=True, kw_only=True):
    """A grader as the API shows it. One with the status ``error`` cannot be used; ``error`` says why."""

    id: str
    name: str
    description: str | None
    type: str
    config_schema: dict[str, Any]
    scoring_guide: str
    default_extractor: str
    """What it grades of a response where a suite names no extractor."""
    version: int
    fingerprint: str
    status: Literal["active", "deleted", "error"]
    source: GraderSource
    config: dict[str, Any] = {}
    caveats: list[str] = []
    created_at: str | None = None
    modified_at: str | None = None
    error: str | None = None


class GraderList(Struct, frozen=True, kw_only=True):
    """A page of graders."""

    graders: list[GraderInfo]
    count: int
    total: int
    next_cursor: str | None


class ImportedCases(Struct, frozen=True):
    """The number of test cases that an import stored."""

    imported: int


class EvaluationProgress(Struct, frozen=True):
    """How far a run has come, counted in results: one a case and repeat."""

    total: int | None
    answered: int
    graded: int
    errors: int
    """Calls of the agent that failed."""


class Figure(Struct, frozen=True):
    """A number of one grader with its 95 % interval, and what it is the number of."""

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


class EvaluationSummary(Struct, frozen=True, kw_only=True):
    """A whole run in numbers. Latencies are those of successful responses."""

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
    average_latency_ms: float | None
    p50_latency_ms: float | None
    p95_latency_ms: float | None
    p99_latency_ms: float | None
    coverage: dict[str, Coverage]
    orders: dict[str, OrderFinding]
    """Of each judge that is shown two answers in both orders, how often the order decided."""
    sentence: str
    clusters: int | None = None
    """The clusters of the cases that were asked; null where no case has one. Intervals are over clusters."""


class EarlyStop(Struct, frozen=True):
    """The look at which a run ended early, after ``n`` of the ``of`` cases that it shares with its baseline."""

    look: int
    n: int
    of: int


class Evaluation(Struct, frozen=True, kw_only=True):
    """A run: what was asked for, and what became of it."""

    id: str
    name: str
    status: str
    agent_endpoint_url: str | None
    target: dict[str, Any]
    test_case_ids: list[str] | None
    """As they were given; null where the cases were chosen otherwise, and in lists."""
    tag: str | None
    grader_ids: list[str]
    repeats: int
    concurrency: int | None
    timeout_s: float | None
    baseline_id: str | None
    stop_early: bool = False
    """Whether it was asked to end as soon as its comparison with the baseline is decided."""
    stopped: EarlyStop | None = None
    """Where it ended early: the number of the last look, and after how many of how many cases."""
    calls_saved: int = 0
    """The calls of the agent that the early end left out; `resume` with `all` makes them."""
    warnings: tuple[str, ...] = ()
    """What to know of its suite and its cases, such as near duplicates without a cluster."""
    started_at: str | None
    completed_at: str | None
    result_count: int
    error_message: str | None
    group: str | None
    parent: str | None
    pass_rates: dict[str, Figure] | UnsetType = UNSET
    """In lists: how many of its scores each grader let pass. Repeats of a case have no interval there."""
    progress: EvaluationProgress | UnsetType = UNSET
    held_by_service: bool | UnsetType = UNSET
    """The service works on it, or takes it up again by itself when it is interrupted; not in lists."""
    verdict: dict[str, Any] | UnsetType | None = UNSET
    """By the suite's gate, once the run is completed."""
    comparison: dict[str, Any] | UnsetType | None = UNSET
    """With ``baseline_id``, once the run is completed."""

    @property
    def ended(self) -> bool:
        """Whether its state is final; an interrupted run of the command line waits for ``gradeline resume``."""
        if self.status == "interrupted":
            return self.held_by_service is False
        return self.status in ("completed", "failed", "cancelled")


class EvaluationPage(Struct, frozen=True, kw_only=True):
    """A page of evaluations, newest first."""

    evaluations: list[Evaluation]
    count: int
    total: int
    total_is_capped: bool | UnsetType = UNSET
    """True: there are more than ``total``; counting stopped there."""
    next_cursor: str | None = None


class SentRequest(Struct, frozen=True, kw_only=True):
    """A request as it went out; secrets are `***`."""

    method: str
    url: str
    headers: dict[str, str]
    body: str | None
    body_truncated: bool


class RawAnswer(Struct, frozen=True, kw_only=True):
    """An answer before anything was read from it. A body that broke off or was too large is null."""

    status: int
    headers: dict[str, str]
    body: str | None
    body_truncated: bool
    """The body was longer than what is shown: 100,000 bytes."""


class ShownExchange(Struct, frozen=True, kw_only=True):
    """One request; `answer` is null where none came."""

    request: SentRequest
    answer: RawAnswer | None


class TrialResult(Struct, frozen=True, kw_only=True):
    """What became of one call of the agent. The fields of results have the names that they have in a run."""

    response_status: ResponseStatus
    agent_response: str | None
    agent_response_truncated: bool
    tool_calls: list[ToolCall] | None
    """Null where the answer does not report them; an agent that reports none gives an empty list."""
    tool_calls_omitted: int
    usage: Usage | None
    response_latency_ms: float | None
    error_type: str | None
    error_message: str | None
    timeout_s: float | None
    """What bounded the call; null where the target takes no limit of its own."""
    exchanges: list[ShownExchange]
    """Redirects and polling make more than one; none where the agent is not asked over HTTP."""
    exchanges_omitted: int


class Score(Struct, frozen=True, kw_only=True):
    """What one grader said. There is a value only where there was a pass or a fail."""

    grader_id: str
    grader_name: str
    score_value: float | None
    score_status: Outcome
    rationale: str | None
    details: dict[str, Any]
    error_type: str | None
    error_message: str | None
    latency_ms: float | None


class Result(Struct, frozen=True, kw_only=True):
    """One case of a run, asked once. The texts of the case are those it had then."""

    result_id: str
    test_case_id: str
    repeat: int
    test_case_input: str
    test_case_expected: str | None
    agent_response: str | None
    response_status: ResponseStatus
    response_latency_ms: float | None
    error_message: str | None
    scores: list[Score]
    scores_succeeded: int
    """Passes and fails."""
    scores_failed: int
    """Errors of graders; a failed answer is a score like any other."""
    truncated: bool = False


class ResultPage(Struct, frozen=True, kw_only=True):
    """A page of results; the summary is that of the whole run."""

    evaluation_id: str
    results: list[Result]
    summary: EvaluationSummary
    next_cursor: str | None


class ResultAttempt(Struct, frozen=True, kw_only=True):
    """An answer that was replaced, with the grades it had."""

    attempt: int
    """Counts from 1."""
    response: Response
    grades: dict[str, Grade]


class ResultDetail(Result, frozen=True, kw_only=True):
    """A result with all there is to know of it."""

    evaluation_id: str
    sample: Sample
    response: Response
    submissions: dict[str, str]
    """What each grader read, where that is not the answer itself."""
    grades: dict[str, Grade]
    history: list[ResultAttempt]


class Bin(Struct, frozen=True, kw_only=True):
    """How many values there are from ``low`` to ``high``, both included: as ends of a filter they find exactly those.

    No number lies between the ``high`` of a bin and the ``low`` of the next.
    """

    low: float
    high: float
    count: int


class RunHistograms(Struct, frozen=True, kw_only=True):
    """How scores and latencies are spread over a whole run."""

    evaluation_id: str
    scores: dict[str, list[Bin]]
    """By grader, from 0 to 1; what has no score is not here."""
    latency_ms: list[Bin]
    """Of successful responses; the last bin goes from near the 99th percentile to the longest. Empty: there is none."""


ChangeKind = Literal["improved", "worse", "mixed", "same", "missing", "edited"]


class Comparability(Struct, frozen=True):
    """Whether like would be compared with like. The reasons also tell what else differs."""

    comparable: bool
    reasons: tuple[str, ...]


class GraderDifference(Struct, frozen=True, kw_only=True):
    """What one grader says: candidate minus baseline over the n cases that have a score in both runs.

    With ``noise``, the difference is the mean of the changes that count; the two means are those of the scores.
    """

    difference: float | None
    low: float | None
    high: float | None
    decision: Decision
    n: int
    reasons: tuple[str, ...]
    """Why it is undecided, and what is certain all the same."""
    cases_to_decide: int | None
    """The number of cases in all that settles it 4 times of 5 if both runs are equally good."""
    coverage: float | None
    """The share of the baseline's cases, without edited ones, that have a score in both runs."""
    bounds_low: float | None
    """The difference over all cases of the baseline with each missing score at its worst."""
    bounds_high: float | None
    """The same with each missing score at its best."""
    baseline: float | None
    candidate: float | None
    p_value: float | None
    p_adjusted: float | None
    test: str | None
    """``mcnemar_mid_p``, ``sign_flip_exact`` or ``paired_t``."""
    noise_threshold: float | None
    """A smaller mean difference is what chance makes of changes such as these."""
    noise: float
    """The suite's threshold for this grader: a smaller change of a case counts as same."""
    within_noise: int
    """The cases that count as same only because of it."""
    skewed: bool
    """Whether some changes are so much larger than the others that Student's t is unreliable."""
    largest_drops: tuple[Drop, ...]
    """The cases that fell most, at most 5."""
    improved: int
    worse: int
    same: int
    missing: int
    clusters: int | None = None
    """The clusters of the n cases, which are the unit of the interval; null where no case has one."""


class CaseChange(Struct, frozen=True, kw_only=True):
    """One case. ``mixed``: some graders say better, some worse; ``missing``: no grader scored it in both runs."""

    test_case_id: str
    change: ChangeKind
    changes: dict[str, ChangeKind]
    """The same by grader; a change below the grader's noise is ``same``."""
    baseline: dict[str, float | None]
    """The mean score over the repeats, by grader; null where there is none."""
    candidate: dict[str, float | None]
    input: str | None = None
    """The beginning of what was asked, at most 200 characters, on one line."""
    baseline_output: str | None = None
    """That of the answer at the first repeat; null where there was none."""
    candidate_output: str | None = None


class EvaluationComparison(Struct, frozen=True, kw_only=True):
    """Candidate against baseline. Runs that are not comparable have neither graders nor cases, unless forced."""

    baseline_id: str
    candidate_id: str
    comparability: Comparability
    margin: float
    decision: Decision | None
    sentence: str | None
    """The decision with the graders behind it, and what is known of the others."""
    primary: tuple[str, ...]
    """The graders that decide; any other can only veto, by a significant loss."""
    warnings: tuple[str, ...]
    """What to know of the cases and graders of either run, such as near duplicates without a cluster."""
    graders: dict[str, GraderDifference]
    cases: list[CaseChange]
    case_counts: dict[str, int]
    cases_omitted: int


class EvaluationScore(Struct, frozen=True, kw_only=True):
    """One evaluation by one grader, over the cases that have a score in every evaluation."""

    mean: float | None
    low: float | None
    high: float | None
    rank_best: int | None
    """The best rank that it may have; the same as the worst where it is certain."""
    rank_worst: int | None
    scored: int
    """Of its own cases, how many have a score."""
    total: int


class RankedEvaluation(Struct, frozen=True, kw_only=True):
    """An evaluation of several, and what its own answers cost and took."""

    evaluation_id: str
    name: str
    cost_per_case: float | None
    """What the agent's answer to a case costs; null where the cost of any answer is unknown."""
    cost_unknown: int
    """Answers whose cost is unknown."""
    latency_ms: dict[str, float] | None
    on_front: bool | None
    """Whether no other is as good for less, or better for as much; null where its mean or its cost is unknown."""
    scores: dict[str, EvaluationScore]


class EvaluationPair(Struct, frozen=True, kw_only=True):
    """Candidate minus baseline; the interval holds with 95 % for all pairs together."""

    baseline_id: str
    candidate_id: str
    difference: float
    low: float
    high: float
    p_value: float
    p_adjusted: float
    """By Holm, over all pairs."""
    decision: Decision
    winner_id: str | None
    """The one that is better for certain; null where the two are tied."""


class RankedEvaluations(Struct, frozen=True, kw_only=True):
    """Several evaluations ranked. Those that are not comparable have no scores and no pairs, unless forced."""

    comparability: Comparability
    margin: float
    cases: int
    """The cases that all evaluations have, and that are the same there."""
    left_out: int
    """Cases that some evaluations do not have."""
    edited: tuple[str, ...]
    primary: tuple[str, ...]
    """The graders that decide; the first of them makes the order and the front."""
    noise: dict[str, float]
    """By grader: a smaller change of a case between two evaluations counts as same, in pairs and ranks."""
    warnings: tuple[str, ...]
    """What to know of the cases and graders of the evaluations."""
    best: tuple[str, ...]
    """The evaluations that may be the best: no other is better for certain."""
    sentence: str | None
    evaluations: tuple[RankedEvaluation, ...]
    """The highest mean first."""
    pairs: dict[str, tuple[EvaluationPair, ...]]


class SuiteTrendPoint(Struct, frozen=True, kw_only=True):
    """One evaluation of the series."""

    evaluation_id: str
    name: str
    started_at: str | None
    mean: float | None
    low: float | None
    high: float | None
    scored: int
    total: int
    cost: float | None
    """What the agent's answers cost, as far as that is known; null where nothing is."""
    cost_unknown: int
    """Answers whose cost is unknown, and not in the sum."""
    latency_ms: dict[str, float] | None
    segment: int
    """Means compare only within a segment: a new one begins where the grader changed."""
    changes: tuple[Literal["grader", "cases", "target"], ...]
    """What changed since the one before."""
    reasons: tuple[str, ...]


class SuiteTrend(Struct, frozen=True, kw_only=True):
    """The newest evaluations of a suite by one grader, the oldest first."""

    suite: str
    grader: str
    runs: int
    """All evaluations of the suite that have the grader."""
    points: tuple[SuiteTrendPoint, ...]


_MOST_DIGITS = 9


def result_id(case: str, repeat: int) -> str:
    """Names a result within its run: the same before and after a resume or retry, and safe in a path."""
    return f"{percent_encoded(case, safe='')}~{repeat}"


def read_result_id(text: str) -> list[tuple[str, int]]:
    """The cases and repeats that an id may name, the likeliest first; none where it cannot be an id.

    An id that was decoded once too often on its way, which clients and proxies do, has the case's key as it is.
    """
    case, mark, repeat = text.rpartition("~")
    if not mark or not (repeat.isascii() and repeat.isdigit()) or len(repeat) > _MOST_DIGITS:
        return []
    if str(int(repeat)) != repeat:
        return []
    return [(key, int(repeat)) for key in dict.fromkeys((unquote(case), case))]
