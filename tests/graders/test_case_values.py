"""References to values of a case in the options of graders."""

from __future__ import annotations

from typing import Any

import pytest

from gradeline import Sample
from gradeline.errors import MissingDataError
from gradeline.graders.case_values import case_value, is_reference
from gradeline.model import GradeContext


def value(reference: str, **case: Any) -> object:
    return case_value(reference, GradeContext(Sample(0, **{"input": "q", **case}), ""), "value")


@pytest.mark.parametrize(
    ("reference", "case", "expected"),
    [
        ("$input", {"input": ["a", "b"]}, "a\nb"),
        ("$expected", {"input": ["a", "b"], "ground_truth": ["1", "2"]}, "1\n2"),
        ("$ground_truth", {"input": ["a", "b"], "ground_truth": ["1", "2"]}, ["1", "2"]),
        ("$ground_truth.1", {"input": ["a", "b"], "ground_truth": ["1", "2"]}, "2"),
        ("$ground_truth.total", {"ground_truth": '{"total": 5}'}, 5),
        ("$metadata.calls", {"metadata": {"calls": [{"name": "f"}]}}, [{"name": "f"}]),
        ("$metadata.calls.0.name", {"metadata": {"calls": [{"name": "f"}]}}, "f"),
        ("$metadata.a.b", {"metadata": {"a.b": 1, "a": {"b": 2}}}, 1),
        ("$metadata.none", {"metadata": {"none": None}}, None),
    ],
)
def test_the_value_comes_from_the_case(reference: str, case: dict[str, Any], expected: object) -> None:
    assert is_reference(reference)
    assert value(reference, **case) == expected


@pytest.mark.parametrize(
    ("reference", "case", "message"),
    [
        ("$expected", {}, "value: $expected is absent; the case has no ground_truth"),
        ("$ground_truth.total", {}, "value: $ground_truth.total is absent; the case has no ground_truth"),
        ("$ground_truth.total", {"ground_truth": "5"}, "value: $ground_truth.total is absent; the ground_truth is 5"),
        ("$ground_truth.total", {"ground_truth": "{"}, "value: $ground_truth.total is absent; the ground_truth is not"),
        ("$metadata.x", {}, "value: $metadata.x is absent; the case's metadata keys are none"),
        ("$metadata.a.2", {"metadata": {"a": [1]}}, "value: $metadata.a.2 is absent; the case's metadata keys are 'a'"),
        ("$metadata.a.-1", {"metadata": {"a": [1]}}, "value: $metadata.a.-1 is absent"),
        ("$metadata.a.b", {"metadata": {"a": "b"}}, "value: $metadata.a.b is absent"),
    ],
)
def test_an_absent_value_is_missing(reference: str, case: dict[str, Any], message: str) -> None:
    with pytest.raises(MissingDataError) as caught:
        value(reference, **case)
    assert str(caught.value).startswith(message)
    assert caught.value.type == "missing"


@pytest.mark.parametrize("text", ["$", "$metadata", "$metadata.", "$ground_truth.", "$price", "metadata.x", 5, None])
def test_other_values_are_literals(text: object) -> None:
    assert not is_reference(text)
