"""Read and write a line of letta-evals' results: one sample with the agent's answer or failure, of any release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec

from gradeline.errors import RESPONSE_POLICY, response_policy
from gradeline.extractors.base import assistant_texts
from gradeline.letta.messages import from_letta, letta_data, letta_state
from gradeline.model import ErrorInfo, Grade, Record, Response, Sample, Trajectory, Usage, clean_data, quote
from gradeline.targets.replay import json_object

Input = str | list[str]

_CRASHED = "Error: "
"""Start of the rationale after a crash, in releases without a field for errors."""
_CACHED_TOKENS = ("cached_tokens", "cache_read_tokens", "cached_input_tokens")
"""Names of the count in ``prompt_tokens_details``, which differ by provider."""


class LettaResult(NamedTuple):
    """A result. ``asked`` is None in releases that store the samples in a separate file."""

    case: str
    model: str | None
    asked: Input | None
    data: Mapping[str, Any]
    cleaned: bool
    """True if characters that cannot be stored were replaced."""

    def response(self) -> Response:
        """The agent's answer or failure; `ValueError` if the line has neither."""
        trajectory = _trajectory(self.data)
        error = _read_error(self.data, trajectory)
        if error is None and trajectory is None:
            raise ValueError("has neither a trajectory nor an error, so what the agent answered is unknown")
        texts = [] if trajectory is None else assistant_texts(trajectory.messages())
        return Response(
            status="success" if error is None else "timeout" if error.type == "timeout" else "error",
            text=(texts[-1] if texts else "") if error is None else None,
            trajectory=trajectory,
            usage=_read_usage(self.data),
            latency_ms=_latency_ms(self.data, failed=error is not None),
            error=error,
            cleaned=self.cleaned,
        )


def read_result(line: bytes) -> LettaResult | None:
    """The result in a line; None for a header or a summary, `ValueError` for anything else."""
    raw: Mapping[str, Any] = json_object(line)
    data: Mapping[str, Any] = clean_data(raw) if b"\\u0000" in line else raw
    cleaned = data is not raw and data != raw
    if data.get("type") in ("header", "summary"):
        return None
    if data.get("type") == "result":
        data = _mapping(data.get("result"))
    sample = _mapping(data.get("sample"))
    case = sample.get("id") if sample else data.get("sample_id")
    if isinstance(case, bool) or not isinstance(case, str | int):
        raise ValueError("is not a result of letta-evals: it has neither sample_id nor sample.id")
    model = data.get("model_handle") or data.get("model_name")
    if not isinstance(model, str | None):
        raise ValueError(f"its model should be a name, got {quote(model)}")
    return LettaResult(str(case), model, _asked(sample), data, cleaned)


def _asked(sample: Mapping[str, Any]) -> Input | None:
    asked = sample.get("input")
    if asked is None or isinstance(asked, str):
        return asked
    if isinstance(asked, list) and all(isinstance(turn, str) for turn in asked):
        return asked
    raise ValueError(f"its sample's input should be a string or a list of strings, got {quote(asked)}")


def _trajectory(data: Mapping[str, Any]) -> Trajectory | None:
    turns = data.get("trajectory")
    if turns is None:
        return None
    if not isinstance(turns, list) or not all(isinstance(turn, list) for turn in turns):
        raise ValueError(f"its trajectory should be a list of turns, each a list of messages, got {quote(turns)}")
    try:
        made = from_letta(turns, data.get("agent_state"))
    except TypeError as error:
        raise ValueError(f"its trajectory is not valid: {error}") from None
    # from_letta does not check every field of a message
    read: Trajectory = msgspec.convert(msgspec.to_builtins(made), Trajectory)
    # only gradeline writes this key, for responses that do not report tool calls
    return msgspec.structs.replace(read, tools_known=False) if data.get("tools_known") is False else read


def _read_error(data: Mapping[str, Any], trajectory: Trajectory | None) -> ErrorInfo | None:
    """The failure of the agent's call. Errors of grading count only if the answer was lost with them."""
    error = _mapping(data.get("error"))
    lost = trajectory is None or not any(trajectory.turns)
    if error:
        category = error.get("category")
        if category == "target" or (lost and category != "extraction"):
            return _failure(str(error.get("exception_type") or ""), str(error.get("message") or ""))
        return None
    rationale = _mapping(data.get("grade")).get("rationale")
    if lost and not data.get("grades") and isinstance(rationale, str) and rationale.startswith(_CRASHED):
        return _failure("", rationale.removeprefix(_CRASHED))
    return None


def _failure(exception: str, message: str) -> ErrorInfo:
    if exception in RESPONSE_POLICY:
        kind = exception  # written by gradeline
    else:
        kind = "timeout" if "Timeout" in exception else "connect" if "Connect" in exception else "bad_response"
        message = ": ".join(part for part in (exception, message) if part)
    return ErrorInfo(kind, message or "letta-evals recorded no reason", response_policy(kind).fault)


