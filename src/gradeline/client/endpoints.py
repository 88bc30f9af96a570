"""Every endpoint of the REST API, once for both clients.

Each function returns a request and how to read its response; `Client` and `AsyncClient` have a method of the same name
and parameters that sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import IO, Any, Literal, TypeVar
from uuid import uuid4

from msgspec import UNSET, Struct, UnsetType

from gradeline.client.protocol import (
    ApiCall,
    ApiRequest,
    ApiResponse,
    Body,
    Listing,
    Page,
    api_path,
    drop_values,
    json_request,
    read_data,
    read_nothing,
    read_page,
    require_success,
)
from gradeline.model import TestCase
from gradeline.rest_types import (
    BaselinePage,
    Evaluation,
    EvaluationComparison,
    EvaluationPage,
    EvaluationSummary,
    GraderInfo,
    GraderList,
    ImportedCases,
    NamedBaseline,
    RankedEvaluations,
    Result,
    ResultDetail,
    ResultPage,
    RunHistograms,
    Score,
    SuiteTrend,
    TrialResult,
)

T = TypeVar("T")

CaseFormat = Literal["jsonl", "csv"]
ExportFormat = Literal["json", "csv", "jsonl", "junit", "html", "parquet"]
GraderUse = str | Mapping[str, Any]
"""A grader's id, or ``{"id", "config", "name"}``."""

Status = Literal["pending", "running", "completed", "failed", "cancelled", "interrupted"]

_CASES = "test-cases"
_CONTENT_TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv"}


class _TestCasePage(Struct):
    test_cases: list[TestCase]
    next_cursor: str | None = None


def create_test_case(
    input: str,  # noqa: A002 - as the service names it
    expected_output: str,
    *,
    description: str | None = None,
    tags: Sequence[str] = (),
    checks: Sequence[Mapping[str, Any]] | None = None,
) -> ApiCall[TestCase]:
    """Store a test case; ``checks`` are its own, for a grader of kind checks."""
    fields = {
        "input": input,
        "expected_output": expected_output,
        "description": description,
        "tags": list(tags),
        "checks": checks,
    }
    return ApiCall(json_request("POST", api_path(_CASES), fields), read_data(TestCase))


def get_test_case(id: str) -> ApiCall[TestCase]:  # noqa: A002 - as the service names it
    """Fetch a test case."""
    return ApiCall(_get(api_path(_CASES, id)), read_data(TestCase))


def all_test_cases(*, tag: str | None = None, q: str | None = None, limit: int = 1000) -> Listing[TestCase]:
    """All test cases, oldest first; ``tag`` matches part of a tag, ``limit`` is the page size."""
    return _listing(api_path(_CASES), read_page(_TestCasePage, lambda page: page.test_cases), tag=tag, q=q, limit=limit)


def update_test_case(
    id: str,  # noqa: A002 - as the service names it
    *,
    input: str | UnsetType = UNSET,  # noqa: A002 - as the service names it
    expected_output: str | UnsetType = UNSET,
    description: str | UnsetType | None = UNSET,
    tags: Sequence[str] | UnsetType | None = UNSET,
    checks: Sequence[Mapping[str, Any]] | UnsetType | None = UNSET,
) -> ApiCall[TestCase]:
    """Change the given fields; None clears the description, the tags or the checks."""
    fields = {
        "input": input,
        "expected_output": expected_output,
        "description": description,
        "tags": tags,
        "checks": checks,
    }
    return ApiCall(json_request("PUT", api_path(_CASES, id), drop_values(fields, UNSET)), read_data(TestCase))


def delete_test_case(id: str) -> ApiCall[None]:  # noqa: A002 - as the service names it
    """Delete a test case; evaluations that used it keep a copy."""
    return ApiCall(ApiRequest("DELETE", api_path(_CASES, id)), read_nothing)


def import_test_cases(file: bytes | IO[bytes], format: CaseFormat = "jsonl") -> ApiCall[int]:  # noqa: A002 - the service's
    """Store all test cases of a file opened in binary mode, or none of them; returns their number."""
    body: Body = file
    request = ApiRequest(
        "POST", api_path(_CASES, "import"), headers={"Content-Type": _CONTENT_TYPES[format]}, body=body
    )
    return ApiCall(request, lambda response: read_data(ImportedCases)(response).imported)


