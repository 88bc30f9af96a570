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
from gradeline.model.calibration import Calibration, JudgeState
from gradeline.model.observation import CalibrationState
from gradeline.model.probe import ProbeFinding
from gradeline.model.response import ResponseStatus
from gradeline.verdict import OrderFinding, SelectiveFinding
from gradeline.verdict.corrected import CorrectedRate
from gradeline.verdict.corrected_difference import CorrectedDifference
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
    """A time since the epoch as a string that sorts by time."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


GraderSource = Literal["built-in", "stored", "python"]


class GraderInfo(Struct, frozen=True, kw_only=True):
    """A grader. One with the status ``error`` cannot be used, for the reason in ``error``."""

    id: str
    name: str
    description: str | None
    type: str
    config_schema: dict[str, Any]
    scoring_guide: str
    default_extractor: str
    """The extractor that is used if a suite names none."""
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
    """The progress of a run in results, one for each case and repeat."""

    total: int | None
    answered: int
    graded: int
    errors: int
    """Calls of the agent that failed."""


class Figure(Struct, frozen=True):
    """A number of one grader with its 95 % interval, the number of scores, and the number of results."""

    value: float | None
    low: float | None
    high: float | None
    scored: int
    total: int


class Coverage(Struct, frozen=True):
    """The share of results with a score."""

    scored: int
    total: int
    share: float | None


class EvaluationSummary(Struct, frozen=True, kw_only=True):
    """The summary of a run. Latencies are those of successful responses."""

    total_results: int
    successful_responses: int
    failed_responses: int
    timeout_responses: int
    grader_pass_counts: dict[str, int]
    grader_fail_counts: dict[str, int]
    grader_error_counts: dict[str, int]
    grader_skipped_counts: dict[str, int]
    grader_not_applicable_counts: dict[str, int]
    """Grades of cases to which the grader does not apply; they are not in its coverage."""
    average_scores: dict[str, Figure]
    pass_rates: dict[str, Figure]
    average_latency_ms: float | None
    p50_latency_ms: float | None
    p95_latency_ms: float | None
    p99_latency_ms: float | None
    coverage: dict[str, Coverage]
    orders: dict[str, OrderFinding]
    """For each judge that compares two responses in both orders, how often the order changed the verdict."""
    sentence: str
    clusters: int | None = None
    """Number of clusters of the cases; null if no case has one. Intervals are over clusters."""
    calibration: dict[str, JudgeState] = {}
    """Whether the judge of each grader that has one is calibrated, and why."""
    corrected: dict[str, CorrectedRate] = {}
    """The pass rate corrected by labels, for each grader with labels; without enough of them `refusal` says why not."""
    corrected_means: dict[str, CorrectedRate] = {}
    """The mean score corrected by labels with a score."""
    selective: dict[str, SelectiveFinding] = {}
    """What judges decided that decide only what they are sure of."""
    probes: dict[str, tuple[ProbeFinding, ...]] = {}
    """What probes found of the judges."""


class JudgeReport(Struct, frozen=True, kw_only=True):
    """The state of a judge, why, and the calibration that it follows from; null if it was never calibrated."""

    state: CalibrationState
    reason: str
    calibration: Calibration | None


class RunCalibration(Struct, frozen=True, kw_only=True):
    """The state of each judge of a run, by grader; empty if no grader has a judge."""

    evaluation_id: str
    graders: dict[str, JudgeReport]


class JudgePage(Struct, frozen=True, kw_only=True):
    """A page of judges that were calibrated, the latest calibration first."""

    judges: list[JudgeReport]
    count: int
    total: int
    next_cursor: str | None = None


class EarlyStop(Struct, frozen=True):
    """The look at which a run ended early, after ``n`` of the ``of`` cases that it shares with its baseline."""

    look: int
    n: int
    of: int


class Evaluation(Struct, frozen=True, kw_only=True):
    """A run: the request that started it, and its state."""

    id: str
    name: str
    status: str
    agent_endpoint_url: str | None
    target: dict[str, Any]
    variant: str | UnsetType = UNSET
    """The variant of its suite that the target is, if the suite has several."""
    test_case_ids: list[str] | None
    """As in the request; null if the cases were chosen otherwise, and in lists."""
    tag: str | None
    grader_ids: list[str]
    repeats: int
    concurrency: int | None
    timeout_s: float | None
    baseline_id: str | None
    stop_early: bool = False
    """Whether it ends as soon as its comparison with the baseline is decided."""
    stopped: EarlyStop | None = None
    """Where it ended early; null if it did not."""
    calls_saved: int = 0
    """Calls of the agent that early stopping skipped; `resume` with `all` makes them."""
    warnings: tuple[str, ...] = ()
    """Warnings about its suite and its cases, such as near duplicates without a cluster."""
    started_at: str | None
    completed_at: str | None
    result_count: int
    error_message: str | None
    group: str | None
    parent: str | None
    baselines: tuple[str, ...] = ()
    """The names under which it is a baseline of its suite."""
    pass_rates: dict[str, Figure] | UnsetType = UNSET
    """In lists: the pass rate by grader, without an interval if cases are repeated."""
    progress: EvaluationProgress | UnsetType = UNSET
    held_by_service: bool | UnsetType = UNSET
    """The service executes the run, or resumes it itself when it is interrupted; not in lists."""
    verdict: dict[str, Any] | UnsetType | None = UNSET
    """By the suite's gate, once the run is completed."""
    comparison: dict[str, Any] | UnsetType | None = UNSET
    """With ``baseline_id``, once the run is completed."""

    @property
    def ended(self) -> bool:
        """Whether its state is final; an interrupted run of the command line requires ``gradeline resume``."""
        if self.status == "interrupted":
            return self.held_by_service is False
        return self.status in ("completed", "failed", "cancelled")


