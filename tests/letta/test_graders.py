from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import ConfigError, GraderError
from gradeline.graders import create, grade
from gradeline.letta.graders import AsciiPrintableOnlyGrader, ContainsGrader, ExactMatchGrader, RegexMatchGrader
from gradeline.model import GradeResult

KINDS = ("exact_match", "contains", "regex_match", "ascii_printable_only")


def passed(rationale: str) -> GradeResult:
    return GradeResult(1.0, rationale, {}, True)


def failed(rationale: str) -> GradeResult:
    return GradeResult(0.0, rationale, {}, False)


class TestExactMatch:
    def test_equal_texts_match(self) -> None:
        assert grade("exact_match", "Paris", "Paris") == passed("Exact match: True")

    def test_other_texts_do_not(self) -> None:
        assert grade("exact_match", "London", "Paris") == failed("Exact match: False")

    def test_white_space_around_both_is_stripped(self) -> None:
        assert grade("exact_match", " Paris\n", "\tParis ") == passed("Exact match: True")

    def test_case_counts(self) -> None:
        assert grade("exact_match", "paris", "Paris") == failed("Exact match: False")

    def test_two_blank_texts_match(self) -> None:
        assert grade("exact_match", "", " ") == passed("Exact match: True")


class TestContains:
    def test_the_ground_truth_is_found_inside(self) -> None:
        assert grade("contains", "It is Paris.", "Paris") == passed("Contains ground_truth: True")

    def test_missing_text_is_not_found(self) -> None:
        assert grade("contains", "It is London.", "Paris") == failed("Contains ground_truth: False")

    def test_case_does_not_count(self) -> None:
        assert grade("contains", "it is PARIS", "paRis") == passed("Contains ground_truth: True")

    def test_lower_case_is_not_casefold(self) -> None:
        assert grade("contains", "STRASSE", "straße") == failed("Contains ground_truth: False")

    def test_white_space_of_the_ground_truth_counts(self) -> None:
        assert grade("contains", "It is Paris.", "Paris ") == failed("Contains ground_truth: False")


class TestRegexMatch:
    def test_the_pattern_is_searched_anywhere(self) -> None:
        assert grade("regex_match", "It is 42.", r"\d+") == passed("Regex match: True")

    def test_what_does_not_match_fails(self) -> None:
        assert grade("regex_match", "It is nothing.", r"\d+") == failed("Regex match: False")

    def test_no_flags_are_set(self) -> None:
        assert grade("regex_match", "PARIS", "paris") == failed("Regex match: False")
        assert grade("regex_match", "a\nb", "a.b") == failed("Regex match: False")
        assert grade("regex_match", "a\nb", "^b") == failed("Regex match: False")

    def test_a_dollar_also_matches_before_a_last_newline(self) -> None:
        assert grade("regex_match", "42\n", r"^\d+$") == passed("Regex match: True")

    def test_an_invalid_pattern_is_a_plain_zero(self) -> None:
        assert grade("regex_match", "a", "(") == failed(
            "Invalid regex pattern: missing ), unterminated subpattern at position 0"
        )

    def test_a_pattern_that_hangs_re_does_not_hang_here(self) -> None:
        assert grade("regex_match", "a" * 50_000 + "b", "(a+)+$") == failed("Regex match: False")

    def test_patterns_that_only_re_supports_run_in_a_worker(self) -> None:
        assert grade("regex_match", "aa", r"(a)\1") == passed("Regex match: True")


class TestAsciiPrintableOnly:
    def test_printable_ascii_passes_and_needs_no_ground_truth(self) -> None:
        assert grade("ascii_printable_only", " !~aZ09") == passed("All characters are printable ASCII")

    def test_line_breaks_are_left_out(self) -> None:
        assert grade("ascii_printable_only", "a\r\nb\n") == passed("All characters are printable ASCII")

    @pytest.mark.parametrize(
        ("char", "shown"),
        [
            ("\t", "'\\t' (U+0009)"),
            ("\x7f", "'\\x7f' (U+007F)"),
            ("é", "'é' (U+00E9)"),
            ("😀", "'😀' (U+1F600)"),
        ],
    )
    def test_any_other_character_fails_and_is_named(self, char: str, shown: str) -> None:
        assert grade("ascii_printable_only", f"a{char}{char}") == failed(
            f"Characters that are not printable ASCII: {shown}"
        )

    def test_five_distinct_characters_are_listed_in_their_order(self) -> None:
        assert grade("ascii_printable_only", "éñéüöä") == failed(
            "Characters that are not printable ASCII: "
            "'é' (U+00E9), 'ñ' (U+00F1), 'ü' (U+00FC), 'ö' (U+00F6), 'ä' (U+00E4)"
        )

    def test_the_rest_is_counted(self) -> None:
        assert grade("ascii_printable_only", "éñüöäßø") == failed(
            "Characters that are not printable ASCII: "
            "'é' (U+00E9), 'ñ' (U+00F1), 'ü' (U+00FC), 'ö' (U+00F6), 'ä' (U+00E4) (+2 more)"
        )


@pytest.mark.parametrize("expected", [None, ""])
@pytest.mark.parametrize(
    ("kind", "rationale"),
    [
        ("exact_match", "No ground_truth answer provided"),
        ("contains", "No ground_truth answer provided"),
        ("regex_match", "No ground_truth regex pattern provided"),
    ],
)
def test_a_missing_ground_truth_scores_zero(kind: str, rationale: str, expected: str | None) -> None:
    assert grade(kind, "anything", expected) == failed(rationale)


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_no_options(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.case_sensitive: unknown option; no options are supported"):
        create(kind, {"case_sensitive": True})


def test_the_text_form_gives_the_plain_dict() -> None:
    assert ExactMatchGrader().grade("a", "b") == {
        "passed": False,
        "score": 0.0,
        "details": {"reason": "Exact match: False"},
    }


@pytest.mark.parametrize(
    ("declaration", "description"),
    [
        (
            ExactMatchGrader,
            "Compares the submission with the ground truth, both stripped; case-sensitive.",
        ),
        (ContainsGrader, "Searches the submission for the ground truth; case-insensitive."),
        (
            RegexMatchGrader,
            "Searches the submission for the regular expression in the ground truth, in the syntax of Python's re.",
        ),
        (
            AsciiPrintableOnlyGrader,
            "Checks that the submission contains only printable ASCII and line breaks; tabs are not allowed.",
        ),
    ],
)
def test_the_listing_describes_it(declaration: Any, description: str) -> None:
    entry = declaration.describe()
    assert entry["description"] == description
    assert entry["config_schema"]["properties"] == {}


@pytest.mark.parametrize("kind", KINDS)
@given(submission=st.text(st.characters(exclude_categories=())), expected=st.none() | st.text("ab(|)*+?[]\\^$.{1,}é\n"))
def test_any_text_gets_one_score_or_a_grader_error(kind: str, submission: str, expected: str | None) -> None:
    try:
        result = grade(kind, submission, expected)
    except GraderError as error:
        with pytest.raises(type(error)):
            grade(kind, submission, expected)
        return
    assert math.isfinite(result.score)
    assert result.score in (0.0, 1.0)
    assert grade(kind, submission, expected) == result