def export_test_cases(
    format: CaseFormat = "jsonl",  # noqa: A002 - as the service names it
    *,
    tag: str | None = None,
    q: str | None = None,
) -> ApiCall[bytes]:
    """The test cases as a file."""
    return ApiCall(_get(api_path(_CASES, "export"), format=format, tag=tag, q=q), _body)


def graders() -> Listing[GraderInfo]:
    """All graders."""
    return _listing(api_path("graders"), read_page(GraderList, lambda page: page.graders))


def get_grader(id: str, *, version: int | None = None) -> ApiCall[GraderInfo]:  # noqa: A002 - as the service names it
    """Fetch a grader, or an older version of it."""
    return ApiCall(_get(api_path("graders", id), version=version), read_data(GraderInfo))


def create_grader(definition: Mapping[str, Any]) -> ApiCall[GraderInfo]:
    """Store a grader: ``{"id"?, "name", "description"?, "type", "config"}``."""
    return ApiCall(json_request("POST", api_path("graders"), definition), read_data(GraderInfo))


def update_grader(id: str, changes: Mapping[str, Any]) -> ApiCall[GraderInfo]:  # noqa: A002 - as the service names it
    """Change a stored grader, which creates a new version."""
    return ApiCall(json_request("PUT", api_path("graders", id), changes), read_data(GraderInfo))


def delete_grader(id: str) -> ApiCall[None]:  # noqa: A002 - as the service names it
    """Delete a stored grader; evaluations that used it keep it."""
    return ApiCall(ApiRequest("DELETE", api_path("graders", id)), read_nothing)


def preview_grader(id: str, fields: Mapping[str, Any]) -> ApiCall[Score]:  # noqa: A002 - as the service names it
    """Grade a string or a stored result without storing anything.

    ``fields`` is ``{"agent_response", "expected_output", "input"?, "config"?}`` or ``{"evaluation_id", "result_id"}``.
    """
    return ApiCall(json_request("POST", api_path("graders", id, "preview"), fields), read_data(Score))


def start_evaluation(
    *,
    grader_ids: Sequence[GraderUse] | None = None,
    test_case_ids: Sequence[str] | None = None,
    tag: str | None = None,
    agent_endpoint_url: str | None = None,
    target: Mapping[str, Any] | None = None,
    suite: Mapping[str, Any] | None = None,
    name: str | None = None,
    repeats: int | None = None,
    concurrency: int | None = None,
    timeout_s: float | None = None,
    baseline_id: str | None = None,
    stop_early: bool | None = None,
    idempotency_key: str | None = None,
) -> ApiCall[Evaluation]:
    """Start an evaluation and return at once; `wait` waits for its end.

    Pass a whole ``suite``, or cases (``test_case_ids`` or ``tag``), an agent (``agent_endpoint_url`` or ``target``)
    and ``grader_ids``. A second call with the same ``idempotency_key`` (default: a new one) starts nothing and returns
    the first evaluation.
    """
    fields = {
        "suite": suite,
        "test_case_ids": test_case_ids,
        "tag": tag,
        "agent_endpoint_url": agent_endpoint_url,
        "target": target,
        "grader_ids": grader_ids,
        "name": name,
        "repeats": repeats,
        "concurrency": concurrency,
        "timeout_s": timeout_s,
        "baseline_id": baseline_id,
        "stop_early": stop_early,
    }
    headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
    return ApiCall(
        json_request("POST", api_path("evaluations"), drop_values(fields, None), headers=headers), read_data(Evaluation)
    )


def try_agent(
    *,
    agent_endpoint_url: str | None = None,
    target: Mapping[str, Any] | None = None,
    input: str | None = None,  # noqa: A002 - as the service names it
    test_case_id: str | None = None,
    timeout_s: float | None = None,
) -> ApiCall[TrialResult]:
    """Call an agent once and return the request, the raw response and what was read from it; nothing is stored.

    The agent is an ``agent_endpoint_url`` or a ``target`` as for `start_evaluation`, the input a string or a stored
    test case. A failing agent raises nothing: ``error_type`` and ``error_message`` are what a run would store.
    """
    fields = {
        "agent_endpoint_url": agent_endpoint_url,
        "target": target,
        "input": input,
        "test_case_id": test_case_id,
        "timeout_s": timeout_s,
    }
    return ApiCall(
        json_request("POST", api_path("evaluations", "try"), drop_values(fields, None)), read_data(TrialResult)
    )