class NamedBaseline(Struct, frozen=True, kw_only=True):
    """A name for the evaluation of a suite that others are compared with."""

    name: str
    suite: str
    evaluation_id: str
    set_by: str
    """The id of the key; `local` without one, and the name of a user of the command line."""
    set_at: str


class BaselinePage(Struct, frozen=True, kw_only=True):
    """A page of the baselines, by suite and name."""

    baselines: list[NamedBaseline]
    count: int
    next_cursor: str | None = None


class RunUpload(Struct, frozen=True, kw_only=True):
    """The state of a run that is uploaded in parts."""

    run_id: str
    digest: str
    """Digest of the whole run, as the sender computed it."""
    cases: int
    """Number of cases of the run."""
    received: int
    """Number of cases that are stored: the next part starts with this case."""
    completed: bool
    """All cases are stored and the digest is right: the run is listed as it was sent."""


class RunCopy(Struct, frozen=True, kw_only=True):
    """A page of a run as another store can keep it."""

    run: dict[str, Any]
    """The run itself, on every page."""
    cases: list[str]
    """Its cases as JSON, each with its responses, grades and labels."""
    next_cursor: str | None = None


class EvaluationPage(Struct, frozen=True, kw_only=True):
    """A page of evaluations, newest first."""

    evaluations: list[Evaluation]
    count: int
    total: int
    total_is_capped: bool | UnsetType = UNSET
    """True: there are more than ``total``; counting stopped there."""
    next_cursor: str | None = None


class SentRequest(Struct, frozen=True, kw_only=True):
    """A request as it was sent; secrets are `***`."""

    method: str
    url: str
    headers: dict[str, str]
    body: str | None
    body_truncated: bool


class RawAnswer(Struct, frozen=True, kw_only=True):
    """A response as it was received. A body that was incomplete or too large is null."""

    status: int
    headers: dict[str, str]
    body: str | None
    body_truncated: bool
    """The body was cut at 100,000 bytes."""


class ShownExchange(Struct, frozen=True, kw_only=True):
    """One request and its response; `answer` is null if there was none."""

    request: SentRequest
    answer: RawAnswer | None


