"""The formulas, against known values, against themselves, and against simulation."""

from __future__ import annotations

from itertools import product
from math import inf, isnan, nan, sqrt
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline import stats
from gradeline.stats.distributions import (
    beta_cdf,
    beta_quantile,
    normal_cdf,
    normal_quantile,
    student_quantile,
    student_two_sided,
)


class TestDistributions:
    @pytest.mark.parametrize(
        ("p", "x"), [(0.975, 1.959963984540054), (0.5, 0.0), (0.8, 0.8416212335729143), (1e-10, -6.361340902404056)]
    )
    def test_normal_quantiles_of_the_tables(self, p: float, x: float) -> None:
        assert normal_quantile(p) == pytest.approx(x, abs=1e-12)

    @given(st.floats(1e-12, 1 - 1e-12))
    def test_the_normal_quantile_inverts_the_distribution(self, p: float) -> None:
        assert normal_cdf(normal_quantile(p)) == pytest.approx(p, rel=1e-9)

    @pytest.mark.parametrize(
        ("freedom", "t"), [(1, 12.706204736174705), (9, 2.2621571627982036), (100, 1.9839715185235556)]
    )
    def test_student_quantiles_of_the_tables(self, freedom: int, t: float) -> None:
        assert student_quantile(0.975, freedom) == pytest.approx(t, rel=1e-10)
        assert student_two_sided(t, freedom) == pytest.approx(0.05, rel=1e-9)
        assert student_quantile(0.025, freedom) == pytest.approx(-t, rel=1e-10)

    def test_infinite_degrees_of_freedom_are_the_normal_distribution(self) -> None:
        assert student_quantile(0.9, inf) == normal_quantile(0.9)
        assert student_quantile(0.5, 3) == 0.0

    @given(st.floats(0.5, 200), st.floats(0.5, 200), st.floats(0.001, 0.999))
    def test_the_beta_quantile_inverts_the_distribution(self, a: float, b: float, p: float) -> None:
        assert beta_cdf(beta_quantile(p, a, b), a, b) == pytest.approx(p, abs=1e-9)


class TestProportions:
    @pytest.mark.parametrize(
        ("k", "n", "wilson", "exact"),
        [
            (81, 263, (0.2553, 0.3662), (0.2527, 0.3676)),
            (0, 20, (0.0, 0.1611), (0.0, 0.1684)),
            (8, 10, (0.4902, 0.9433), (0.4439, 0.9748)),
            (10, 10, (0.7225, 1.0), (0.6915, 1.0)),
        ],
    )
    def test_published_intervals(self, k: int, n: int, wilson: tuple[float, float], exact: tuple[float, float]) -> None:
        assert stats.wilson(k, n) == pytest.approx(wilson, abs=5e-5)
        assert stats.clopper_pearson(k, n) == pytest.approx(exact, abs=5e-5)
        assert stats.wilson(k, n).estimate == k / n

    @pytest.mark.parametrize(("k", "n"), [(3, 2), (-1, 2), (0, 0), (1, -1)])
    def test_impossible_counts_are_refused(self, k: int, n: int) -> None:
        for interval in (stats.wilson, stats.clopper_pearson):
            with pytest.raises(ValueError, match=f"got k={k}, n={n}"):
                interval(k, n)

    @pytest.mark.parametrize("confidence", [0.0, 1.0, 95])
    def test_impossible_confidence_is_refused(self, confidence: float) -> None:
        with pytest.raises(ValueError, match="confidence must be between 0 and 1"):
            stats.wilson(1, 2, confidence)

    @given(st.integers(1, 300), st.data())
    def test_intervals_contain_the_estimate_and_are_symmetric(self, n: int, data: st.DataObject) -> None:
        k = data.draw(st.integers(0, n))
        for interval in (stats.wilson, stats.clopper_pearson):
            found, mirrored = interval(k, n), interval(n - k, n)
            assert 0.0 <= found.low <= k / n <= found.high <= 1.0
            assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx(tuple(found), abs=1e-9)


