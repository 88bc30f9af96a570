"""Boundaries of repeated looks, and the interval of each look."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from random import Random

import pytest

from gradeline.stats import mean_interval, sequential
from gradeline.stats.sequential import (
    LOOKS,
    DifferenceSums,
    RepeatedInterval,
    alpha_spent,
    boundaries,
    look_sizes,
    sum_differences,
)

TABLE = (
    3.711, 3.635, 3.550, 3.464, 3.379, 3.296, 3.214, 3.131, 3.050, 2.968,
    2.885, 2.803, 2.719, 2.634, 2.549, 2.462, 2.373, 2.283, 2.190, 2.096,
)  # fmt: skip
"""Published for 20 looks at 0.05; its last ones are 0.0013 too wide, from a coarser integration."""


def test_boundaries_are_those_of_the_table() -> None:
    assert boundaries(0.05) == pytest.approx(TABLE, abs=1.5e-3)
    assert boundaries(0.05)[:9] == pytest.approx(TABLE[:9], abs=1e-3)


def test_boundaries_are_those_of_gsdesign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three looks, one-sided 0.025, gamma -4: the values of R's gsDesign."""
    monkeypatch.setattr(sequential, "LOOKS", 3)
    boundaries.cache_clear()
    try:
        assert boundaries(0.05, 3) == pytest.approx((3.0107, 2.5465, 1.9992), abs=1e-4)
    finally:
        boundaries.cache_clear()


def test_more_nodes_give_the_same_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [boundaries(alpha) for alpha in (0.05, 0.005, 5e-5, 0.5)]
    boundaries.cache_clear()
    sequential._legendre.cache_clear()
    monkeypatch.setattr(sequential, "_NODES", 48)
    try:
        for one, alpha in zip(before, (0.05, 0.005, 5e-5, 0.5), strict=True):
            assert boundaries(alpha) == pytest.approx(one, abs=1e-7)
    finally:
        boundaries.cache_clear()
        sequential._legendre.cache_clear()


def test_fewer_looks_have_the_same_first_boundaries() -> None:
    assert boundaries(0.05, 5) == boundaries(0.05)[:5]


def test_a_smaller_error_rate_has_wider_boundaries() -> None:
    for number in range(1, 10):
        wide, narrow = boundaries(0.05 / (number + 1)), boundaries(0.05 / number)
        assert all(one > other for one, other in zip(wide, narrow, strict=True))


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.1])
def test_an_error_rate_is_a_probability(alpha: float) -> None:
    with pytest.raises(ValueError, match="error rate"):
        boundaries(alpha)


def test_the_whole_error_rate_is_spent_at_the_last_look() -> None:
    assert alpha_spent(0.05, LOOKS) == 0.05
    assert all(alpha_spent(0.05, one) < alpha_spent(0.05, other) for one, other in pairwise(range(LOOKS + 1)))


def test_looks_are_rounded_up() -> None:
    assert look_sizes(492)[:3] == (25, 50, 74)
    assert look_sizes(492)[-1] == 492
    assert look_sizes(100) == tuple(range(5, 101, 5))


def test_the_interval_is_the_mean_and_the_boundary_times_the_standard_error() -> None:
    found = sum_differences([1.0] * 3 + [-1.0] * 10 + [0.0] * 187).at(8, 0.05)
    mean = -7 / 200
    se = sqrt(((13 + 1) / 201 - (7 / 201) ** 2) / 200)
    assert (found.cases, found.mean, found.se) == (200, pytest.approx(mean), pytest.approx(se))
    reach = boundaries(0.05)[7] * se
    assert found.interval == pytest.approx((mean - reach, mean + reach))


def test_cases_without_a_change_do_not_prove_equality() -> None:
    low, high = sum_differences([0.0] * 5).at(1, 0.05).interval
    assert low < -0.5
    assert high > 0.5


@pytest.mark.parametrize("look", [1, 7, 13, 20])
@pytest.mark.parametrize("reach", [0.9, 0.9999999, 1.0000001, 1.5])
def test_p_is_the_error_rate_at_which_the_interval_touches_0(look: int, reach: float) -> None:
    found = RepeatedInterval(look, 100, reach * boundaries(0.05)[look - 1] * 0.01, 0.01, 0.05)
    p = found.p
    low, _ = found._replace(alpha=p).interval
    assert abs(low) < 1e-5
    assert (p <= 0.05) == (found.interval[0] > 0.0) == (reach > 1.0)


def test_p_is_1_without_a_difference_and_has_a_least_value() -> None:
    assert sum_differences([0.0] * 100).at(20, 0.05).p == 1.0
    assert sum_differences([1.0] * 5000).at(20, 0.05).p == pytest.approx(1e-12)


def test_clusters_of_one_count_as_cases() -> None:
    changes = [1.0, 0.0, -1.0, 0.0, 0.0, 1.0] * 20
    unclustered = sum_differences(changes).at(4, 0.05)
    each = sum_differences(changes, range(len(changes))).at(4, 0.05)
    assert each.se == pytest.approx(unclustered.se, rel=0.02)
    mixed = sum_differences(changes, [number if number % 2 else None for number in range(len(changes))]).at(4, 0.05)
    assert mixed.se == pytest.approx(each.se)


def test_clusters_that_change_together_have_the_standard_error_of_cr1() -> None:
    random = Random(5)
    changes, clusters = [], []
    for cluster in range(200):
        change = random.choice([1.0, 0.0, 0.0, -1.0])
        changes += [change] * 5
        clusters += [cluster] * 5
    found = sum_differences(changes, clusters).at(20, 0.05)
    assert found.se == pytest.approx(mean_interval(changes, clusters).se, rel=0.01)
    assert found.se > 2.0 * sum_differences(changes).at(20, 0.05).se


def test_one_cluster_has_no_interval() -> None:
    assert sum_differences([1.0] * 50, ["a"] * 50).at(20, 0.05).interval == (-1.0, 1.0)


def test_cases_are_counted() -> None:
    found = DifferenceSums()
    for change in (0.5, 0.0):
        found.add(change)
    assert found.cases == 2


def test_a_few_cases_that_all_change_alike_are_not_certain() -> None:
    found = sum_differences([1.0] * 5).at(1, 0.05)
    assert found.interval[0] < 0.1
    assert found.p > 1e-4