class TrialResult(Struct, frozen=True, kw_only=True):
    """The result of one call of an agent. Fields have the same names as in the results of a run."""

    response_status: ResponseStatus
    agent_response: str | None
    agent_response_truncated: bool
    tool_calls: list[ToolCall] | None
    """Null if the response does not report tool calls; empty if it reports none."""
    tool_calls_omitted: int
    usage: Usage | None
    response_latency_ms: float | None
    error_type: str | None
    error_message: str | None
    timeout_s: float | None
    """The timeout of the call; null if the target has none."""
    exchanges: list[ShownExchange]
    """Several with redirects and polling; empty if the agent is not called over HTTP."""
    exchanges_omitted: int


class Score(Struct, frozen=True, kw_only=True):
    """The grade by one grader. It has a value only for a pass or a fail."""

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
    """The result of one repeat of a case, with the texts of the case at that time."""

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
    """Errors of graders; a fail is a score."""
    truncated: bool = False


class ResultPage(Struct, frozen=True, kw_only=True):
    """A page of results; the summary is that of the whole run."""

    evaluation_id: str
    results: list[Result]
    summary: EvaluationSummary
    next_cursor: str | None


class ResultAttempt(Struct, frozen=True, kw_only=True):
    """A response that was replaced, with its grades."""

    attempt: int
    """Counts from 1."""
    response: Response
    grades: dict[str, Grade]


class ResultDetail(Result, frozen=True, kw_only=True):
    """A result with everything that is stored about it."""

    evaluation_id: str
    sample: Sample
    response: Response
    submissions: dict[str, str]
    """The submission by grader, if it is not the response itself."""
    grades: dict[str, Grade]
    history: list[ResultAttempt]


class Bin(Struct, frozen=True, kw_only=True):
    """The number of values from ``low`` to ``high``, both included: as bounds of a filter they find exactly these.

    No number lies between the ``high`` of a bin and the ``low`` of the next.
    """

    low: float
    high: float
    count: int


class RunHistograms(Struct, frozen=True, kw_only=True):
    """Histograms of the scores and the latencies of a run."""

    evaluation_id: str
    scores: dict[str, list[Bin]]
    """By grader, from 0 to 1, without results that have no score."""
    latency_ms: list[Bin]
    """Of successful responses, or empty; the last bin extends from near the 99th percentile to the maximum."""


ChangeKind = Literal["improved", "worse", "mixed", "same", "missing", "not_applicable", "edited"]


class Comparability(Struct, frozen=True):
    """Whether the runs are comparable, and all differences that matter."""

    comparable: bool
    reasons: tuple[str, ...]


class GraderDifference(Struct, frozen=True, kw_only=True):
    """The difference by one grader: candidate minus baseline over the n cases with a score in both runs.

    With ``noise``, the difference is the mean of the changes that count; the two means are those of the scores.
    """

    difference: float | None
    low: float | None
    high: float | None
    decision: Decision
    n: int
    reasons: tuple[str, ...]
    """Why it is undecided, and what is certain nevertheless."""
    cases_to_decide: int | None
    """The total number of cases that decides it with 80 % power if both runs are equally good."""
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
    """Mean differences below this are within chance for changes such as these."""
    noise: float
    """The suite's threshold for this grader: a smaller change of a case counts as same."""
    within_noise: int
    """The cases that count as same only because of it."""
    skewed: bool
    """Whether some changes are so much larger than the others that Student's t is unreliable."""
    largest_drops: tuple[Drop, ...]
    """The cases with the largest drops, at most 5."""
    improved: int
    worse: int
    same: int
    missing: int
    clusters: int | None = None
    """The clusters of the n cases, which are the unit of the interval; null if no case has one."""
    corrected: CorrectedDifference | None = None
    """The difference corrected by labels of both runs; null without any. Where it has an estimate, that decides."""


class CaseChange(Struct, frozen=True, kw_only=True):
    """One case. ``mixed``: better by some graders, worse by others; ``missing``: no grader scored it in both runs."""

    test_case_id: str
    change: ChangeKind
    changes: dict[str, ChangeKind]
    """The same by grader; a change below the grader's noise is ``same``."""
    baseline: dict[str, float | None]
    """The mean score over the repeats, by grader; null if there is none."""
    candidate: dict[str, float | None]
    input: str | None = None
    """The beginning of the input, at most 200 characters on one line."""
    baseline_output: str | None = None
    """That of the response at the first repeat; null if there is none."""
    candidate_output: str | None = None


