"""Seed 003, "Agent Evaluation as a Service": its grader examples."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gradeline import Grader, GradeResult, StringMatchGrader
from gradeline.graders import as_grader, create, from_definition, run_grader
from gradeline.model import GradeContext, Outcome, Sample


def context(submission: str, expected: str | None = None, **fields: Any) -> GradeContext:
    return GradeContext(Sample(id=0, input="q", ground_truth=expected, **fields), submission)


class TestClarification1CustomGraderDefinitionFormat:
    STRING_MATCH: dict[str, Any] = {
        "type": "string-match",
        "config": {"case_sensitive": False, "normalize_whitespace": False},
    }
    CUSTOM_RULES: dict[str, Any] = {
        "type": "custom-rules",
        "rules": [{"condition": "contains", "value": "keyword"}, {"condition": "length_min", "value": 10}],
    }

    def test_the_definitions_are_those_of_the_document(self, seed) -> None:
        blocks = re.findall(r"```json\n(.*?)```", seed("003_15464eea903e8efb.txt"), re.DOTALL)
        assert [json.loads(block) for block in blocks[:2]] == [self.STRING_MATCH, self.CUSTOM_RULES]

    def test_string_match_specification(self) -> None:
        grader = from_definition(self.STRING_MATCH)
        assert grader.grade(context("PARIS", "paris")) == GradeResult(
            1.0,
            "Response matches the expected value",
            {"mode": "exact", "reason": "Response matches the expected value"},
        )
        assert grader.grade(context("paris ", "paris")).passed is False

    def test_custom_rules_extension(self) -> None:
        grader = from_definition(self.CUSTOM_RULES)
        assert grader.grade(context("this has the Keyword")) == GradeResult(1.0, "All 2 rules hold", {}, True)
        assert grader.grade(context("keyword")) == GradeResult(
            0.5, "1 of 2 rules hold; failed: rules[1] length_min 10 (saw 7)", {"failed": ["rules[1]"]}, False
        )

    def test_custom_json_is_the_same_grader(self) -> None:
        other = from_definition({"type": "custom-json", "config": {"rules": self.CUSTOM_RULES["rules"]}})
        assert other.fingerprint == from_definition(self.CUSTOM_RULES).fingerprint

    def test_a_definition_is_stored_in_one_canonical_form(self) -> None:
        grader = from_definition(self.CUSTOM_RULES)
        stored = json.loads(json.dumps(grader.definition()))
        assert stored == {"kind": "custom-rules", "config": {"rules": self.CUSTOM_RULES["rules"]}}
        assert from_definition(stored).fingerprint == grader.fingerprint


class TestClarification2ErrorHandlingStrategy:
    def test_a_definition_is_validated_before_use(self) -> None:
        with pytest.raises(ValueError, match=r"config\.rules\[1\]\.value: is required"):
            from_definition({"type": "custom-rules", "rules": [{"condition": "is_json"}, {"condition": "contains"}]})

    def test_a_grader_that_raises_is_an_error_of_its_result_only(self) -> None:
        class Raises(Grader):
            def grade(self, actual: str, expected: str) -> GradeResult:
                raise LookupError("no such field")

        broken = run_grader(as_grader(Raises({}), "raises"), context("yes", "true"))
        sound = run_grader(create("true-false"), context("yes", "true"))
        assert (broken.outcome, broken.score, broken.passed) == (Outcome.ERROR, None, None)
        assert broken.error is not None
        assert (broken.error.type, broken.error.message, broken.error.fault) == (
            "LookupError",
            "no such field",
            "grader",
        )
        assert broken.error.traceback is not None
        assert 'raise LookupError("no such field")' in broken.error.traceback
        assert (sound.outcome, sound.score) == (Outcome.PASS, 1.0)


class TestGraderArchitectureDesign:
    def test_base_grader_class(self) -> None:
        grader = Grader({"a": 1})
        assert grader.config == {"a": 1}
        with pytest.raises(NotImplementedError):
            grader.grade("actual", "expected")

    def test_string_match_implementation_as_the_document_writes_it(self) -> None:
        class SeedStringMatchGrader(Grader):
            """Exact or fuzzy string matching grader"""

            def grade(self, actual: str, expected: str) -> GradeResult:
                case_sensitive = self.config.get("case_sensitive", False)
                normalize_whitespace = self.config.get("normalize_whitespace", False)
                if normalize_whitespace:
                    actual, expected = " ".join(actual.split()), " ".join(expected.split())
                if not case_sensitive:
                    actual, expected = actual.lower(), expected.lower()
                return GradeResult(score=1.0 if actual == expected else 0.0)

        grader = SeedStringMatchGrader({"normalize_whitespace": True})
        assert grader.grade(" A  b", "a b").status == "pass"
        assert grader.grade("a", "b").status == "fail"
        engine_side = as_grader(grader, "seed")
        assert engine_side.grade(context("A b ", "a b")) == GradeResult(1.0)

    @pytest.mark.parametrize(
        ("config", "actual", "expected", "passed"),
        [
            ({}, "Paris", "paris", True),
            ({}, " Paris", "paris", False),
            ({"case_sensitive": True}, "Paris", "paris", False),
            ({"case_sensitive": True}, "paris", "paris", True),
            ({"normalize_whitespace": True}, "  New \n York ", "new york", True),
            ({"normalize_whitespace": True, "case_sensitive": True}, "New  York", "new york", False),
        ],
    )
    def test_string_match_all_config_variations(
        self, config: dict[str, Any], actual: str, expected: str, passed: bool
    ) -> None:
        for result in (
            StringMatchGrader(config).grade(actual, expected),
            StringMatchGrader(config=config).grade(actual=actual, expected=expected),
        ):
            assert (result["passed"], result["score"]) == (passed, 1.0 if passed else 0.0)

    def test_one_string_match_grader_serves_eight_threads(self) -> None:
        grader = StringMatchGrader({"mode": "fuzzy", "threshold": 0.5})
        words = ["Paris", "paris ", "PARIS!", "London", "", "Pàris", "P\0ris"]
        pairs = [(a, b) for a in words for b in words] * 20
        sequential = [grader.grade(a, b) for a, b in pairs]
        with ThreadPoolExecutor(8) as threads:
            together = [list(threads.map(lambda pair: grader.grade(*pair), pairs)) for _ in range(8)]
        assert all(answers == sequential for answers in together)
