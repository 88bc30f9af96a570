"""Seed 000, "Contract: Grade Response", section by section."""

from __future__ import annotations

import ast
import logging
import math
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline import TrueFalseGrader

DETAIL_KEYS = {
    "expected_bool",
    "actual_bool",
    "match_status",
    "reason",
    "expected_original",
    "actual_original",
}

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.binary(),
    st.text(),
    st.lists(st.text()),
    st.dictionaries(st.text(), st.integers()),
    st.sampled_from(["true", "yes", "1", "false", "no", "0", " TRUE ", "\tNo\n"]),
)


def graded(
    passed: bool,
    expected_bool: str | None,
    actual_bool: str | None,
    status: str,
    reason: str,
    expected: Any,
    actual: Any,
) -> dict[str, Any]:
    return {
        "passed": passed,
        "score": 1.0 if passed else 0.0,
        "details": {
            "expected_bool": expected_bool,
            "actual_bool": actual_bool,
            "match_status": status,
            "reason": reason,
            "expected_original": expected,
            "actual_original": actual,
        },
    }


MATCH = "Expected and actual values match"


class TestReturnValueContracts:
    def test_success_case_booleans_match(self) -> None:
        assert TrueFalseGrader().grade("yes", "true") == graded(True, "true", "true", "match", MATCH, "true", "yes")

    def test_mismatch_case_different_booleans(self) -> None:
        assert TrueFalseGrader().grade("false", "true") == graded(
            False, "true", "false", "mismatch", "Expected true but got false", "true", "false"
        )

    def test_invalid_response_case(self) -> None:
        reason = "Response 'maybe' does not represent a boolean value"
        assert TrueFalseGrader().grade("maybe", "true") == graded(
            False, "true", None, "invalid_response", reason, "true", "maybe"
        )

    def test_empty_response_case(self) -> None:
        assert TrueFalseGrader().grade("", "true") == graded(
            False, "true", None, "invalid_response", "Empty or null response", "true", ""
        )

    def test_whitespace_normalization_case(self) -> None:
        grader = TrueFalseGrader(config={"case_sensitive": False})
        assert grader.grade("  Yes  ", " true ") == graded(True, "true", "true", "match", MATCH, " true ", "  Yes  ")

    def test_custom_aliases_case(self) -> None:
        grader = TrueFalseGrader(config={"aliases": {"true": ["yep"], "false": ["nope"]}})
        assert grader.grade("yep", "true") == graded(True, "true", "true", "match", MATCH, "true", "yep")

    def test_every_example_of_the_document_holds(self, seed) -> None:
        text = seed("000_35962b163a174c8e.txt")
        section = text.split("## Return Value Contracts")[1].split("## Type Guarantees")[0]
        examples = re.findall(
            r'\*\*Input\*\*: expected="(.*?)", response="(.*?)".*?\n(?:\*\*Config\*\*: `(.*?)`\n)?\n```python\n(.*?)```',
            section,
            re.DOTALL,
        )
        assert len(examples) == 6
        for expected, response, config, result in examples:
            grader = TrueFalseGrader(config=ast.literal_eval(config) if config else None)
            assert grader.grade(response, expected) == ast.literal_eval(result)


class TestMethodSignature:
    def test_arguments_can_be_named_as_in_the_document(self) -> None:
        result = TrueFalseGrader().grade(agent_response="yes", expected_output="true")
        assert result["passed"] is True

    def test_arguments_can_be_named_actual_and_expected(self) -> None:
        assert TrueFalseGrader().grade(actual="no", expected="true")["passed"] is False

    def test_the_grader_has_an_id_and_a_config(self) -> None:
        grader = TrueFalseGrader(grader_id="mine", config={"case_sensitive": True})
        assert (grader.grader_id, grader.config) == ("mine", {"case_sensitive": True})
        assert TrueFalseGrader().grader_id == "true-false"


