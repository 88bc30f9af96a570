"""Both orders become one verdict by the difference of the scores, where they name the same winner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.judges.pairwise import BothOrders

differences = st.floats(-1, 1)


@pytest.mark.parametrize(
    ("first", "second", "score", "passed", "favoured"),
    [
        (0.5, 0.25, 0.6875, True, None),
        (-0.5, -0.5, 0.25, False, None),
        (0.0, 0.0, 0.5, True, None),
        (0.5, -0.5, None, None, "first"),
        (-0.5, 1.0, None, None, "second"),
        (1.0, -0.5, None, None, "first"),
        (0.0, 0.5, None, None, "second"),
        (0.0, -0.5, None, None, "first"),
        (1.0, 1.0, 1.0, True, None),
        (-1.0, -1.0, 0.0, False, None),
        (0.1 + 0.2 - 0.3, 0.0, 0.5, True, None),
        (None, 0.5, None, None, None),
        (0.0, None, None, None, None),
        (None, None, None, None, None),
    ],
)
def test_results_of_two_orders(
    first: float | None, second: float | None, score: float | None, passed: bool | None, favoured: str | None
) -> None:
    both = BothOrders(first, second)
    expected = None if score is None else pytest.approx(score)
    assert (both.score, both.passed, both.favoured) == (expected, passed, favoured)


@pytest.mark.parametrize(
    ("first", "second", "winner", "flipped"),
    [
        (1.0, -0.5, "candidate", True),
        (0.5, -0.5, "tie", True),
        (None, 0.5, "candidate", True),
        (0.5, 0.25, "candidate", False),
    ],
)
def test_the_winner_is_that_of_the_mean_difference(
    first: float | None, second: float | None, winner: str, flipped: bool
) -> None:
    both = BothOrders(first, second)
    assert (both.winner, both.flipped) == (winner, flipped)


@given(differences, differences)
def test_a_single_score_favours_no_order(first: float, second: float) -> None:
    both, turned = BothOrders(first, second), BothOrders(second, first)
    assert both.score is None or 0 <= both.score <= 1
    assert (both.score is None) == both.flipped == (both.favoured is not None)
    assert (both.score, both.winner, both.flipped) == (turned.score, turned.winner, turned.flipped)


@given(differences, differences)
def test_swapping_the_sides_inverts_the_score(first: float, second: float) -> None:
    turned, score = BothOrders(-first, -second).score, BothOrders(first, second).score
    assert turned == (None if score is None else pytest.approx(1 - score))
