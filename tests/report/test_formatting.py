"""Formatting of numbers and of untrusted text."""

from __future__ import annotations

import pytest

from gradeline.engine.aggregate import GraderSummary, Summary
from gradeline.report.formatting import (
    costs,
    count_noun,
    decimal,
    duration,
    interval,
    one_line,
    outcome_counts,
    percent,
    percent_interval,
    truncate,
    visible,
)


@pytest.mark.parametrize(
    ("value", "as_decimal", "as_share"),
    [
        (None, "–", "–"),
        (0.0, "0.000", "0.0 %"),
        (0.00001, "< 0.001", "< 0.1 %"),
        (0.625, "0.625", "62.5 %"),
        (0.99999, "> 0.999", "> 99.9 %"),
        (1.0, "1.000", "100.0 %"),
    ],
)
def test_only_all_is_100_percent_and_only_none_is_0_percent(
    value: float | None, as_decimal: str, as_share: str
) -> None:
    assert (decimal(value), percent(value)) == (as_decimal, as_share)


def test_an_unknown_interval_is_a_dash() -> None:
    assert (interval(None), percent_interval(None)) == ("–", "–")
    assert (interval((0.1, 0.9)), percent_interval((0.1, 0.9))) == ("0.100 to 0.900", "10.0 to 90.0 %")


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [(0.42, "0.42 ms"), (4.25, "4.2 ms"), (812.4, "812 ms"), (999.6, "1 s"), (2140, "2.14 s"), (210_000, "3.5 min")],
)
def test_durations_have_a_suitable_unit(milliseconds: float, shown: str) -> None:
    assert duration(milliseconds) == shown


def test_counts_have_their_noun() -> None:
    assert (count_noun(1, "case"), count_noun(1200, "case")) == ("1 case", "1,200 cases")


def test_the_outcomes_of_a_column_are_its_total() -> None:
    column = GraderSummary("k", "f", 0.5, None, 0.5, None, scored=2, total=10, passed=1, failed=1, errors=3, skipped=4)
    assert outcome_counts(column) == [("pass", 1), ("fail", 1), ("error", 3), ("skipped", 4), ("ungraded", 1)]


def test_invisible_characters_are_shown_by_their_code_point() -> None:
    assert visible("a\x1b[31m\x00\x9b\u202eb\ud800\r\nc\td\re") == "a<1B>[31m<00><9B><202E>b\ufffd\nc\td<0D>e"


def test_right_to_left_text_is_unchanged() -> None:
    assert visible("שלום مرحبا") == "שלום مرحبا"


def test_truncation_reports_the_omitted_length_and_only_happens_if_it_saves_space() -> None:
    assert truncate("x" * 100, 10) == "x" * 10 + "… (90 more characters)"
    assert truncate("x" * 50, 10) == "x" * 50
    assert one_line(" a\nb\tc ", 10) == "a ↵ b c"


def test_a_cost_shows_the_number_of_answers_without_a_cost() -> None:
    def shown(agent: float | None, unknown: int) -> list[tuple[str, str, str]]:
        return list(costs(Summary(2, 1, {}, 1.0, "", {}, None, {"agent": agent, "judge": 0.5}, unknown)))

    judge = ("judge", "0.5", "")
    assert shown(0.25, 0) == [("agent", "0.25", ""), judge]
    assert shown(0.25, 1) == [("agent", "0.25", "without 1 response of unknown cost"), judge]
    assert shown(None, 2) == [judge]