class TestProcessingAlgorithm:
    @pytest.mark.parametrize("word", ["true", "yes", "1", "TRUE", "Yes", " yes\n"])
    def test_true_aliases(self, word: str) -> None:
        assert TrueFalseGrader().grade(word, "1")["details"]["actual_bool"] == "true"

    @pytest.mark.parametrize("word", ["false", "no", "0", "FALSE", "No", "\tno"])
    def test_false_aliases(self, word: str) -> None:
        assert TrueFalseGrader().grade(word, "0")["details"]["actual_bool"] == "false"

    def test_case_sensitive_distinguishes_yes_from_Yes(self) -> None:  # noqa: N802
        grader = TrueFalseGrader(config={"case_sensitive": True})
        assert grader.grade("yes", "true")["passed"] is True
        assert grader.grade("Yes", "true")["details"]["match_status"] == "invalid_response"

    def test_an_unknown_expectation_is_handled_and_named(self) -> None:
        assert TrueFalseGrader().grade("yes", "perhaps") == graded(
            False,
            None,
            "true",
            "invalid_response",
            "Expected value 'perhaps' does not represent a boolean value",
            "perhaps",
            "yes",
        )

    def test_when_both_are_unknown_the_response_is_named_first(self) -> None:
        reason = TrueFalseGrader().grade("eh", "perhaps")["details"]["reason"]
        assert reason == "Response 'eh' does not represent a boolean value"


class TestTypeGuarantees:
    @given(anything, anything)
    def test_every_result_has_the_promised_types(self, response: object, expected: object) -> None:
        result = TrueFalseGrader().grade(response, expected)
        assert set(result) == {"passed", "score", "details"}
        assert type(result["passed"]) is bool
        assert type(result["score"]) is float
        assert math.isfinite(result["score"])
        assert 0.0 <= result["score"] <= 1.0
        assert result["score"] == (1.0 if result["passed"] else 0.0)
        details = result["details"]
        assert set(details) == DETAIL_KEYS
        assert details["actual_bool"] in ("true", "false", None)
        assert details["expected_bool"] in ("true", "false", None)
        assert details["match_status"] in ("match", "mismatch", "invalid_response")
        assert isinstance(details["reason"], str)
        assert details["reason"]
        assert details["expected_original"] is expected
        assert details["actual_original"] is response


class TestDeterminismGuarantee:
    @given(st.text(), st.text())
    def test_same_input_same_output(self, response: str, expected: str) -> None:
        assert TrueFalseGrader().grade(response, expected) == TrueFalseGrader().grade(response, expected)

    def test_grading_changes_nothing_in_the_grader(self) -> None:
        config = {"aliases": {"true": ["yep"], "false": ["nope"]}}
        grader = TrueFalseGrader(config=config)
        before = dict(vars(grader))
        grader.grade("yep", "true")
        grader.grade("nonsense", "nope")
        assert vars(grader) == before
        assert config == {"aliases": {"true": ["yep"], "false": ["nope"]}}

    def test_eight_threads_get_the_answers_of_one(self) -> None:
        grader = TrueFalseGrader(config={"aliases": {"true": ["yep"], "false": ["nope"]}})
        words = ["yes", "no", "yep", "nope", "maybe", "", " TRUE ", "0", "\x00", "é"]
        pairs = [(a, b) for a in words for b in words] * 20
        sequential = [grader.grade(a, b) for a, b in pairs]
        with ThreadPoolExecutor(8) as threads:
            together = [list(threads.map(lambda pair: grader.grade(*pair), pairs)) for _ in range(8)]
        assert all(answers == sequential for answers in together)


