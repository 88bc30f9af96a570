"""Early stopping keeps its error rates and saves cases; looking again and again without boundaries does not.

At reduced size: each limit has the Monte Carlo error of its number of draws added, three standard errors.
"""

from __future__ import annotations

from math import sqrt
from random import Random

import pytest

from simulation import early

DRAWS = 300
LIMIT = 0.035
SLACK = 3 * sqrt(LIMIT * (1 - LIMIT) / DRAWS)


def test_the_simulation_stops_where_the_rule_of_the_product_does() -> None:
    random = Random(6)
    for loss in (0.0, 0.05, -0.05):
        columns = [early.changes(early.draw(random, 300, 0.1 - loss, 0.1 + loss)) for _ in range(2)]
        for graders, primary in (([columns[0]], 1), (columns, 1), (columns, 2)):
            assert early.stopped_graders(graders, primary) == early.stopped_by_the_rule(graders, primary)


@pytest.mark.parametrize("discordance", [0.1, 0.2])
def test_equal_runs_are_seldom_better_or_worse(discordance: float) -> None:
    found = early.null(DRAWS, 1, discordance=discordance)
    assert found.worse <= LIMIT + SLACK
    assert found.better <= LIMIT + SLACK


def test_a_loss_of_the_margin_seldom_passes_and_naive_peeking_fails_that() -> None:
    found = early.null(DRAWS, 2, discordance=0.1, loss=early.MARGIN)
    assert found.better + found.not_worse <= LIMIT + SLACK
    naive = early.null(80, 3, discordance=0.1, loss=early.MARGIN, naive=True)
    assert naive.better + naive.not_worse > LIMIT


def test_several_equal_graders_are_seldom_worse() -> None:
    found = early.null_of_graders(60, 4, graders=4)
    assert found.worse <= LIMIT + 3 * sqrt(LIMIT * (1 - LIMIT) / 60)


def test_real_systems_are_distinguished_with_fewer_cases() -> None:
    if not early.DATA.exists():
        pytest.skip("labelled data is absent (GRADELINE_SHARED_DATA names its folder)")
    found = early.replay(1, 5, every=4)
    assert found.pairs == 18
    assert found.share < 0.55
    assert found.same >= 0.9
    assert found.contradictions == 0.0
