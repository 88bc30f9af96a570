"""Rates and differences corrected by labels."""

from __future__ import annotations

from math import sqrt
from random import Random

import pytest

from gradeline.stats import corrected_difference, corrected_mean, mean_interval, rogan_gladen, score_interval, wilson
from gradeline.stats.distributions import student_quantile


def items(tp: int, fn: int, fp: int, tn: int) -> tuple[list[float], list[float]]:
    """Labels and verdicts."""
    return [1.0] * (tp + fn) + [0.0] * (fp + tn), [1.0] * tp + [0.0] * fn + [1.0] * fp + [0.0] * tn


LABELS, JUDGED = items(tp=126, fn=39, fp=1, tn=34)
REST = [1.0] * 1739 + [0.0] * (2820 - 1739)


def test_the_estimate_and_its_standard_error_equal_the_reference() -> None:
    found = corrected_mean(LABELS, JUDGED, REST)
    assert found.estimate == pytest.approx(0.817308, abs=5e-7)
    assert (found.estimate - 1.959964 * found.se, found.estimate + 1.959964 * found.se) == pytest.approx(
        (0.773685, 0.860930), abs=5e-7
    )
    assert found.weight == pytest.approx(0.41958, abs=5e-6)
    assert (found.labels, found.judged) == (200, 3020)


def test_the_interval_is_that_of_scores() -> None:
    found = corrected_mean(LABELS, JUDGED, REST)
    rate, cases, q = found.estimate, found.estimate * (1.0 - found.estimate) / found.se**2, student_quantile(0.975, 199)
    centre, reach = rate * cases + q * q / 2.0, q * sqrt(cases * rate * (1.0 - rate) + q * q / 4.0)
    assert cases > 250
    assert tuple(found.interval) == pytest.approx(
        ((centre - reach) / (cases + q * q), (centre + reach) / (cases + q * q))
    )
    assert (found.interval.estimate, found.interval.se, found.interval.n) == (found.estimate, found.se, 200)


def test_a_judge_without_information_is_ignored() -> None:
    labels = [1.0, 0.0] * 50
    for judged, rest in (([1.0] * 100, [1.0] * 500), ([1.0, 1.0, 0.0, 0.0] * 25, [1.0, 0.0] * 250)):
        found = corrected_mean(labels, judged, rest)
        assert (found.estimate, found.weight) == (0.5, 0.0)
        assert tuple(found.interval) == pytest.approx(tuple(wilson(50, 100)))


def test_an_inverted_judge_is_not_repaired_silently() -> None:
    labels = [1.0, 0.0] * 50
    found = corrected_mean(labels, [1.0 - label for label in labels], [0.0] * 400 + [1.0] * 100)
    assert (found.estimate, found.weight) == (0.5, 0.0)


def test_without_further_items_the_labels_decide() -> None:
    scores = [0.2, 0.9, 0.7, 1.0, 0.4] * 8
    found = corrected_mean(scores, [0.5] * 20 + [0.9] * 20, [])
    assert found.weight == 0.0
    expected = score_interval(scores)
    assert expected is not None
    assert found.estimate == pytest.approx(expected.estimate)
    assert tuple(found.interval) == pytest.approx(tuple(expected), abs=0.003)
    assert (found.labels, found.judged) == (40, 40)


def test_the_estimate_does_not_leave_its_range() -> None:
    found = corrected_mean([1.0] * 30 + [0.0], [0.5] * 30 + [0.0], [1.0] * 500 + [0.0] * 10)
    assert found.estimate == 1.0
    assert found.interval.high == 1.0
    assert found.interval.low < 1.0


def test_a_flattering_judge_is_corrected_down() -> None:
    """The judge passes 70 %, people 40 %."""
    random = Random(5)
    truth = [float(random.random() < 0.4) for _ in range(1_000)]
    judged = [1.0 if passed or random.random() < 0.5 else 0.0 for passed in truth]
    found = corrected_mean(truth[:100], judged[:100], judged[100:])
    assert sum(judged) / 1_000 == pytest.approx(0.7, abs=0.04)
    assert found.interval.low <= 0.4 <= found.interval.high
    assert found.interval.high < 0.6


def test_a_difference_without_a_judge_is_student_s() -> None:
    differences = [1.0, 0.0, 0.0, -1.0, 0.0, 1.0, 1.0, 0.0] * 5
    found = corrected_difference(differences, [0.0] * 40, [])
    expected = mean_interval(differences)
    assert found.estimate == expected.estimate
    assert tuple(found.interval) == pytest.approx(tuple(expected))
    assert found.se == pytest.approx(expected.se)


def test_a_difference_uses_the_judge() -> None:
    random = Random(2)
    pairs = [(random.random() < 0.6, random.random() < 0.5) for _ in range(1_000)]
    labels = [float(a) - float(b) for a, b in pairs]
    judged = [value if random.random() < 0.9 else 0.0 for value in labels]
    found = corrected_difference(labels[:100], judged[:100], judged[100:])
    own = mean_interval(labels[:100])
    assert found.interval.high - found.interval.low < 0.75 * (own.high - own.low)
    assert found.interval.low <= sum(labels) / 1_000 <= found.interval.high


def drawn_by_verdict(random: Random, each: int) -> tuple[list[float], list[float], list[float], list[float], float]:
    """1,000 items, half of the labels within each verdict: labels, judged, rest, weights, and the true rate."""
    truth = [float(random.random() < 0.9) for _ in range(1_000)]
    judged = [float(random.random() < (0.95 if passed else 0.3)) for passed in truth]
    chosen: list[tuple[int, float]] = []
    for verdict in (1.0, 0.0):
        members = [i for i, value in enumerate(judged) if value == verdict]
        chosen += [(i, len(members) / each) for i in random.sample(members, each)]
    inside = {i for i, _ in chosen}
    rest = [value for i, value in enumerate(judged) if i not in inside]
    return [truth[i] for i, _ in chosen], [judged[i] for i, _ in chosen], rest, [w for _, w in chosen], 0.9