class TestScores:
    @given(st.integers(2, 200), st.data())
    def test_pass_and_fail_have_the_wilson_interval(self, n: int, data: st.DataObject) -> None:
        k = data.draw(st.integers(0, n))
        scores = [1.0] * k + [0.0] * (n - k)
        assert stats.score_interval(scores) == pytest.approx(stats.wilson(k, n), abs=1e-12)
        assert stats.score_sums_interval(n, float(k), float(k)) == pytest.approx(stats.wilson(k, n), abs=1e-12)

    @pytest.mark.parametrize(("score", "n"), [(0.7, 10), (0.8, 10), (1 / 3, 7), (0.1, 100), (0.95, 3)])
    def test_equal_scores_have_the_width_of_the_same_number_of_passes_and_fails(self, score: float, n: int) -> None:
        z = normal_quantile(0.975)
        centre = (score * n + z * z / 2) / (n + z * z)
        reach = z / (n + z * z) * sqrt(n * score * (1 - score) + z * z / 4)
        bounds = (centre - reach, centre + reach)
        assert stats.score_interval([score] * n) == pytest.approx(bounds, abs=1e-9)
        # as a store adds them up, one by one
        total = squares = 0.0
        for _ in range(n):
            total, squares = total + score, squares + score * score
        assert stats.score_sums_interval(n, total, squares) == pytest.approx(bounds, abs=1e-9)

    def test_dense_scores_have_an_effective_number_of_cases(self) -> None:
        scores = [0.78, 0.82, 0.80, 0.79, 0.81]
        found = stats.score_interval(scores)
        student = stats.mean_interval(scores)
        assert found is not None
        assert found.high - found.low == pytest.approx(student.high - student.low, rel=0.02)

    @given(st.lists(st.floats(0, 1), min_size=2, max_size=50))
    def test_the_interval_is_within_the_range_of_scores_around_the_mean(self, scores: list[float]) -> None:
        found = stats.score_interval(scores)
        assert found is not None
        assert 0.0 <= found.low <= found.estimate <= found.high <= 1.0
        assert found.low < found.high

    @given(st.lists(st.integers(0, 100), min_size=2, max_size=50))
    def test_sums_and_scores_give_the_same_interval(self, percents: list[int]) -> None:
        scores = [percent / 100 for percent in percents]
        found = stats.score_sums_interval(len(scores), sum(scores), sum(score * score for score in scores))
        assert found == pytest.approx(stats.score_interval(scores), abs=1e-6)

    def test_equal_repeats_count_as_one_case(self) -> None:
        cases = [0.0] + [1.0] * 9
        once = stats.score_interval(cases)
        thrice = stats.score_interval(cases * 3, clusters=list(range(10)) * 3)
        assert thrice == pytest.approx(once)

    @pytest.mark.parametrize("clusters", [None, ["a"]])
    def test_one_score_has_no_interval(self, clusters: list[str] | None) -> None:
        assert stats.score_interval([0.5], clusters) is None
        assert stats.score_sums_interval(1, 0.5, 0.25) is None

    def test_one_cluster_has_no_interval(self) -> None:
        assert stats.score_interval([0.0, 1.0, 1.0], clusters="aaa") is None


class TestMeans:
    def test_the_t_interval(self) -> None:
        found = stats.mean_interval([1.0, 2.0, 3.0, 4.0])
        assert (found.estimate, found.n) == (2.5, 4)
        assert found.se == pytest.approx(0.6454972243679028)
        assert found == pytest.approx((0.4457397432391, 4.5542602567609))

    def test_repeats_of_one_case_count_as_one(self) -> None:
        once = stats.mean_interval([0.0, 1.0, 1.0], clusters=["a", "b", "c"])
        thrice = stats.mean_interval([0.0, 1.0, 1.0] * 3, clusters=["a", "b", "c"] * 3)
        assert thrice.se == pytest.approx(once.se)
        assert thrice == pytest.approx(once)

    def test_clusters_of_one_equal_no_clusters(self) -> None:
        values = [0.1, 0.9, 0.4, 0.4, 0.7]
        assert stats.mean_interval(values, clusters=range(5)) == pytest.approx(stats.mean_interval(values))

    @pytest.mark.parametrize("clusters", [None, ["a"]])
    def test_one_value_has_no_interval(self, clusters: list[str] | None) -> None:
        found = stats.mean_interval([0.7], clusters)
        assert (found.low, found.high, found.estimate, found.se) == (-inf, inf, 0.7, None)

    @pytest.mark.parametrize("values", [[], [0.5, nan], [inf]])
    def test_missing_is_not_a_number(self, values: list[float]) -> None:
        with pytest.raises(ValueError, match=r"no values|leave out missing values"):
            stats.mean_interval(values)

    def test_every_value_requires_a_cluster(self) -> None:
        with pytest.raises(ValueError, match="2 values but 1 clusters"):
            stats.mean_interval([1.0, 2.0], clusters=["a"])


