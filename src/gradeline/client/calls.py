"""Every call of the service, told once for both clients.

Each function gives the request and how to read its answer; `Client` and `AsyncClient` have a method of the same name
and parameters that sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import IO, Any, Literal, TypeVar
from uuid import uuid4

from msgspec import UNSET, Struct, UnsetType

from gradeline.client.shapes import (
    Comparison,
    Evaluation,
    Grader,
    Histograms,
    Page,
    Ranking,
    Result,
    ResultDetail,
    Score,
    Status,
    Summary,
    TestCase,
    Trend,
    Tried,
)
from gradeline.client.wire import (
    Answer,
    Body,
    Call,
    Listing,
    Request,
    checked,
    data,
    entries,
    json_request,
    nothing,
    path,
    without,
)

T = TypeVar("T")

CaseFormat = Literal["jsonl", "csv"]
ExportFormat = Literal["json", "csv", "jsonl", "junit", "html", "parquet"]
GraderUse = str | Mapping[str, Any]
"""A grader's id, or ``{"id", "config", "name"}``."""

_CASES = "test-cases"
_CONTENT_TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv"}


class _Imported(Struct):
    imported: int


class _WithSummary(Struct):
    summary: Summary


def create_test_case(
    input: str,  # noqa: A002 - as the service names it
    expected_output: str,
    *,
    description: str | None = None,
    tags: Sequence[str] = (),
) -> Call[TestCase]:
    """Store a test case."""
    fields = {"input": input, "expected_output": expected_output, "description": description, "tags": list(tags)}
    return Call(json_request("POST", path(_CASES), fields), data(TestCase))


def get_test_case(id: str) -> Call[TestCase]:  # noqa: A002 - as the service names it
    """One test case."""
    return Call(_get(path(_CASES, id)), data(TestCase))


def all_test_cases(*, tag: str | None = None, q: str | None = None, limit: int = 1000) -> Listing[TestCase]:
    """All test cases, oldest first; ``tag`` is a part of a tag, ``limit`` how many are fetched at once."""
    return _listing(path(_CASES), entries(TestCase, "test_cases"), tag=tag, q=q, limit=limit)


def update_test_case(
    id: str,  # noqa: A002 - as the service names it
    *,
    input: str | UnsetType = UNSET,  # noqa: A002 - as the service names it
    expected_output: str | UnsetType = UNSET,
    description: str | UnsetType | None = UNSET,
    tags: Sequence[str] | UnsetType | None = UNSET,
) -> Call[TestCase]:
    """Replace what is given; None clears the description and the tags."""
    fields = {"input": input, "expected_output": expected_output, "description": description, "tags": tags}
    return Call(json_request("PUT", path(_CASES, id), without(fields, UNSET)), data(TestCase))


def delete_test_case(id: str) -> Call[None]:  # noqa: A002 - as the service names it
    """Delete a test case; the evaluations that used it keep its texts."""
    return Call(Request("DELETE", path(_CASES, id)), nothing)


def import_test_cases(file: bytes | IO[bytes], format: CaseFormat = "jsonl") -> Call[int]:  # noqa: A002 - the service's
    """Store all test cases of a file (opened in binary mode), or none of them; gives their number."""
    body: Body = file
    request = Request("POST", path(_CASES, "import"), headers={"Content-Type": _CONTENT_TYPES[format]}, body=body)
    return Call(request, lambda answer: data(_Imported)(answer).imported)


def export_test_cases(
    format: CaseFormat = "jsonl",  # noqa: A002 - as the service names it
    *,
    tag: str | None = None,
    q: str | None = None,
) -> Call[bytes]:
    """The test cases as a file."""
    return Call(_get(path(_CASES, "export"), format=format, tag=tag, q=q), _body)


def graders() -> Listing[Grader]:
    """All graders."""
    return _listing(path("graders"), entries(Grader, "graders"))


def get_grader(id: str, *, version: int | None = None) -> Call[Grader]:  # noqa: A002 - as the service names it
    """One grader, or an older version of it."""
    return Call(_get(path("graders", id), version=version), data(Grader))


def create_grader(definition: Mapping[str, Any]) -> Call[Grader]:
    """Store a grader: ``{"id"?, "name", "description"?, "type", "config"}``."""
    return Call(json_request("POST", path("graders"), definition), data(Grader))


