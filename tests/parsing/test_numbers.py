from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.parsing.numbers import NumberTooLargeError, find_number, show_number

MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("64", 64),
        ("007", 7),
        ("3.25", "3.25"),
        (".5", "0.5"),
        ("5.", 5),
        ("+5", 5),
        ("1e3", 1000),
        ("2.5E-1", "0.25"),
        ("1e3x", 3),
        ("٣", 3),
        ("He has 5 apples.", 5),
    ],
)
def test_plain_numbers(text: str, number: str | int) -> None:
    assert find_number(text) == Fraction(number)


@pytest.mark.parametrize("text", ["", "none", "$", "-", "½", "²", "IV", "\\boxed{x}", "####", "\0", "\ud800"])
def test_text_without_a_number_gives_none(text: str) -> None:
    assert find_number(text) is None


class TestWhichNumberCounts:
    @pytest.mark.parametrize(
        ("text", "number"),
        [
            ("first 1, then 2, then 3", 3),
            ("1 + 2 = 3\n#### 4 and 5", 4),
            ("so A: 7\nA: 8 of 9", 8),
            ("The answer is 5, not 6", 5),
            ("The final ANSWER: 5 (of 6)", 5),
            ("**Answer** = 5 or 6", 5),
            (r"\boxed{5} and 6", 5),
            (r"\boxed {5} and 6", 5),
            ("the answer is 1. No, the answer is 2. Not 3", 2),
            (r"\boxed{1} #### 2 then 3", 2),
            (r"#### 2 then \boxed{1} then 3", 1),
        ],
    )
    def test_the_first_after_the_last_marker_or_else_the_last(self, text: str, number: int) -> None:
        assert find_number(text) == number

    def test_a_marker_without_a_number_is_ignored(self) -> None:
        assert find_number("It is 5.\n####") == 5

    def test_a_letter_a_within_a_line_is_not_a_marker(self) -> None:
        assert find_number("Plan A: 1 then 2") == 2


class TestThousands:
    @pytest.mark.parametrize(
        ("text", "number"),
        [
            ("1,000", 1000),
            ("1,234,567.89", "1234567.89"),
            ("12,345", 12345),
            (r"1{,}000", 1000),
            (r"1\,000", 1000),
            (r"1\!000", 1000),
            ("1,23", 23),
            ("1,2345", 2345),
            ("1,000,00", 0),
            ("1, 2, 300", 300),
        ],
    )
    def test_only_groups_of_three_are_joined(self, text: str, number: str | int) -> None:
        assert find_number(text) == Fraction(number)


class TestSignsAndCurrencies:
    @pytest.mark.parametrize(
        ("text", "number"),
        [
            ("$5", 5),
            ("€1,000.50", "1000.5"),
            ("₹7", 7),
            (r"\$5", 5),
            ("$.50", "0.5"),
            ("-5", -5),
            ("−5", -5),
            ("-$5", -5),
            ("$-5", -5),
            ("−£5.50", "-5.5"),
            (r"-\$5", -5),
            ("x = -5", -5),
            ("(-5)", -5),
        ],
    )
    def test_a_sign_before_a_number_counts(self, text: str, number: str | int) -> None:
        assert find_number(text) == Fraction(number)

    @pytest.mark.parametrize("text", ["10-5", "x-5", "(1)-5", "1.-5", "a - 5"])
    def test_a_minus_between_two_operands_is_not_a_sign(self, text: str) -> None:
        assert find_number(text) == 5


@pytest.mark.parametrize(("text", "number"), [("50%", 50), ("12.5 %", "12.5"), (r"50\%", 50), ("50 percent", 50)])
def test_a_percent_sign_does_not_scale(text: str, number: str | int) -> None:
    assert find_number(text) == Fraction(number)


