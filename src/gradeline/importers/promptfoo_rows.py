"""A row of promptfoo's results: the test, the response, the verdicts of assertions as grades."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple, TypeGuard

from gradeline.errors import AgentError, Fault
from gradeline.extractors.base import compact_json
from gradeline.importers.grades import imported_grade, not_graded
from gradeline.importers.promptfoo_tests import PromptfooTest, csv_test
from gradeline.importers.report import ImportReport
from gradeline.model import (
    ErrorInfo,
    Grade,
    Message,
    Response,
    RunGrader,
    Trajectory,
    Usage,
    clean_data,
    clean_text,
    quote,
)
from gradeline.model.fingerprint import fingerprint
from gradeline.targets.answer_values import call_entries, tool_calls

OVERALL = "promptfoo"
"""The grader with the verdict of the whole test."""
_ERROR = 2
"""``failureReason`` of a call that failed."""
_RUNTIME_VARS = frozenset(("_conversation", "sessionId"))
"""Variables that promptfoo adds when it runs."""


class ResultRow(NamedTuple):
    """A row with its place."""

    place: str
    data: Mapping[str, Any]


class VerdictOfAssertion(NamedTuple):
    """The verdict of an assertion."""

    column: str
    result: Mapping[str, Any]


def test_of(row: ResultRow) -> PromptfooTest:
    """The test of a row; a test without variables of its own has those of the row."""
    test = row.data.get("testCase")
    data = test if isinstance(test, Mapping) else {}
    written = next((one for one in (row.data.get("vars"), data.get("vars")) if isinstance(one, Mapping)), {})
    assertions, metadata, written_options = data.get("assert"), data.get("metadata"), data.get("options")
    options = dict(written_options) if isinstance(written_options, Mapping) else {}
    for done in ("transform", "postprocess"):  # the recorded output is that after them
        options.pop(done, None)
    threshold = data.get("threshold")
    if not isinstance(assertions, list) and any(str(name).startswith("__expected") for name in written):
        # before 2024 the assertions of a CSV file were among the variables
        cells = {str(name): value for name, value in written.items() if isinstance(value, str)}
        assertions = csv_test(row.place, cells, ImportReport("", ""))["assert"]
    return PromptfooTest(
        place=row.place,
        description=str(data["description"]) if data.get("description") else None,
        variables={str(name): value for name, value in written.items() if not _is_special(str(name))},
        assertions=assertions if isinstance(assertions, list) else [],
        options=options,
        threshold=threshold if is_number(threshold) else None,
        metadata=metadata if isinstance(metadata, Mapping) else {},
    )


def _is_special(name: str) -> bool:
    return name in _RUNTIME_VARS or name.startswith("__")


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def provider_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """The id of a row's provider, and its label."""
    provider = row.get("provider")
    if isinstance(provider, Mapping):
        return str(provider.get("id") or "provider"), str(provider.get("label") or "")
    return str(provider or "provider"), ""


def run_key(row: Mapping[str, Any]) -> str:
    """What results of one run have in common: the prompt and the provider."""
    prompt = row.get("prompt")
    named = prompt.get("label", prompt.get("display")) if isinstance(prompt, Mapping) else None
    return fingerprint(row.get("promptIdx", str(named)), *provider_of(row))


