"""The number of verdicts decided by the order of two answers, and position bias."""

from __future__ import annotations

import pytest

from gradeline.verdict import OrderFinding, order_finding


def test_a_judge_that_prefers_a_position_is_flagged() -> None:
    found = order_finding(27, 2, 31)
    assert found.p == pytest.approx(2 * (1 + 29 + 406) / 2**29)
    sentence = "order decided 29 of 60 (shown first 27, second 2; p 2e-6): the judge is position biased"
    assert found == OrderFinding(29, 60, 27, 2, found.p, "position_biased", sentence)


@pytest.mark.parametrize(
    ("first", "second", "verdict", "ending"),
    [
        (0, 0, "not_enough_flips", "order decided 0 of 5: not enough flips to tell"),
        (7, 0, "not_enough_flips", "(shown first 7, second 0; p 0.016): not enough flips to tell"),
        (8, 0, "position_biased", "p 0.0078): the judge is position biased"),
        (0, 8, "position_biased", "(shown first 0, second 8; p 0.0078): the judge is position biased"),
        (8, 1, "not_flagged", "(shown first 8, second 1; p 0.039)"),
        (4, 4, "not_flagged", "(shown first 4, second 4; p 1)"),
    ],
)
def test_few_flips_and_balanced_flips_are_not_flagged(first: int, second: int, verdict: str, ending: str) -> None:
    found = order_finding(first, second, 5)
    assert (found.decided, found.of, found.verdict) == (first + second, first + second + 5, verdict)
    assert found.sentence.endswith(ending)