class TestFractions:
    @pytest.mark.parametrize(
        ("text", "number"),
        [
            ("1/2", "1/2"),
            ("-1/2", "-1/2"),
            ("10/4", "5/2"),
            ("1,000/3", "1000/3"),
            ("1 1/2", "3/2"),
            ("-2 3/4", "-11/4"),
            (r"\frac{1}{2}", "1/2"),
            (r"\dfrac{1}{2}", "1/2"),
            (r"\tfrac { 1 } { 2 }", "1/2"),
            (r"\boxed{\frac{1}{2}}", "1/2"),
            (r"\boxed{-\frac{1}{2}}", "-1/2"),
            (r"\boxed{\frac{-1}{2}}", "-1/2"),
            (r"\boxed{1\frac{1}{2}}", "3/2"),
            (r"\boxed{−1\frac{1}{2}}", "-3/2"),
            (r"$-\frac{3}{4}$", "-3/4"),
            (r"\boxed{\text{ 5 }}", 5),
        ],
    )
    def test_fractions_and_mixed_numbers(self, text: str, number: str | int) -> None:
        assert find_number(text) == Fraction(number)

    @pytest.mark.parametrize(
        "text",
        ["1/0", "5/00", "0/0", "-1/0", "3 of them, so 1/0", "#### 1/0", "It was 5. #### 1/0", r"\boxed{\frac{1}{0}}"],
    )
    def test_a_division_by_zero_is_not_a_number(self, text: str) -> None:
        assert find_number(text) is None

    def test_a_division_by_zero_that_is_not_the_answer_does_not_matter(self) -> None:
        assert find_number("1/0 is undefined, so the limit is 7") == 7
        assert find_number("#### 7, and not 1/0") == 7

    @pytest.mark.parametrize(("text", "number"), [("1/2/2024", 2024), ("1/2.5", "2.5"), ("1/0.5", "0.5")])
    def test_a_date_or_ratio_is_not_a_fraction(self, text: str, number: str | int) -> None:
        assert find_number(text) == Fraction(number)


class TestTooLarge:
    @pytest.mark.parametrize("text", ["9" * 3_001, "1." + "0" * 3_000, "1/" + "9" * 3_000, "\\boxed{" + "9" * 9_999])
    def test_too_many_digits(self, text: str) -> None:
        with pytest.raises(NumberTooLargeError, match=r"a number of [\d,]+ characters is too long \(at most 3000\)"):
            find_number(text)

    @pytest.mark.parametrize("text", ["1e401", "1E-999999999"])
    def test_an_exponent_that_is_too_large(self, text: str) -> None:
        with pytest.raises(NumberTooLargeError, match=r"an exponent of -?\d+ is too large \(at most 400\)"):
            find_number(text)

    def test_an_ignored_number_may_be_too_large(self) -> None:
        assert find_number("9" * 5_000 + " but the answer is 5") == 5


@pytest.mark.parametrize(
    "unit",
    [
        "111,",
        "1/",
        "1 1/",
        "1,",
        "1.",
        "1e",
        "$-",
        "-",
        " ",
        "answer is ",
        "answer***",
        "A:\n",
        "\\boxed{",
        "\\frac{1}{",
        "\\frac{1}{2}",
        "-\\frac{1}{2}",
        "\\frac" + " " * 999,
        "\\text ",
        "1{,}",
        "####",
        "0",
    ],
)
@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("", ""), ("answer", "1111")])
def test_a_megabyte_of_input_is_read_in_bounded_time(before: str, unit: str, after: str) -> None:
    try:
        found = find_number(before + unit * (MEGABYTE // len(unit)) + after)
    except NumberTooLargeError:
        return
    assert found is None or isinstance(found, Fraction)


@given(st.text("0123456789.,/-+eE$€% \n\\{}#A:boxedfractanswer is−٣½"))
def test_any_text_gives_a_number_or_none(text: str) -> None:
    try:
        found = find_number(text)
    except NumberTooLargeError:
        return
    assert found is None or show_number(found)


@given(st.fractions())
def test_a_formatted_number_parses_back(number: Fraction) -> None:
    formatted = show_number(number)
    if "…" not in formatted:
        assert find_number(formatted) == number


class TestFormat:
    @pytest.mark.parametrize(
        ("number", "formatted"),
        [("64", "64"), ("-7", "-7"), ("1/2", "0.5"), ("1/10", "0.1"), ("1/3", "1/3"), ("-22/7", "-22/7")],
    )
    def test_a_number_is_formatted_as_a_person_would_write_it(self, number: str, formatted: str) -> None:
        assert show_number(Fraction(number)) == formatted

    @pytest.mark.parametrize(
        "text", ["9" * 3_000, "9" * 2_990 + "e400", "9" * 2_990 + ".5", "1." + "3" * 2_900 + "e-400"]
    )
    def test_a_very_long_number_is_cut(self, text: str) -> None:
        number = find_number(text)
        assert number is not None
        assert len(show_number(number)) < 100
