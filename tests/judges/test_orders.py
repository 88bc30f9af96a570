"""Both orders become one verdict by the difference of the scores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.judges.orders import BothOrders

differences = st.floats(-1, 1)


@pytest.mark.parametrize(
    ("first", "second", "score", "winner", "flipped"),
    [
        (0.5, 0.25, 0.6875, "candidate", False),
        (-0.5, -0.5, 0.25, "baseline", False),
        (0.0, 0.0, 0.5, "tie", False),
        (0.5, -0.5, 0.5, "tie", True),
        (1.0, -0.5, 0.625, "candidate", True),
        (0.0, 0.5, 0.625, "candidate", True),
        (1.0, 1.0, 1.0, "candidate", False),
        (-1.0, -1.0, 0.0, "baseline", False),
        (0.1 + 0.2 - 0.3, 0.0, 0.5, "tie", False),
        (None, 0.5, 0.625, "candidate", True),
        (None, 0.0, 0.5, "tie", True),
        (None, None, 0.5, "tie", False),
    ],
)
def test_what_two_orders_come_to(
    first: float | None, second: float | None, score: float, winner: str, flipped: bool
) -> None:
    both = BothOrders(first, second)
    assert (both.score, both.winner, both.flipped) == (pytest.approx(score), winner, flipped)


@given(differences, differences)
def test_a_score_is_one_and_favours_no_order(first: float, second: float) -> None:
    both, turned = BothOrders(first, second), BothOrders(second, first)
    assert 0 <= both.score <= 1
    assert (both.score, both.winner, both.flipped) == (turned.score, turned.winner, turned.flipped)


@given(differences, differences)
def test_exchanging_the_sides_turns_the_score_round(first: float, second: float) -> None:
    assert BothOrders(-first, -second).score == pytest.approx(1 - BothOrders(first, second).score)