class TestPairs:
    def test_the_difference_is_taken_case_by_case(self) -> None:
        found = stats.paired_difference([1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0])
        assert (found.estimate, found.n) == (0.5, 4)
        assert found.se == pytest.approx(0.2886751345948129)

    def test_unpaired_values_are_refused(self) -> None:
        with pytest.raises(ValueError, match="2 values against 1: pairs are needed"):
            stats.paired_difference([1.0, 0.0], [1.0])

    @pytest.mark.parametrize(
        ("b", "c", "exact", "mid_p"),
        [(8, 2, 0.109375, 0.0654296875), (121, 59, 4.4344492637551645e-06, 3.2666467957745996e-06), (0, 0, 1.0, 1.0)],
    )
    def test_mcnemar(self, b: int, c: int, exact: float, mid_p: float) -> None:
        for found in (stats.mcnemar(b, c), stats.mcnemar(c, b)):
            assert found == pytest.approx((exact, mid_p), rel=1e-9)

    def test_mcnemar_refuses_impossible_counts(self) -> None:
        with pytest.raises(ValueError, match="b=-1"):
            stats.mcnemar(-1, 2)

    def test_darwins_maize(self) -> None:
        differences = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
        assert stats.sign_flip_test(differences) == 1726 / 32768

    def test_sampled_signs_approximate_the_exact_p_and_are_deterministic(self) -> None:
        differences = [0.2, -0.1, 0.4, 0.1, 0.3, -0.2, 0.1, 0.0, 0.2, 0.1, 0.3, -0.1, 0.2, 0.2, 0.1, -0.3, 0.4]
        sampled = stats.sign_flip_test(differences)
        assert sampled == stats.sign_flip_test(differences)
        assert sampled != stats.sign_flip_test(differences, seed=1)
        tenths = [round(10 * difference) for difference in differences if difference]
        sums = [sum(signed) for signed in product(*((tenth, -tenth) for tenth in tenths))]
        exact = sum(abs(total) >= abs(sum(tenths)) for total in sums) / len(sums)
        assert sampled == pytest.approx(exact, abs=0.006)

    @given(st.lists(st.floats(-1, 1), min_size=1, max_size=10))
    def test_the_sign_flip_test_is_symmetric(self, differences: list[float]) -> None:
        p = stats.sign_flip_test(differences)
        assert 0.0 < p <= 1.0
        assert stats.sign_flip_test([-d for d in differences]) == pytest.approx(p)

    def test_multiple_comparisons(self) -> None:
        ps = [0.01, 0.04, 0.03, 0.005]
        assert stats.holm(ps) == pytest.approx([0.03, 0.06, 0.06, 0.02])
        assert stats.benjamini_hochberg(ps) == pytest.approx([0.02, 0.04, 0.04, 0.02])
        assert (stats.holm([]), stats.benjamini_hochberg([])) == ([], [])
        with pytest.raises(ValueError, match=r"got 1\.5"):
            stats.holm([1.5])


class TestRepeats:
    @pytest.mark.parametrize(
        ("n", "c", "k", "at", "hat"),
        [(10, 3, 5, 0.9166666667, 0.0), (4, 3, 2, 1.0, 0.5), (5, 0, 3, 0.0, 0.0), (5, 5, 3, 1.0, 1.0)],
    )
    def test_pass_at_k_and_pass_hat_k(self, n: int, c: int, k: int, at: float, hat: float) -> None:
        assert (stats.pass_at_k(n, c, k), stats.pass_hat_k(n, c, k)) == pytest.approx((at, hat))

    @pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 4, 1), (3, 1, 0)])
    def test_too_few_attempts_are_refused(self, n: int, c: int, k: int) -> None:
        for of_k in (stats.pass_at_k, stats.pass_hat_k):
            with pytest.raises(ValueError, match="need"):
                of_k(n, c, k)

    def test_flakiness_ranges_from_stable_to_random(self) -> None:
        assert [stats.flakiness(tries) for tries in ([True] * 4, [False], [True, False])] == [0.0, 0.0, 1.0]
        with pytest.raises(ValueError, match="no repeats"):
            stats.flakiness([])


