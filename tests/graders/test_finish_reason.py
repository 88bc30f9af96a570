"""The grader of the reason why an answer ended."""

from __future__ import annotations

from typing import Any

import pytest

from gradeline import GradeContext, Response, Sample, run_suite
from gradeline.errors import ConfigError
from gradeline.graders import create, run_grader
from gradeline.model import Grade


def graded(reason: str | None, metadata: dict[str, Any] | None = None, **config: Any) -> Grade:
    case = Sample(id=1, input="q", metadata=metadata or {})
    return run_grader(create("finish_reason", config), GradeContext(case, "a", Response(text="a", stop_reason=reason)))


@pytest.mark.parametrize(
    ("reason", "config", "passed"),
    [
        ("stop", {}, True),
        ("end_turn", {}, True),
        ("STOP", {}, True),
        ("length", {}, False),
        ("MAX_TOKENS", {"allowed": ["length"]}, True),
        ("max_tokens", {"allowed": ["Max_Tokens"]}, True),
        ("SAFETY", {"forbidden": ["content_filter", "refusal"]}, False),
        ("length", {"forbidden": ["content_filter", "refusal"]}, True),
        ("length", {"allowed": ["stop", "length"], "forbidden": ["length"]}, False),
        ("abort", {"allowed": ["other"]}, True),
    ],
)
def test_reasons_are_compared_with_the_providers_word_and_its_common_name(
    reason: str, config: dict[str, Any], passed: bool
) -> None:
    assert graded(reason, **config).passed is passed


def test_an_unknown_reason_is_an_error() -> None:
    grade = graded(None)
    assert (grade.outcome, grade.score) == ("error", None)
    assert grade.error is not None
    assert grade.error.type == "missing"


def test_the_allowed_reasons_may_come_from_the_case() -> None:
    assert graded("length", {"ends": "length"}, allowed="$metadata.ends").passed
    assert not graded("length", {"ends": ["stop", "refusal"]}, allowed="$metadata.ends").passed
    missing = graded("length", allowed="$metadata.ends")
    assert missing.error is not None
    assert missing.error.type == "missing"
    with pytest.raises(ConfigError, match=r"config.allowed: expected a list of reasons"):
        create("finish_reason", {"allowed": "stop"})


def test_the_stop_reason_of_an_agent_is_stored_and_graded() -> None:
    def agent(text: str) -> dict[str, Any]:
        return {"text": text, "stop_reason": "length" if text == "long" else "end_turn"}

    result = run_suite(
        {
            "name": "ends",
            "dataset": [{"id": "short", "input": "short"}, {"id": "long", "input": "long"}],
            "target": {"kind": "python", "function": agent},
            "graders": {"ended": {"kind": "finish_reason"}},
        },
        store="memory://",
    )
    records = {record.case: record for record in result.records()}
    assert {case: record.response.stop_reason for case, record in records.items()} == {
        "short": "end_turn",
        "long": "length",
    }
    assert {case: record.grades["ended"].passed for case, record in records.items()} == {"short": True, "long": False}