class TestErrorHandling:
    @pytest.mark.parametrize(
        ("response", "reason"),
        [
            (None, "Empty or null response"),
            ("   \n", "Empty or null response"),
            (7, "Response 7 is a int, not text"),
            (b"true", "Response b'true' is a bytes, not text"),
            (["true"], "Response ['true'] is a list, not text"),
            (1.5, "Response 1.5 is a float, not text"),
        ],
    )
    def test_values_that_are_not_strings_are_explained(self, response: object, reason: str) -> None:
        result = TrueFalseGrader().grade(response, "true")
        assert result == graded(False, "true", None, "invalid_response", reason, "true", response)

    def test_pythons_own_booleans_count(self) -> None:
        assert TrueFalseGrader().grade(True, "yes")["passed"] is True
        assert TrueFalseGrader().grade("no", False)["passed"] is True

    def test_a_hostile_repr_does_not_raise(self) -> None:
        class Hostile:
            def __repr__(self) -> str:
                raise RuntimeError("no")

        assert TrueFalseGrader().grade(Hostile(), "true")["details"]["reason"] == (
            "Response <Hostile> is a Hostile, not text"
        )

    def test_grade_logs_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            TrueFalseGrader(config={"aliases": 3}).grade("maybe", None)
        assert caplog.records == []

    def test_validation_failures_are_logged_by_validate_config(self, caplog: pytest.LogCaptureFixture) -> None:
        assert TrueFalseGrader(config={"case_sensitive": "yes"}).validate_config() is False
        assert [record.message for record in caplog.records] == [
            "grader 'true-false': config.case_sensitive: expected bool, got 'yes'"
        ]


class TestConfig:
    @pytest.mark.parametrize(
        "config",
        [
            None,
            {},
            {"case_sensitive": True},
            {"aliases": {"true": [], "false": []}},
            {"aliases": {"true": ["Yep", "yep"], "false": ["nope"]}},
            {"aliases": {"true": ["yes"], "false": ["no"]}},
            {"colour": "red"},
            {"x-note": 1},
        ],
    )
    def test_valid(self, config: dict[str, Any] | None) -> None:
        assert TrueFalseGrader(config=config).validate_config() is True

    @pytest.mark.parametrize(
        "config",
        [
            {"aliases": None},
            {"aliases": ["yep"]},
            {"aliases": {"true": ["yep"]}},
            {"aliases": {"false": ["nope"]}},
            {"aliases": {"true": "yep", "false": ["nope"]}},
            {"aliases": {"true": [1], "false": ["nope"]}},
            {"aliases": {"true": ["ok"], "false": ["OK"]}},
            {"aliases": {"true": ["no"], "false": []}},
            {"case_sensitive": 1},
            {"case_sensitive": None},
        ],
    )
    def test_invalid(self, config: dict[str, Any]) -> None:
        assert TrueFalseGrader(config=config).validate_config() is False

    def test_one_word_in_two_cases_is_not_a_conflict_when_case_counts(self) -> None:
        config = {"case_sensitive": True, "aliases": {"true": ["ok"], "false": ["OK"]}}
        assert TrueFalseGrader(config=config).validate_config() is True

    def test_unknown_keys_warn(self, caplog: pytest.LogCaptureFixture) -> None:
        assert TrueFalseGrader(config={"case_sensitiv": True}).validate_config() is True
        assert [(record.levelname, record.message) for record in caplog.records] == [
            (
                "WARNING",
                "grader 'true-false': config.case_sensitiv: unknown option; did you mean 'case_sensitive'?",
            )
        ]

    def test_faulty_parts_fall_back_to_the_defaults_and_the_rest_holds(self) -> None:
        grader = TrueFalseGrader(config={"case_sensitive": True, "aliases": {"true": ["no"], "false": []}})
        assert grader.grade("no", "false")["passed"] is True
        assert grader.grade("NO", "false")["passed"] is False

    def test_custom_aliases_extend_the_defaults(self) -> None:
        grader = TrueFalseGrader({"aliases": {"true": ["yep"], "false": ["nope"]}})
        assert grader.grade("yes", "yep")["passed"] is True
        assert grader.grade("0", "nope")["passed"] is True


@pytest.mark.parametrize(
    ("response", "expected", "config", "passed"),
    [
        ("true", "true", None, True),
        ("yes", "1", None, True),
        ("no", "true", None, False),
        ("perhaps", "true", None, False),
        ("  true\n", "true", None, True),
        ("yep", "true", {"aliases": {"true": ["yep"], "false": ["nope"]}}, True),
    ],
    ids=["same format", "different formats", "mismatch", "invalid", "whitespace", "custom aliases"],
)
def test_success_criteria(response: str, expected: str, config: dict[str, Any] | None, passed: bool) -> None:
    assert TrueFalseGrader(config=config).grade(response, expected)["passed"] is passed
