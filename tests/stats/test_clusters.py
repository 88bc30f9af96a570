"""One difference per cluster: exact for few changes, Student's t for many."""

from __future__ import annotations

from itertools import product
from math import fsum
from random import Random

import pytest

from gradeline.stats import mean_interval, sign_flip_test
from gradeline.stats.paired import changes_test, clusters_test, score_changes


def test_three_paraphrases_that_improve_together_are_one_improvement() -> None:
    differences = [1.0] * 9 + [0.0] * 15
    clusters = [place // 3 for place in range(24)]
    found = clusters_test(differences, clusters)
    assert found.differences == (1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert (found.test, found.p) == ("sign_flip_exact", 0.25)
    assert found.interval[0] < 0.0 < found.interval[1]
    assert changes_test(differences, pass_or_fail=True).p == pytest.approx(1 / 2**9)


def test_the_mean_over_clusters_is_the_mean_over_cases_whatever_their_sizes() -> None:
    differences = [0.5, -1.0, 0.25, 1.0, 0.0, 0.75]
    found = clusters_test(differences, ["a", "a", "a", "b", "c", "c"])
    assert fsum(found.differences) / 3 == pytest.approx(fsum(differences) / 6)
    assert found.largest == pytest.approx(1.5)


def test_p_counts_every_combination_of_the_signs_of_clusters() -> None:
    differences = [1.0, 1.0, 0.0, -1.0, 1.0, 1.0, 1.0, 0.0, -1.0, 1.0]
    clusters = ["a", "a", "b", "c", "d", "d", "e", "f", "g", "g"]
    sums = [2.0, -1.0, 2.0, 1.0, 0.0]
    observed = abs(fsum(sums))
    ways = [
        abs(fsum(sign * one for sign, one in zip(signs, sums, strict=True))) for signs in product((1, -1), repeat=5)
    ]
    expected = sum(way >= observed for way in ways) / len(ways)
    found = clusters_test(differences, clusters)
    assert found.p == pytest.approx(expected)
    assert found.p == pytest.approx(sign_flip_test(sums))


def test_many_clusters_of_one_size_have_the_clustered_standard_error() -> None:
    random = Random(3)
    before = [random.random() for _ in range(120)]
    after = [min(1.0, score + random.random() / 5) for score in before]
    clusters = [place // 3 for place in range(120)]
    differences = score_changes(before, after)
    found = clusters_test(differences, clusters)
    expected = mean_interval(differences, clusters)
    assert found.test == "paired_t"
    assert found.interval == pytest.approx((expected.low, expected.high))


@pytest.mark.slow
def test_the_test_and_the_interval_agree_on_0_for_clusters_of_any_size() -> None:
    random = Random(5)
    for _ in range(300):
        sizes = [random.choice((1, 1, 2, 3, 9)) for _ in range(random.randint(1, 30))]
        clusters = [number for number, size in enumerate(sizes) for _ in range(size)]
        drift = random.choice((0.0, 0.3, 0.8))
        differences = [random.choice((0.0, drift, -0.5, 1.0, drift)) for _ in clusters]
        found = clusters_test(differences, clusters)
        low, high = found.interval
        assert -1.0 <= low <= fsum(differences) / len(differences) + 1e-9
        assert fsum(differences) / len(differences) - 1e-9 <= high <= 1.0
        assert (found.p <= 0.05) == (low > 1e-12 or high < -1e-12)


def test_every_difference_has_a_cluster() -> None:
    with pytest.raises(ValueError, match="2 differences but 1 clusters; pass one for each"):
        clusters_test([0.0, 1.0], ["a"])