def update_grader(id: str, changes: Mapping[str, Any]) -> Call[Grader]:  # noqa: A002 - as the service names it
    """Change a stored grader, which makes a new version of it."""
    return Call(json_request("PUT", path("graders", id), changes), data(Grader))


def delete_grader(id: str) -> Call[None]:  # noqa: A002 - as the service names it
    """Delete a stored grader; evaluations that used it keep it."""
    return Call(Request("DELETE", path("graders", id)), nothing)


def preview_grader(id: str, given: Mapping[str, Any]) -> Call[Score]:  # noqa: A002 - as the service names it
    """Grade a text or a stored result without storing anything.

    ``given`` is ``{"agent_response", "expected_output", "input"?, "config"?}`` or ``{"evaluation_id", "result_id"}``.
    """
    return Call(json_request("POST", path("graders", id, "preview"), given), data(Score))


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
) -> Call[Evaluation]:
    """Start an evaluation; it is answered at once, `wait` waits for its end.

    Either a whole ``suite``, or cases (``test_case_ids`` or ``tag``), an agent (``agent_endpoint_url`` or ``target``)
    and ``grader_ids``. Sent again with the same ``idempotency_key`` (one is made where none is given) it is the same
    evaluation.
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
    return Call(json_request("POST", path("evaluations"), without(fields, None), headers=headers), data(Evaluation))


def try_agent(
    *,
    agent_endpoint_url: str | None = None,
    target: Mapping[str, Any] | None = None,
    input: str | None = None,  # noqa: A002 - as the service names it
    test_case_id: str | None = None,
    timeout_s: float | None = None,
) -> Call[Tried]:
    """Ask an agent once, and see what was sent, what came back and what was read from it; nothing is stored.

    The agent is an ``agent_endpoint_url`` or a ``target`` as `start_evaluation` takes it, the case a text or a stored
    test case. An agent that fails is no exception: ``error_type`` and ``error_message`` say what a run would store.
    """
    fields = {
        "agent_endpoint_url": agent_endpoint_url,
        "target": target,
        "input": input,
        "test_case_id": test_case_id,
        "timeout_s": timeout_s,
    }
    return Call(json_request("POST", path("evaluations", "try"), without(fields, None)), data(Tried))


def get_evaluation(id: str) -> Call[Evaluation]:  # noqa: A002 - as the service names it
    """An evaluation with its progress."""
    return Call(_get(path("evaluations", id)), data(Evaluation))


def evaluations(
    *, status: Status | None = None, tag: str | None = None, q: str | None = None, limit: int = 500
) -> Listing[Evaluation]:
    """All evaluations, newest first; ``limit`` is how many are fetched at once."""
    read = entries(Evaluation, "evaluations")
    return _listing(path("evaluations"), read, status=status, tag=tag, q=q, limit=limit)


def cancel(id: str) -> Call[Evaluation]:  # noqa: A002 - as the service names it
    """Stop an evaluation; what is done stays."""
    return _act(id, "cancel")


def resume(id: str, *, all: bool = False) -> Call[Evaluation]:  # noqa: A002 - as the service names it
    """Continue an evaluation that was cancelled or failed; with ``all`` also ask what an early end left out."""
    if not all:
        return _act(id, "resume")
    return Call(json_request("POST", path("evaluations", id, "resume"), {"all": True}), data(Evaluation))


def retry_failed(id: str) -> Call[Evaluation]:  # noqa: A002 - as the service names it
    """Ask the agent again where its call failed, and the graders where they broke."""
    return _act(id, "retry-failed")


def regrade(id: str, grader_ids: Sequence[GraderUse]) -> Call[Evaluation]:  # noqa: A002 - as the service names it
    """A new evaluation of the same answers by other graders; the agent is not asked."""
    fields = {"grader_ids": list(grader_ids)}
    return Call(json_request("POST", path("evaluations", id, "regrade"), fields), data(Evaluation))


def delete_evaluation(id: str) -> Call[None]:  # noqa: A002 - as the service names it
    """Delete an evaluation and all its results for good."""
    return Call(Request("DELETE", path("evaluations", id)), nothing)


def suite_of(id: str) -> Call[str]:  # noqa: A002 - as the service names it
    """The evaluation's suite as YAML, which the command line can run."""
    return Call(_get(path("evaluations", id, "suite")), lambda answer: _body(answer).decode())