class TestPower:
    def test_published_numbers_of_cases(self) -> None:
        assert stats.cases_needed(0.03, 1 / 9) == pytest.approx(968.9974980677886)
        assert stats.cases_needed(0.03, 1 / 9, 1 / 6, 1 / 6, 10, 10) == pytest.approx(1259.6967474881253)
        assert stats.minimum_detectable_effect(198, 1 / 9, 1 / 6, 1 / 6) == pytest.approx(0.1327333278739942)
        assert stats.cases_needed(0.0, 1.0) == inf

    def test_the_effect_that_n_cases_find_needs_n_cases(self) -> None:
        effect = stats.minimum_detectable_effect(250, 0.2)
        assert stats.cases_needed(effect, 0.2) == pytest.approx(250)

    def test_noise_threshold(self) -> None:
        changes = [1.0] * 10 + [-1.0] * 10 + [0.0] * 80
        assert stats.noise_threshold(changes) == pytest.approx(1.959963984540054 * (21 / 102 / 100) ** 0.5)
        assert stats.noise_threshold([one / 10 for one in changes]) == pytest.approx(
            stats.noise_threshold(changes) / 10
        )
        assert stats.noise_threshold([0.0] * 10) == pytest.approx(1.959963984540054 * (1 / 12 / 10) ** 0.5)
        assert stats.noise_threshold([1.0]) == 1.0
        with pytest.raises(ValueError, match="no values"):
            stats.noise_threshold([])
        with pytest.raises(ValueError, match=r"alpha must be between 0 and 1, got 1\.5"):
            stats.noise_threshold([0.5], alpha=1.5)

    def test_cases_to_decide(self) -> None:
        # (1.959964 + 0.841621)² · 0.1 / 0.02²
        assert stats.cases_to_decide(0.1, 0.02) == 1963
        assert stats.cases_to_decide(0.1, 0.1, power=0.5) == 39
        with pytest.raises(ValueError, match="a margin above 0 is needed"):
            stats.cases_to_decide(0.1, 0.0)

    @pytest.mark.parametrize(
        "call", [{"variance": -1.0}, {"variance": 1.0, "repeats_a": 0}, {"variance": 1.0, "power": 1.0}]
    )
    def test_impossible_designs_are_refused(self, call: dict[str, float]) -> None:
        with pytest.raises(ValueError, match=r"negative|repeat|power"):
            stats.minimum_detectable_effect(10, **call)


class TestBootstrap:
    def test_the_bootstrap_is_seeded_and_contains_the_estimate(self) -> None:
        values = [index / 99 for index in range(100)]
        found = stats.bootstrap(values, median)
        assert found == stats.bootstrap(values, median)
        assert found != stats.bootstrap(values, median, seed=1)
        assert found.low < found.estimate < found.high
        assert found == pytest.approx((0.4, 0.6), abs=0.06)


@pytest.mark.parametrize("n", [10, 30, 100, 1000])
class TestCoverage:
    """Between 93 and 99 % of the 95 % intervals contain the true value (allowing for simulation noise)."""

    ROUNDS = 2_000

    @pytest.mark.slow
    def test_wilson_and_exact_over_all_rates(self, n: int) -> None:
        random = Random(n)
        held = {stats.wilson: 0, stats.clopper_pearson: 0}
        intervals = {(name, k): name(k, n) for name in held for k in range(n + 1)} if n <= 100 else {}
        for _ in range(self.ROUNDS):
            rate = random.random()
            k = sum(random.random() < rate for _ in range(n))
            for name in held:
                found = intervals.get((name, k)) or intervals.setdefault((name, k), name(k, n))
                held[name] += found.low <= rate <= found.high
        assert 0.93 <= held[stats.wilson] / self.ROUNDS <= 0.99
        assert 0.94 <= held[stats.clopper_pearson] / self.ROUNDS <= 1.0

    @pytest.mark.slow
    def test_means_and_paired_differences_of_scores(self, n: int) -> None:
        random = Random(n)
        means = differences = 0
        for _ in range(self.ROUNDS if n < 1000 else 500):
            a = [random.betavariate(2, 1) for _ in range(n)]
            b = [random.betavariate(2, 2) for _ in range(n)]
            mean, difference = stats.mean_interval(a), stats.paired_difference(a, b)
            means += mean.low <= 2 / 3 <= mean.high
            differences += difference.low <= 2 / 3 - 1 / 2 <= difference.high
        rounds = self.ROUNDS if n < 1000 else 500
        assert 0.93 <= means / rounds <= 0.99
        assert 0.93 <= differences / rounds <= 0.99


def test_an_interval_unpacks_and_explains_itself() -> None:
    low, high = found = stats.wilson(8, 10)
    assert (low, high) == (found.low, found.high)
    assert repr(found) == "Interval(0.490162, 0.943318, estimate=0.8, n=10)"
    assert not isnan(found.estimate)