class EvaluationComparison(Struct, frozen=True, kw_only=True):
    """The comparison of a candidate with a baseline. Without `force`, runs that are not comparable have neither graders
    nor cases."""

    baseline_id: str
    candidate_id: str
    comparability: Comparability
    margin: float
    decision: Decision | None
    sentence: str | None
    """The decision with the graders that made it, and the results of the others."""
    primary: tuple[str, ...]
    """The graders that decide; another one can only veto, by a significant loss."""
    warnings: tuple[str, ...]
    """Warnings about the cases and graders of either run, such as near duplicates without a cluster."""
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
    """The best possible rank; equal to the worst if the rank is certain."""
    rank_worst: int | None
    scored: int
    """Number of its own cases with a score."""
    total: int


class RankedEvaluation(Struct, frozen=True, kw_only=True):
    """One of the ranked evaluations, with the cost and the latency of its responses."""

    evaluation_id: str
    name: str
    cost_per_case: float | None
    """The mean cost of a case; null if the cost of any response is unknown."""
    cost_unknown: int
    """Responses with unknown cost."""
    latency_ms: dict[str, float] | None
    on_front: bool | None
    """Whether it is on the Pareto front of mean score and cost; null if one of them is unknown."""
    scores: dict[str, EvaluationScore]


class EvaluationPair(Struct, frozen=True, kw_only=True):
    """The difference of a pair, candidate minus baseline, with a 95 % interval that holds for all pairs together."""

    baseline_id: str
    candidate_id: str
    difference: float
    low: float
    high: float
    p_value: float
    p_adjusted: float
    """Adjusted by Holm's method over all pairs."""
    decision: Decision
    winner_id: str | None
    """The evaluation that is certainly better; null for a tie."""


class RankedEvaluations(Struct, frozen=True, kw_only=True):
    """The ranking of several evaluations; those that are not comparable have no scores and no pairs without `force`."""

    comparability: Comparability
    margin: float
    cases: int
    """Number of cases that are the same in all evaluations."""
    left_out: int
    """Number of cases that some evaluations do not have."""
    edited: tuple[str, ...]
    primary: tuple[str, ...]
    """The graders that decide; the first one determines the order and the front."""
    noise: dict[str, float]
    """By grader: a smaller change of a case between two evaluations counts as same, in pairs and ranks."""
    warnings: tuple[str, ...]
    """Warnings about the cases and graders of the evaluations."""
    best: tuple[str, ...]
    """The evaluations that may be the best: none is certainly better."""
    sentence: str | None
    evaluations: tuple[RankedEvaluation, ...]
    """Sorted by mean, highest first."""
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
    """The known cost of the responses; null if none is known."""
    cost_unknown: int
    """Responses with unknown cost, which are not in the sum."""
    latency_ms: dict[str, float] | None
    segment: int
    """Means are comparable only within a segment; a new one starts when the grader changes or its judge drifts."""
    changes: tuple[Literal["grader", "judge", "cases", "target"], ...]
    """What changed since the previous evaluation."""
    reasons: tuple[str, ...]


class SuiteTrend(Struct, frozen=True, kw_only=True):
    """The newest evaluations of a suite by one grader, oldest first."""

    suite: str
    grader: str
    runs: int
    """Number of evaluations of the suite with the grader."""
    points: tuple[SuiteTrendPoint, ...]


_MOST_DIGITS = 9


def result_id(case: str, repeat: int) -> str:
    """The id of a result in its run; it does not change with a resume or a retry, and is safe in a path."""
    return f"{percent_encoded(case, safe='')}~{repeat}"


def read_result_id(text: str) -> list[tuple[str, int]]:
    """The cases and repeats that an id may stand for, most likely first; empty for an invalid id.

    Some clients and proxies decode an id once too often, so that it contains the case's key unencoded.
    """
    case, mark, repeat = text.rpartition("~")
    if not mark or not (repeat.isascii() and repeat.isdigit()) or len(repeat) > _MOST_DIGITS:
        return []
    if str(int(repeat)) != repeat:
        return []
    return [(key, int(repeat)) for key in dict.fromkeys((unquote(case), case))]
