"""Records as letta-evals' lines of results, with its names of the fields; what is unknown is left out."""

from __future__ import annotations

from typing import Any

from gradeline.compat.letta_messages import letta_data, letta_state
from gradeline.model import Grade, Record, Response, Sample

REWARD = "reward"
"""The kind of the column that a custom reward function makes."""

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
    """A sample as ``suite.json`` lists it. Letta takes no rubric by path where it has the text."""
    fields = {name: value for name in _SAMPLE_FIELDS if (value := getattr(sample, name))}
    if "rubric" in fields:
        fields.pop("rubric_path", None)
    return {"id": sample.id, "input": sample.input, **fields}


def letta_result(record: Record, model: str, score_key: str | None) -> dict[str, Any]:
    """A record as one result. Only what has a score is among its grades; ``score_key`` names its reward."""
    response = record.response
    steps = response.steps
    error = _error(record)
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
        "usage": _usage(response),
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


def _usage(response: Response) -> dict[str, Any] | None:
    cost = None if response.usage is None else response.usage.cost
    usage = _tokens(response) if cost is None else {**_tokens(response), "cost": cost}
    return usage or None


def _timing(record: Record) -> dict[str, Any]:
    """In seconds. Letta insists on numbers and has 0 where it did not measure."""
    target = (record.response.latency_ms or 0.0) / 1000
    graders = {key: grade.latency_ms / 1000 for key, grade in record.grades.items() if grade.latency_ms is not None}
    timing = {"total": target + sum(graders.values()), "target": target}
    return {**timing, "per_grader": graders} if graders else timing


def _error(record: Record) -> dict[str, str] | None:
    """The failed call, else the first grader that failed: letta has room for one."""
    failed = record.response.error
    if failed is not None:
        return {"category": "target", "exception_type": failed.type, "message": failed.message}
    for key, grade in record.grades.items():
        if grade.error is not None:
            category = "reward" if grade.kind == REWARD else "grading"
            message = f"{key}: {grade.error.message}"
            return {"category": category, "exception_type": grade.error.type, "message": message}
    return None
