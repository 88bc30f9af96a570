"""Agreement of judges with labels and of raters with each other."""

from __future__ import annotations

from math import sqrt
from random import Random

import pytest

from gradeline.stats import Confusion, cohen_kappa, confusion, kappa_lower_bound, krippendorff_alpha


def test_a_table_counts_verdicts_against_labels() -> None:
    labels = [True, True, True, False, False, True, False]
    verdicts = [True, False, True, True, False, None, None]
    table = confusion(labels, verdicts)
    assert table == Confusion(tp=2, fp=1, fn=1, tn=1, missing=2)
    assert (table.n, table.positives, table.negatives) == (5, 3, 2)
    assert (table.agreement, table.sensitivity, table.specificity, table.missing_rate) == (3 / 5, 2 / 3, 1 / 2, 2 / 7)


def test_what_has_no_denominator_is_undefined() -> None:
    table = Confusion(0, 3, 0, 2)
    assert (table.sensitivity, table.specificity, table.agreement) == (None, 2 / 5, 2 / 5)
    empty = Confusion(0, 0, 0, 0)
    assert (empty.agreement, empty.missing_rate, cohen_kappa(empty), kappa_lower_bound(empty)) == (None,) * 4


def test_equal_weights_change_nothing_but_the_counts() -> None:
    labels, verdicts = [True] * 30 + [False] * 20, [True] * 25 + [False] * 20 + [True] * 5
    plain, weighted = confusion(labels, verdicts), confusion(labels, verdicts, [4.0] * 50)
    assert weighted[:5] == tuple(4.0 * cell for cell in plain[:5])
    ours, theirs = cohen_kappa(plain), cohen_kappa(weighted)
    assert ours is not None
    assert theirs is not None
    assert tuple(theirs) == pytest.approx(tuple(ours))


def test_kappa_equals_the_textbook() -> None:
    kappa = cohen_kappa([[20, 5], [10, 15]])
    assert kappa is not None
    assert kappa.estimate == pytest.approx(0.4)
    assert cohen_kappa(Confusion(tp=20, fn=5, fp=10, tn=15)) == kappa
    # agreement above 0.9, and yet less than by chance
    paradox = cohen_kappa([[90, 5], [5, 0]])
    assert paradox is not None
    assert paradox.estimate == pytest.approx(-0.05263157894736836)


def test_the_standard_error_of_kappa_is_that_of_fleiss_cohen_and_everitt() -> None:
    rows = [[20, 5], [10, 15]]
    n, kappa = 50, 0.4
    p = [[cell / n for cell in row] for row in rows]
    left, right = [0.5, 0.5], [0.6, 0.4]
    chance = 0.5
    a = sum(p[i][i] * (1 - (left[i] + right[i]) * (1 - kappa)) ** 2 for i in range(2))
    b = (1 - kappa) ** 2 * sum(p[i][j] * (right[i] + left[j]) ** 2 for i in range(2) for j in range(2) if i != j)
    c = (kappa - chance * (1 - kappa)) ** 2
    interval = cohen_kappa(rows)
    assert interval is not None
    assert interval.se == pytest.approx(sqrt((a + b - c) / n) / (1 - chance))
    assert tuple(interval) == pytest.approx((0.4 - 1.959964 * interval.se, 0.4 + 1.959964 * interval.se))
    assert kappa_lower_bound(rows) == pytest.approx(0.4 - 1.6448536 * interval.se)


def test_kappa_over_three_categories() -> None:
    kappa = cohen_kappa([[10, 2, 0], [1, 8, 1], [0, 2, 6]])
    assert kappa is not None
    assert kappa.estimate == pytest.approx((0.8 - 308 / 900) / (1 - 308 / 900))


@pytest.mark.parametrize("table", [[[9, 0], [0, 0]], Confusion(0, 0, 0, 7)])
def test_kappa_of_one_category_is_undefined(table: Confusion) -> None:
    assert cohen_kappa(table) is None
    assert kappa_lower_bound(table) is None


