"""The simulations of clusters at a reduced size. The limits allow three standard errors of so few draws."""

from __future__ import annotations

from math import sqrt

import pytest

from simulation.clusters import SIZES, coverage, false_decisions, mmlu

DRAWS = 150


def slack(share: float) -> float:
    return 3.0 * sqrt(share * (1.0 - share) / DRAWS)


def test_chance_decides_at_most_one_in_twenty_where_clusters_change_together() -> None:
    assert false_decisions(DRAWS) <= 0.05 + slack(0.05)


@pytest.mark.parametrize(("clusters", "size"), SIZES)
def test_intervals_over_subjects_hold_the_truth(clusters: int, size: int) -> None:
    subjects = mmlu()
    if subjects is None:
        pytest.skip("labelled data is absent: routellm_mmlu (GRADELINE_SHARED_DATA names its folder)")
    found = coverage(subjects, DRAWS, clusters=clusters, size=size)
    assert min(found) >= 0.93 - slack(0.93)
