from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import ConfigError, GraderError, UngradableError
from gradeline.graders import create, grade
from gradeline.graders.numeric import NumericGrader
from gradeline.model import GradeResult


def score(submission: str, expected: str, **config: Any) -> float:
    return grade("numeric", submission, expected, config).score


def test_equal_numbers_pass() -> None:
    assert grade("numeric", "So he pays $64.\n#### 64", "64") == GradeResult(
        1.0, "got 64, expected 64", {"number": "64", "expected": "64"}, True
    )


def test_other_numbers_fail() -> None:
    assert grade("numeric", "A: 77", "64") == GradeResult(
        0.0, "got 77, expected 64", {"number": "77", "expected": "64"}, False
    )


def test_the_reason_names_the_tolerance() -> None:
    assert grade("numeric", "77", "64", {"tolerance": 0.5}).rationale == "got 77, expected 64 (tolerance 0.5)"
    assert (
        grade("numeric", "77", "64", {"tolerance": 0.01, "relative": True}).rationale
        == "got 77, expected 64 (tolerance 0.01 relative)"
    )


@pytest.mark.parametrize(
    ("submission", "expected"),
    [
        ("$20.00", "20"),
        ("1,234.50", "1234.5"),
        ("0.5", "1/2"),
        ("1 1/2", "1.5"),
        ("50%", "50"),
        ("-7", "−7"),
        ("1e3", "1000"),
        (r"\boxed{\frac{1}{2}}", "0.5"),
        ("0.1", "0.10"),
    ],
)
def test_spellings_of_one_number_are_equal(submission: str, expected: str) -> None:
    assert score(submission, expected) == 1.0


@pytest.mark.parametrize(("submission", "expected"), [("50%", "0.5"), ("0.3333", "1/3"), ("-7", "7")])
def test_another_number_is_not_equal(submission: str, expected: str) -> None:
    assert score(submission, expected) == 0.0


class TestTolerance:
    def test_an_absolute_tolerance_includes_its_bound(self) -> None:
        assert score("10.5", "10", tolerance=0.5) == 1.0
        assert score("9.5", "10", tolerance=0.5) == 1.0
        assert score("10.51", "10", tolerance=0.5) == 0.0

    def test_a_tolerance_of_a_tenth_is_exact(self) -> None:
        assert score("0.3", "0.2", tolerance=0.1) == 1.0
        assert score("0.30000000000000001", "0.2", tolerance=0.1) == 0.0

    def test_a_relative_tolerance_is_a_share_of_the_expected_number(self) -> None:
        assert score("101", "100", tolerance=0.01, relative=True) == 1.0
        assert score("101.1", "100", tolerance=0.01, relative=True) == 0.0
        assert score("-99", "-100", tolerance=0.01, relative=True) == 1.0

    def test_only_zero_is_within_a_relative_tolerance_of_zero(self) -> None:
        assert score("0.000001", "0", tolerance=0.5, relative=True) == 0.0
        assert score("0", "0", tolerance=0.5, relative=True) == 1.0

    @pytest.mark.parametrize("tolerance", [-1, math.inf, math.nan, "a little", True])
    def test_an_invalid_tolerance_is_refused(self, tolerance: object) -> None:
        with pytest.raises(ConfigError, match=r"config\.tolerance: "):
            create("numeric", {"tolerance": tolerance})

    def test_an_invalid_tolerance_is_ignored_in_the_text_form(self) -> None:
        assert NumericGrader({"tolerance": math.inf}).grade("5", "4")["passed"] is False


def test_a_submission_without_a_number_scores_zero() -> None:
    assert grade("numeric", "I do not know.", "64") == GradeResult(
        0.0, "no number found, expected 64", {"expected": "64"}, False
    )


class TestUngradable:
    def test_no_ground_truth(self) -> None:
        with pytest.raises(UngradableError, match="there is no ground_truth"):
            grade("numeric", "64")

    def test_a_ground_truth_without_a_number_is_quoted(self) -> None:
        with pytest.raises(UngradableError, match="the ground_truth 'none at all' contains no number"):
            grade("numeric", "64", "none at all")

    def test_a_number_too_long_on_either_side(self) -> None:
        with pytest.raises(
            UngradableError, match=r"the submission '9+'… \(5,000 in total\): a number of 5,000 characters"
        ):
            grade("numeric", "9" * 5_000, "64")
        with pytest.raises(UngradableError, match=r"the ground_truth '1e99999': an exponent of 99999 is too large"):
            grade("numeric", "64", "1e99999")


def test_a_very_long_number_is_shown_by_its_beginning() -> None:
    shown = f"{'9' * 60}… (2,900 characters)"
    assert grade("numeric", "9" * 2_900, "64").metadata == {"number": shown, "expected": "64"}


def test_the_listing_describes_it() -> None:
    entry = NumericGrader.describe()
    assert entry["description"] == "Compares the final number in the response with the expected number."
    assert sorted(entry["config_schema"]["properties"]) == ["relative", "tolerance"]


numberlike = st.text("0123456789.,/-+eE$% \n\\{}#A:boxedfrac−٣½")


@given(numberlike, numberlike, st.floats(0, 1e300), st.booleans())
def test_any_text_gets_one_score_or_a_grader_error(
    submission: str, expected: str, tolerance: float, relative: bool
) -> None:
    config = {"tolerance": tolerance, "relative": relative}
    try:
        result = grade("numeric", submission, expected, config)
    except GraderError:
        return
    assert result.score in (0.0, 1.0)
    assert grade("numeric", submission, expected, config) == result


@given(st.integers(-(10**30), 10**30), st.integers(-(10**30), 10**30))
def test_integers_are_compared_exactly(left: int, right: int) -> None:
    assert score(f"The answer is {left}.", str(right)) == float(left == right)
    assert score(f"{left:,}", str(left)) == 1.0


def test_a_division_by_zero_is_a_wrong_answer_whatever_is_expected() -> None:
    for expected in ("0", "1", "7"):
        result = grade("numeric", "The answer is 1/0", expected)
        assert (result.score, result.rationale) == (0.0, f"no number found, expected {expected}")
    with pytest.raises(UngradableError, match="the ground_truth '1/0' contains no number"):
        grade("numeric", "0", "1/0")
