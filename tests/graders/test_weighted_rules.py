"""Weights of rules: groups with a share of the score, and rules that only measure."""

from __future__ import annotations

from typing import Any

import pytest

from gradeline.errors import ConfigError
from gradeline.graders import create, grade

YES = {"condition": "contains", "value": "yes"}
NO = {"condition": "contains", "value": "no"}


def graded(*rules: dict[str, Any], **config: Any) -> tuple[float | None, bool | None]:
    result = grade("custom-rules", "yes", config={"rules": list(rules), **config})
    return result.score, result.passed


def test_a_weighted_group_counts_with_its_share() -> None:
    group = {"weighted": [{**YES, "weight": 3}, NO], "threshold": 0.7}
    assert graded(group) == (0.75, True)
    assert graded({**group, "threshold": 0.8}) == (0.75, False)
    assert graded({**group, "weight": 1}, {**YES, "weight": 3}) == (0.9375, True)


def test_a_weighted_group_without_threshold_needs_every_rule() -> None:
    assert graded({"weighted": [{**YES, "weight": 3}, NO]}) == (0.75, False)
    assert graded({"weighted": [YES, {**NO, "weight": 0}]}) == (1.0, True)


def test_weighted_groups_nest_and_negate() -> None:
    half = {"weighted": [YES, NO], "threshold": 0.5}
    assert graded({"weighted": [half, YES], "threshold": 0.75}) == (0.75, True)
    assert graded({**half, "negate": True}) == (0.5, False)
    assert graded({"all": [half, YES]}) == (1.0, True)
    assert graded({"weighted": [YES, {**NO, "required": True}], "threshold": 0.0}) == (0.0, False)


def test_faults_of_a_weighted_group_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        create("custom-rules", {"rules": [{"weighted": [{**YES, "weight": 0}]}, {"weighted": [YES], "threshold": 2}]})
    assert [problem.path for problem in caught.value.problems] == [
        "config.rules[0].rules",
        "config.rules[1].threshold",
    ]


@pytest.mark.parametrize(("mode", "passed"), [("all", True), ("any", True), ("weighted", True)])
def test_a_rule_of_weight_zero_is_recorded_and_decides_nothing(mode: str, passed: bool) -> None:
    result = grade("custom-rules", "yes", config={"mode": mode, "rules": [YES, {**NO, "weight": 0}]})
    assert (result.score, result.passed) == (1.0, passed)
    assert result.metadata == {"failed": ["rules[1]"]}
    assert result.rationale == "1 of 2 rules hold; failed: rules[1] contains 'no' (saw 'yes')"


def test_a_rule_of_weight_zero_that_holds_does_not_pass_mode_any() -> None:
    assert graded({**YES, "weight": 0}, NO, mode="any") == (0.0, False)


def test_a_required_rule_of_weight_zero_still_fails_the_grade() -> None:
    assert graded(YES, {**NO, "weight": 0, "required": True}) == (0.0, False)


def test_configs_without_weight_zero_keep_their_fingerprint() -> None:
    assert create("custom-rules", {"rules": [YES]}).fingerprint == FINGERPRINT
    assert create("custom-rules", {"rules": [{**YES, "weight": 0}, YES]}).fingerprint != WITH_ZERO


FINGERPRINT = "7df0b392b090121c75b99638a3eb2cc9"
WITH_ZERO = "69bb3ef80a6d5eee3199f22abc93f622"
"""Fingerprints of version 2 of the grader."""


def test_edit_distance_counts_edits() -> None:
    rule = {"condition": "edit_distance_max", "value": "kitten"}
    assert graded_text("sitting", rule)
    assert not graded_text("sitting", {**rule, "max": 2})
    assert graded_text("KITTEN", {**rule, "max": 0})
    assert not graded_text("KITTEN", {**rule, "max": 0, "case_sensitive": True})
    assert not graded_text("x" * 5_000_000, rule)
    failed = grade("custom-rules", "sitting", config={"rules": [{**rule, "max": 2}]})
    assert failed.rationale == "0 of 1 rules hold; failed: rules[0] edit_distance_max 'kitten' (saw more than 2 edits)"


def test_words_may_be_separated_by_whitespace_only() -> None:
    rule = {"condition": "word_count_max", "value": 3}
    assert not graded_text("It's a well-known fact", rule)
    assert graded_text("It's well-known, isn't", {**rule, "words": "whitespace"})
    assert not graded_text("It's a well-known fact", {**rule, "words": "whitespace"})


def test_json_without_a_fence_may_be_required() -> None:
    fenced = '```json\n{"a": 1}\n```'
    for rule in ({"condition": "is_json"}, {"condition": "json_schema", "value": {"required": ["a"]}}):
        assert graded_text(fenced, rule)
        assert not graded_text(fenced, {**rule, "fenced": False})
        assert graded_text('{"a": 1}', {**rule, "fenced": False})


def test_formats_of_a_schema_are_checked_on_request() -> None:
    rule = {"condition": "json_schema", "value": {"properties": {"day": {"format": "date"}}}}
    assert graded_text('{"day": "someday"}', rule)
    assert not graded_text('{"day": "someday"}', {**rule, "formats": True})


def test_json_within_prose_is_found_and_validated() -> None:
    rule = {"condition": "contains_json"}
    assert graded_text('The answer: {"a": "}"} and more', rule)
    assert not graded_text("no {json} here", rule)
    assert not graded_text("5", rule)
    schema = {**rule, "value": {"required": ["b"]}}
    assert graded_text('first {"a": 1}, then {"b": 2}', schema)
    assert not graded_text('first {"a": 1}', schema)
    assert graded_text("none", {**schema, "negate": True})


def graded_text(text: str, rule: dict[str, Any]) -> bool | None:
    return grade("custom-rules", text, config={"rules": [rule]}).passed