def get_evaluation(id: str) -> ApiCall[Evaluation]:  # noqa: A002 - as the service names it
    """Fetch an evaluation with its progress."""
    return ApiCall(_get(api_path("evaluations", id)), read_data(Evaluation))


def evaluations(
    *, status: Status | None = None, tag: str | None = None, q: str | None = None, limit: int = 500
) -> Listing[Evaluation]:
    """All evaluations, newest first; ``limit`` is the page size."""
    read = read_page(EvaluationPage, lambda page: page.evaluations)
    return _listing(api_path("evaluations"), read, status=status, tag=tag, q=q, limit=limit)


def cancel(id: str) -> ApiCall[Evaluation]:  # noqa: A002 - as the service names it
    """Cancel an evaluation; finished results are kept."""
    return _action(id, "cancel")


def resume(id: str, *, all: bool = False) -> ApiCall[Evaluation]:  # noqa: A002 - as the service names it
    """Resume an evaluation that was cancelled or failed; ``all`` includes the cases skipped by early stopping."""
    if not all:
        return _action(id, "resume")
    return ApiCall(json_request("POST", api_path("evaluations", id, "resume"), {"all": True}), read_data(Evaluation))


def retry_failed(id: str) -> ApiCall[Evaluation]:  # noqa: A002 - as the service names it
    """Repeat failed agent calls and failed gradings."""
    return _action(id, "retry-failed")


def regrade(id: str, grader_ids: Sequence[GraderUse]) -> ApiCall[Evaluation]:  # noqa: A002 - as the service names it
    """Grade the stored responses with other graders, as a new evaluation; the agent is not called."""
    fields = {"grader_ids": list(grader_ids)}
    return ApiCall(json_request("POST", api_path("evaluations", id, "regrade"), fields), read_data(Evaluation))


def delete_evaluation(id: str) -> ApiCall[None]:  # noqa: A002 - as the service names it
    """Delete an evaluation and all its results permanently."""
    return ApiCall(ApiRequest("DELETE", api_path("evaluations", id)), read_nothing)


def suite_of(id: str) -> ApiCall[str]:  # noqa: A002 - as the service names it
    """The evaluation's suite as YAML, for the command line."""
    return ApiCall(_get(api_path("evaluations", id, "suite")), lambda response: _body(response).decode())


def results(
    id: str,  # noqa: A002 - as the service names it
    *,
    status: Literal["success", "timeout", "error"] | None = None,
    grader: str | None = None,
    outcome: Literal["pass", "fail", "error", "skipped", "not_applicable"] | None = None,
    score_min: float | None = None,
    score_max: float | None = None,
    latency_min: float | None = None,
    latency_max: float | None = None,
    tag: str | None = None,
    q: str | None = None,
    limit: int = 1000,
) -> Listing[Result]:
    """The results of an evaluation in the order of its cases; ``limit`` is the page size.

    Scores are those of the ``grader``, latencies those of successful responses in milliseconds; bounds are inclusive.
    """
    filters = {
        "status": status,
        "grader": grader,
        "outcome": outcome,
        "score_min": score_min,
        "score_max": score_max,
        "latency_min": latency_min,
        "latency_max": latency_max,
        "tag": tag,
        "q": q,
    }
    read = read_page(ResultPage, lambda page: page.results)
    return _listing(api_path("evaluations", id, "results"), read, **filters, limit=limit)


def get_result(id: str, result_id: str) -> ApiCall[ResultDetail]:  # noqa: A002 - as the service names it
    """Fetch a result with everything stored about it."""
    return ApiCall(_get(api_path("evaluations", id, "results", result_id)), read_data(ResultDetail))


def summary(id: str) -> ApiCall[EvaluationSummary]:  # noqa: A002 - as the service names it
    """Counts, mean scores, pass rates and latencies of an evaluation."""
    request = _get(api_path("evaluations", id, "results"), limit=1)
    return ApiCall(request, lambda response: read_data(ResultPage)(response).summary)


def histograms(id: str) -> ApiCall[RunHistograms]:  # noqa: A002 - as the service names it
    """Histograms of scores and latencies; the bounds of a bin can be passed to `results` as a filter."""
    return ApiCall(_get(api_path("evaluations", id, "histograms")), read_data(RunHistograms))