def all_components(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The verdicts of assertions, with those in sets."""
    grading = row.get("gradingResult")
    pending = [grading.get("componentResults")] if isinstance(grading, Mapping) else []
    while pending:
        found = pending.pop()
        for one in found if isinstance(found, list) else []:
            if isinstance(one, Mapping):
                yield one
                if len(pending) < 1_000:
                    pending.append(one.get("componentResults"))


def _assertion_of(component: Mapping[str, Any]) -> Mapping[str, Any]:
    found = component.get("assertion")
    return found if isinstance(found, Mapping) else {}


def type_of(component: Mapping[str, Any]) -> str:
    return str(_assertion_of(component).get("type") or "assert-set")


def components_of(row: Mapping[str, Any]) -> Iterator[VerdictOfAssertion]:
    """The verdicts by their column: the metric of the assertion, else its type; the second of a name is ``name-2``."""
    seen: Counter[str] = Counter({OVERALL: 1})
    for component in all_components(row):
        kind = type_of(component)
        if kind == "human":
            continue
        base = clean_text(" ".join(str(_assertion_of(component).get("metric") or kind).split())).text[:60]
        seen[base] += 1
        yield VerdictOfAssertion(base if seen[base] == 1 else f"{base}-{seen[base]}", component)


def derived_scores(row: Mapping[str, Any]) -> list[str]:
    """The names of scores that are not metrics of assertions."""
    named = row.get("namedScores")
    metrics = {str(_assertion_of(one).get("metric")) for one in all_components(row)}
    return [str(name) for name in list(named)[:100] if str(name) not in metrics] if isinstance(named, Mapping) else []


def component_grade(grader: RunGrader, result: Mapping[str, Any]) -> Grade:
    metadata = result.get("metadata")
    data: dict[str, Any] = {"imported": "promptfoo"}
    reason = result.get("reason")
    failed = metadata.get("graderError") if isinstance(metadata, Mapping) else None
    if failed:
        missing = f"promptfoo's grader failed: {quote(failed if failed is not True else reason, 200)}"
        return imported_grade(grader, None, metadata=data, missing=missing)
    assertion = _assertion_of(result)
    if assertion:
        data["assertion"] = clean_data({key: assertion[key] for key in ("type", "value", "weight") if key in assertion})
    score, passed = result.get("score"), result.get("pass")
    return imported_grade(
        grader,
        float(score) if is_number(score) else None,
        passed=passed if isinstance(passed, bool) else None,
        rationale=None if reason is None else str(reason),
        metadata=data,
    )


def overall_grade(
    grader: RunGrader, row: Mapping[str, Any], components: Sequence[VerdictOfAssertion], *, judged: bool
) -> Grade:
    """The verdict of the test; where a person replaced it, computed from the assertions again."""
    grading = row.get("gradingResult")
    result = grading if isinstance(grading, Mapping) else {}
    if not judged:
        data = {"score": row.get("score"), "pass": row.get("success"), "reason": result.get("reason")}
        own = {key: value for key, value in result.items() if key in ("score", "pass", "metadata")}
        return component_grade(grader, {**data, **own})
    parts = [component.result for component in components if is_number(component.result.get("score"))]
    weights = [weight if is_number(weight := _assertion_of(part).get("weight", 1)) else 1 for part in parts]
    if not parts or sum(weights) <= 0:
        return not_graded(grader)
    score = sum(part["score"] * weight for part, weight in zip(parts, weights, strict=True)) / sum(weights)
    test = row.get("testCase")
    least = test.get("threshold") if isinstance(test, Mapping) else None
    passed = score >= least if is_number(least) else all(part.get("pass") is True for part in parts)
    reason = "computed from the assertions, because a person's verdict replaced promptfoo's"
    return component_grade(grader, {"score": score, "pass": passed, "reason": reason})


def response_of(row: Mapping[str, Any]) -> Response:
    written = row.get("response")
    response = written if isinstance(written, Mapping) else {}
    latency = next((one for one in (row.get("latencyMs"), response.get("latencyMs")) if is_number(one)), None)
    usage = _usage(row, response)
    if row.get("failureReason") == _ERROR or response.get("error") or (not response and row.get("error")):
        message = clean_text(str(response.get("error") or row.get("error") or "the call failed")).text
        error = ErrorInfo("agent_error", message[:10_000], Fault.AGENT)
        return Response(status="error", error=error, usage=usage, latency_ms=latency)
    output = response.get("output")
    text = output if isinstance(output, str) else "" if output is None else compact_json(clean_data(output))
    clean = clean_text(text)
    reason = response.get("finishReason")
    return Response(
        text=clean.text,
        trajectory=_trajectory(output, clean.text),
        usage=usage,
        latency_ms=latency,
        cleaned=clean.changed,
        stop_reason=clean_text(reason).text if isinstance(reason, str) else None,
    )


def _usage(row: Mapping[str, Any], response: Mapping[str, Any]) -> Usage | None:
    tokens = response.get("tokenUsage")
    tokens = tokens if isinstance(tokens, Mapping) else {}
    sent, received, cached = (_count(tokens.get(key)) for key in ("prompt", "completion", "cached"))
    cost = next((one for one in (response.get("cost"), row.get("cost")) if is_number(one) and one >= 0), None)
    usage = Usage(sent, received, cached, None if cost is None else float(cost))
    return None if usage == Usage() else usage


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _trajectory(output: object, text: str) -> Trajectory | None:
    """The tool calls of an output that is a list of them, or an object with ``tool_calls``."""
    calls = output.get("tool_calls") if isinstance(output, Mapping) else output
    if not isinstance(calls, list) or not calls:
        return None
    if not all(isinstance(one, Mapping) and isinstance(one.get("function"), Mapping) for one in calls):
        return None
    try:
        found = tool_calls(call_entries(calls))
    except AgentError:
        return None
    return None if not found else Trajectory(((Message("assistant", text, found),),))