def results(
    id: str,  # noqa: A002 - as the service names it
    *,
    status: Literal["success", "timeout", "error"] | None = None,
    grader: str | None = None,
    outcome: Literal["pass", "fail", "error", "skipped"] | None = None,
    score_min: float | None = None,
    score_max: float | None = None,
    latency_min: float | None = None,
    latency_max: float | None = None,
    tag: str | None = None,
    q: str | None = None,
    limit: int = 1000,
) -> Listing[Result]:
    """The results of an evaluation in the order of its cases; ``limit`` is how many are fetched at once.

    Scores are those of the ``grader``, latencies those of successful responses in milliseconds; both ends are included.
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
    return _listing(path("evaluations", id, "results"), entries(Result, "results"), **filters, limit=limit)


def get_result(id: str, result_id: str) -> Call[ResultDetail]:  # noqa: A002 - as the service names it
    """One result with everything that is stored of it."""
    return Call(_get(path("evaluations", id, "results", result_id)), data(ResultDetail))


def summary(id: str) -> Call[Summary]:  # noqa: A002 - as the service names it
    """An evaluation in numbers."""
    request = _get(path("evaluations", id, "results"), limit=1)
    return Call(request, lambda answer: data(_WithSummary)(answer).summary)


def histograms(id: str) -> Call[Histograms]:  # noqa: A002 - as the service names it
    """How the scores and latencies of an evaluation are spread; the ends of a bin are ends for `results`."""
    return Call(_get(path("evaluations", id, "histograms")), data(Histograms))


def export(id: str, format: ExportFormat = "json") -> Call[bytes]:  # noqa: A002 - as the service names it
    """An evaluation as a file, in memory; `download` writes one of any size to disk."""
    return Call(export_request(id, format), _body)


def compare(baseline: str, candidate: str, *, force: bool = False, margin: float | None = None) -> Call[Comparison]:
    """Is the candidate better than the baseline, worse, or is it undecided?"""
    request = _get(
        path("evaluations", "compare"),
        baseline=baseline,
        candidate=candidate,
        force=True if force else None,
        margin=margin,
    )
    return Call(request, data(Comparison))


def rank(*ids: str, force: bool = False, margin: float | None = None) -> Call[Ranking]:
    """Three or more evaluations ranked on the cases that all of them have, with ties where no difference is certain."""
    request = _get(path("evaluations", "ranking"), ids=",".join(ids), force=True if force else None, margin=margin)
    return Call(request, data(Ranking))


def trend(suite: str, *, grader: str | None = None, last: int | None = None) -> Call[Trend]:
    """The evaluations of one suite over time, the oldest first."""
    return Call(_get(path("evaluations", "trend"), suite=suite, grader=grader, last=last), data(Trend))


def export_request(id: str, format: ExportFormat) -> Request:  # noqa: A002 - as the service names it
    return _get(path("evaluations", id, "export"), format=format)


def events_request(id: str, after: str | None) -> Request:  # noqa: A002 - as the service names it
    headers = {"Accept": "text/event-stream", **({} if after is None else {"Last-Event-ID": after})}
    return _get(path("evaluations", id, "events"))._replace(headers=headers)


def told_by(method: Callable[..., object], make: Callable[..., object]) -> None:
    """Give a client's method the name, the parameters and the text of the call that it sends."""
    wanted = signature(make)
    this = Parameter("self", Parameter.POSITIONAL_ONLY)
    method.__name__, method.__doc__ = make.__name__, make.__doc__
    method.__qualname__, method.__annotations__ = make.__qualname__, make.__annotations__
    gives = str(wanted.return_annotation).removeprefix("Call[").removesuffix("]").replace("Listing[", "iterator of ")
    vars(method)["__signature__"] = wanted.replace(
        parameters=[this, *wanted.parameters.values()], return_annotation=gives
    )


def _get(target: str, **params: object) -> Request:
    return Request("GET", target, params, repeatable=True)


def _act(id: str, act: str) -> Call[Evaluation]:  # noqa: A002 - as the service names it
    return Call(Request("POST", path("evaluations", id, act)), data(Evaluation))


def _listing(target: str, read: Callable[[Answer], Page[T]], **params: object) -> Listing[T]:
    return Listing(lambda cursor: Call(_get(target, **params, cursor=cursor), read))


def _body(answer: Answer) -> bytes:
    return checked(answer).body
