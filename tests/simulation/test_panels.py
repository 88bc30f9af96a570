"""The simulation of panels and of selective judging decides as the product does."""

from __future__ import annotations

from simulation import panels

JUDGED = panels.Judged(("one", "two"), [[0.9, 0.2], [0.1, 0.7]] * 40, [True, False] * 40)


def test_a_panel_of_a_judge_and_its_opposite_is_always_right_with_weights() -> None:
    found = panels.panel_accuracy(JUDGED, 60, 1, 1)
    assert (found.weighted, found.best) == (1.0, 1.0)


def test_a_judge_that_is_always_right_decides_everything() -> None:
    found = panels.selective_judge(JUDGED.only(["one"]), 60, 2, 1)
    assert {target: result.share for target, result in found.items()} == dict.fromkeys(panels.TARGETS, 1.0)


def test_a_judge_that_is_always_wrong_decides_nothing() -> None:
    found = panels.selective_judge(JUDGED.only(["two"]), 60, 2, 1)
    assert {result.nothing for result in found.values()} == {1.0}