def test_a_table_that_is_not_square_is_refused() -> None:
    with pytest.raises(ValueError, match="2 rows: each needs the same number of columns"):
        cohen_kappa([[1, 2, 3], [1, 2, 3]])
    with pytest.raises(ValueError, match="negative"):
        cohen_kappa([[1, -2], [1, 2]])


def test_each_label_has_a_verdict_and_a_weight() -> None:
    with pytest.raises(ValueError, match="2 labels but 1 verdicts"):
        confusion([True, False], [True])
    with pytest.raises(ValueError, match="2 labels but 1 weights"):
        confusion([True, False], [True, True], [1.0])
    with pytest.raises(ValueError, match=r"weight 1 is 0\.0"):
        confusion([True, False], [True, True], [1.0, 0.0])


def test_the_interval_of_kappa_holds_the_truth_where_items_are_drawn_by_verdict() -> None:
    """A system that passes 92 %, and a judge that is right 92 and 88 % of the time: half the labels are failures."""
    random = Random(3)
    truth = [random.random() < 0.92 for _ in range(40_000)]
    judged = [random.random() < (0.92 if passed else 0.12) for passed in truth]
    population = cohen_kappa(confusion(truth, judged))
    assert population is not None
    by_verdict = {verdict: [i for i, one in enumerate(judged) if one is verdict] for verdict in (True, False)}
    covered, naive = 0, 0
    draws = 300
    for _ in range(draws):
        chosen = [(i, len(items) / 50) for items in by_verdict.values() for i in random.sample(items, 50)]
        labels, verdicts = [truth[i] for i, _ in chosen], [judged[i] for i, _ in chosen]
        weighted = cohen_kappa(confusion(labels, verdicts, [weight for _, weight in chosen]))
        plain = cohen_kappa(confusion(labels, verdicts))
        assert weighted is not None
        assert plain is not None
        covered += weighted.low <= population.estimate <= weighted.high
        naive += plain.low <= population.estimate <= plain.high
    assert covered / draws >= 0.93
    assert naive / draws < 0.8


CLASSIC = (
    (1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None),
    (1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3),
    (None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None),
    (1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None),
)
UNITS = [
    {str(rater): rating for rater, rating in enumerate(column) if rating is not None}
    for column in zip(*CLASSIC, strict=True)
]


@pytest.mark.parametrize(
    ("level", "expected"),
    [("nominal", 0.743421), ("ordinal", 0.815388), ("interval", 0.849107), ("ratio", 0.797403)],
)
def test_alpha_of_the_classic_table(level, expected: float) -> None:
    alpha = krippendorff_alpha(UNITS, level)
    assert alpha is not None
    assert alpha.estimate == pytest.approx(expected, abs=1e-6)
    assert alpha.low < alpha.estimate < alpha.high <= 1.0
    assert alpha.n == 11  # one item has a single rating
    assert krippendorff_alpha(UNITS, level) == alpha


def test_alpha_of_words() -> None:
    both = [{"ann": "pass", "bob": "pass"}, {"ann": "fail", "bob": "fail"}] * 10
    alpha = krippendorff_alpha(both)
    assert alpha is not None
    assert alpha.estimate == 1.0
    with pytest.raises(ValueError, match="is not a number"):
        krippendorff_alpha(both, "interval")
    with pytest.raises(ValueError, match="negative"):
        krippendorff_alpha([{"a": -1.0, "b": 1.0}], "ratio")


@pytest.mark.parametrize("units", [[], [{"ann": "pass"}], [{"ann": "pass", "bob": "pass"}] * 5])
def test_alpha_without_variation_is_undefined(units: list[dict[str, float | str]]) -> None:
    assert krippendorff_alpha(units) is None


def test_raters_who_guess_have_an_alpha_around_zero() -> None:
    random = Random(1)
    units = [{rater: random.choice(["pass", "fail"]) for rater in ("ann", "bob", "cy")} for _ in range(200)]
    alpha = krippendorff_alpha(units)
    assert alpha is not None
    assert alpha.low < 0.0 < alpha.high
    assert alpha.high - alpha.low < 0.25