def test_labels_drawn_by_verdict_are_weighted() -> None:
    random = Random(9)
    covered, naive, widths, draws = 0, 0, 0.0, 300
    for _ in range(draws):
        labels, judged, rest, weights, rate = drawn_by_verdict(random, 50)
        found = corrected_mean(labels, judged, rest, weights)
        covered += found.interval.low <= rate <= found.interval.high
        widths += found.interval.high - found.interval.low
        unweighted = corrected_mean(labels, judged, rest)
        naive += unweighted.interval.low <= rate <= unweighted.interval.high
    assert covered / draws >= 0.93
    assert naive / draws < 0.5
    alone = wilson(90, 100)
    assert widths / draws < alone.high - alone.low


def test_nearly_equal_weights_give_nearly_the_same() -> None:
    nudged = [1.0 + 1e-6 * (i % 2) for i in range(200)]
    plain, weighted = corrected_mean(LABELS, JUDGED, REST), corrected_mean(LABELS, JUDGED, REST, nudged)
    assert weighted.estimate == pytest.approx(plain.estimate, abs=1e-4)
    assert weighted.se == pytest.approx(plain.se, rel=0.01)
    assert weighted.weight == pytest.approx(plain.weight, rel=0.01)
    scaled = corrected_mean(LABELS, JUDGED, REST, [15.0] * 200)
    assert scaled == plain


def test_a_stratum_of_one_item_has_a_variance() -> None:
    labels, judged = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    found = corrected_mean(labels, judged, [1.0, 0.0] * 20, [3.0, 5.0, 5.0, 5.0, 5.0, 20.0])
    assert found.se > 0.05


@pytest.mark.parametrize(("labels", "passes"), [(50, 0.9), (100, 0.9)])
def test_hardly_any_disagreement_is_no_proof(labels: int, passes: float) -> None:
    """A judge that is right 98 % of the time, on 10,000 items: often no label of the sample disagrees with it."""
    random = Random(labels)
    covered, agreed, draws = 0, 0, 150
    for _ in range(draws):
        truth = [float(random.random() < passes) for _ in range(labels)]
        judged = [value if random.random() < 0.98 else 1.0 - value for value in truth]
        share = passes * 0.98 + (1.0 - passes) * 0.02
        rest = [1.0] * sum(random.random() < share for _ in range(4_000))
        found = corrected_mean(truth, judged, rest + [0.0] * (4_000 - len(rest)))
        covered += found.interval.low <= passes <= found.interval.high
        agreed += truth == judged
    assert agreed > 0
    assert covered / draws >= 0.92  # without the allowance: 0.80 and 0.90


def test_labels_without_a_change_do_not_prove_that_there_is_none() -> None:
    found = corrected_difference([0.0] * 100, [0.0] * 100, [0.0] * 300)
    assert (found.estimate, found.weight) == (0.0, 0.0)
    assert tuple(found.interval) == pytest.approx((-0.01994, 0.01994), abs=1e-5)


def test_invalid_input_is_named() -> None:
    with pytest.raises(ValueError, match="3 labels but 2 judge's scores"):
        corrected_mean([1, 0, 1], [1, 0], [])
    with pytest.raises(ValueError, match="at least 2 labels are needed, got 1"):
        corrected_mean([1], [1], [1, 0])
    with pytest.raises(ValueError, match=r"label 1 is 1\.5"):
        corrected_mean([1, 1.5], [1, 0], [])
    with pytest.raises(ValueError, match="label 0 is -2"):
        corrected_difference([-2, 0], [1, 0], [])
    with pytest.raises(ValueError, match="value 3 is nan"):
        corrected_mean([1, 0], [1, 0], [1, float("nan")])
    with pytest.raises(ValueError, match="weight 1 is -1"):
        corrected_mean([1, 0], [1, 0], [1], [1, -1])


def test_rogan_gladen_equals_the_reference() -> None:
    found = rogan_gladen(400, 1_000, 0.9, 200, 0.7, 200)
    assert found.estimate == pytest.approx(1 / 6)
    assert tuple(found.interval) == pytest.approx((0.05635072484160894, 0.2627330257859588), abs=1e-12)
    assert (found.labels, found.judged) == (400, 1_000)
    second = rogan_gladen(400, 500, 0.9, 100, 0.85, 100)
    assert second.estimate == pytest.approx(0.866667, abs=1e-6)
    assert tuple(second.interval) == pytest.approx((0.789883116658491, 0.963302024446925), abs=1e-12)


def test_rogan_gladen_refuses_a_judge_that_hardly_depends_on_the_truth() -> None:
    with pytest.raises(ValueError, match=r"= 0\.006 is below 0\.1.*do not identify a rate"):
        rogan_gladen(705, 1_000, 0.71, 100, 0.296, 100)
    hardly = rogan_gladen(500, 1_000, 0.6, 100, 0.51, 100).interval
    assert hardly.high - hardly.low > 0.9
    with pytest.raises(ValueError, match="11 positives of 10"):
        rogan_gladen(11, 10, 0.9, 10, 0.9, 10)
    with pytest.raises(ValueError, match="specificity was measured on 0"):
        rogan_gladen(5, 10, 0.9, 10, 0.9, 0)
    with pytest.raises(ValueError, match=r"sensitivity must be between 0 and 1, got 1\.9"):
        rogan_gladen(5, 10, 1.9, 10, 0.9, 10)