def export(id: str, format: ExportFormat = "json") -> ApiCall[bytes]:  # noqa: A002 - as the service names it
    """Export an evaluation to memory; use `download` for large ones."""
    return ApiCall(export_request(id, format), _body)


def baselines(*, suite: str | None = None) -> Listing[NamedBaseline]:
    """The baselines with a name, of all suites or of one."""
    read = read_page(BaselinePage, lambda page: page.baselines)
    return _listing(api_path("baselines"), read, suite=suite, limit=1000)


def set_baseline(name: str, evaluation_id: str) -> ApiCall[NamedBaseline]:
    """Make a completed evaluation the baseline of its suite with this name."""
    request = json_request("PUT", api_path("baselines", name), {"evaluation_id": evaluation_id})
    return ApiCall(request._replace(repeatable=True), read_data(NamedBaseline))


def clear_baseline(name: str, *, suite: str | None = None) -> ApiCall[None]:
    """Remove a baseline; ``suite`` is required if several suites have one of this name."""
    return ApiCall(ApiRequest("DELETE", api_path("baselines", name), {"suite": suite}), read_nothing)


def compare(
    baseline: str,
    candidate: str,
    *,
    suite: str | None = None,
    force: bool = False,
    margin: float | None = None,
) -> ApiCall[EvaluationComparison]:
    """Compare two evaluations: is the candidate better, worse, not worse, or is it undecided?

    Each is an id or the name of a baseline, of ``suite`` or else of the candidate's suite.
    """
    request = _get(
        api_path("evaluations", "compare"),
        baseline=baseline,
        candidate=candidate,
        suite=suite,
        force=True if force else None,
        margin=margin,
    )
    return ApiCall(request, read_data(EvaluationComparison))


def rank(*ids: str, force: bool = False, margin: float | None = None) -> ApiCall[RankedEvaluations]:
    """Rank three or more evaluations on the cases they share; differences that are not significant are ties."""
    request = _get(api_path("evaluations", "ranking"), ids=",".join(ids), force=True if force else None, margin=margin)
    return ApiCall(request, read_data(RankedEvaluations))


def trend(suite: str, *, grader: str | None = None, last: int | None = None) -> ApiCall[SuiteTrend]:
    """The evaluations of one suite over time, oldest first."""
    return ApiCall(_get(api_path("evaluations", "trend"), suite=suite, grader=grader, last=last), read_data(SuiteTrend))


def export_request(id: str, format: ExportFormat) -> ApiRequest:  # noqa: A002 - as the service names it
    return _get(api_path("evaluations", id, "export"), format=format)


def events_request(id: str, after: str | None) -> ApiRequest:  # noqa: A002 - as the service names it
    headers = {"Accept": "text/event-stream", **({} if after is None else {"Last-Event-ID": after})}
    return _get(api_path("evaluations", id, "events"))._replace(headers=headers)


def copy_signature(method: Callable[..., object], make: Callable[..., object]) -> None:
    """Give a client's method the name, signature and docstring of its endpoint."""
    endpoint = signature(make)
    this = Parameter("self", Parameter.POSITIONAL_ONLY)
    method.__name__, method.__doc__ = make.__name__, make.__doc__
    method.__qualname__, method.__annotations__ = make.__qualname__, make.__annotations__
    returns = str(endpoint.return_annotation).removeprefix("ApiCall[").removesuffix("]")
    vars(method)["__signature__"] = endpoint.replace(
        parameters=[this, *endpoint.parameters.values()], return_annotation=returns.replace("Listing[", "iterator of ")
    )


def _get(target: str, **params: object) -> ApiRequest:
    return ApiRequest("GET", target, params, repeatable=True)


def _action(id: str, action: str) -> ApiCall[Evaluation]:  # noqa: A002 - as the service names it
    return ApiCall(ApiRequest("POST", api_path("evaluations", id, action)), read_data(Evaluation))


def _listing(target: str, read: Callable[[ApiResponse], Page[T]], **params: object) -> Listing[T]:
    return Listing(lambda cursor: ApiCall(_get(target, **params, cursor=cursor), read))


def _body(response: ApiResponse) -> bytes:
    return require_success(response).body