def _read_usage(data: Mapping[str, Any]) -> Usage | None:
    """The sum of the agent's usage records, or else letta's sums, in which 0 may mean unknown."""
    listed = data.get("agent_usage")
    records = [_mapping(one) for one in listed] if isinstance(listed, list) else []
    records = [one for one in records if one.get("message_type") == "usage_statistics"]
    sums = _mapping(data.get("usage"))
    # releases before 0.17 had the sums at the top level, and a cost of 0 for unknown prices
    cost = _number(sums.get("cost")) if sums else _number(data.get("cost")) or None
    if records:
        usage = Usage(
            _total([_count(one.get("prompt_tokens")) for one in records]),
            _total([_count(one.get("completion_tokens")) for one in records]),
            _total([_cached_tokens(one) for one in records]),
            cost,
        )
    else:
        names = ("prompt_tokens", "completion_tokens", "cached_input_tokens")
        prompt, completion, cached = (_count((sums or data).get(name)) or None for name in names)
        usage = Usage(prompt, completion, cached, cost)
    return None if usage == Usage() else usage


def _cached_tokens(record: Mapping[str, Any]) -> int | None:
    details = _mapping(record.get("prompt_tokens_details"))
    counts = [_count(record.get("cached_input_tokens")), *(_count(details.get(name)) for name in _CACHED_TOKENS)]
    return next((count for count in counts if count), 0 if 0 in counts else None)


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _latency_ms(data: Mapping[str, Any], *, failed: bool) -> float | None:
    """The agent's latency; for failed calls letta records 0, so the sample's total time is used."""
    timing = _mapping(data.get("timing"))
    candidates = [timing.get("target"), data.get("target_time")]
    if failed:
        candidates += [timing.get("total"), data.get("total_time")]
    seconds = next((found for value in candidates if (found := _number(value))), None)
    return None if seconds is None else round(seconds * 1000, 6)


def _number(value: object) -> float | None:
    """A finite number of at least 0; None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf:
        return float(value)
    return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


REWARD = "reward"
"""The kind of the column of a custom reward function."""

_SAMPLE_FIELDS = (
    "ground_truth",
    "agent_args",
    "rubric_vars",
    "extra_vars",
    "rubric",
    "rubric_path",
    "metadata",
    "tags",
)


def letta_sample(sample: Sample) -> dict[str, Any]:
    """A sample in the form of ``suite.json``. Letta does not accept a rubric's path next to its text."""
    fields = {name: value for name in _SAMPLE_FIELDS if (value := getattr(sample, name))}
    if "rubric" in fields:
        fields.pop("rubric_path", None)
    return {"id": sample.id, "input": sample.input, **fields}


def letta_result(record: Record, model: str, score_key: str | None) -> dict[str, Any]:
    """A record as a result. Its grades are those with a score; ``score_key`` names the column of its reward."""
    response = record.response
    steps = response.steps
    error = _record_error(record)
    result: dict[str, Any] = {
        "sample_id": record.sample.id,
        "model_handle": model,
        "agent_usage": _agent_usage(response),
        "trajectory": letta_data(steps),
        "tools_known": None if steps.tools_known else False,
        "agent_state": None if steps.memory is None else letta_state(steps.memory),
        "submissions": record.submissions,
        "grades": {
            key: _grade(grade)
            for key, grade in record.grades.items()
            if grade.score is not None and grade.kind != REWARD
        },
        "reward": _reward(record.grades.get(score_key)) if score_key is not None and error is None else None,
        "usage": _response_usage(response),
        "timing": _timing(record),
        "error": error,
    }
    return _known(result)


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _grade(grade: Grade) -> dict[str, Any]:
    return _known({"score": grade.score, "rationale": grade.rationale, "metadata": grade.metadata})


def _reward(grade: Grade | None) -> dict[str, Any] | None:
    if grade is None or grade.score is None:
        return None
    return {"score": grade.score, **({"metadata": grade.metadata} if grade.kind == REWARD and grade.metadata else {})}


def _tokens(response: Response) -> dict[str, Any]:
    usage = response.usage
    if usage is None:
        return {}
    names = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cached_tokens,
    }
    return _known(names)


def _agent_usage(response: Response) -> list[dict[str, Any]] | None:
    tokens = _tokens(response)
    return [{"message_type": "usage_statistics", **tokens}] if tokens else None


def _response_usage(response: Response) -> dict[str, Any] | None:
    cost = None if response.usage is None else response.usage.cost
    usage = _tokens(response) if cost is None else {**_tokens(response), "cost": cost}
    return usage or None


def _timing(record: Record) -> dict[str, Any]:
    """In seconds. Letta requires numbers and uses 0 for unknown times."""
    target = (record.response.latency_ms or 0.0) / 1000
    graders = {key: grade.latency_ms / 1000 for key, grade in record.grades.items() if grade.latency_ms is not None}
    timing = {"total": target + sum(graders.values()), "target": target}
    return {**timing, "per_grader": graders} if graders else timing


def _record_error(record: Record) -> dict[str, str] | None:
    """The failed call, or else the first failed grader: letta stores only one error."""
    failed = record.response.error
    if failed is not None:
        return {"category": "target", "exception_type": failed.type, "message": failed.message}
    for key, grade in record.grades.items():
        if grade.error is not None:
            category = "reward" if grade.kind == REWARD else "grading"
            message = f"{key}: {grade.error.message}"
            return {"category": category, "exception_type": grade.error.type, "message": message}
    return None
