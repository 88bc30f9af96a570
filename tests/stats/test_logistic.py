"""Ridge logistic regression."""

from __future__ import annotations

from math import exp, log
from random import Random

import pytest

from gradeline.stats import LogisticModel, fit_logistic


def test_counts_give_their_odds() -> None:
    """With hardly any penalty, one binary feature is the 2 x 2 table: intercept and log odds ratio."""
    rows = [[0.0]] * 40 + [[1.0]] * 60
    labels = [True] * 10 + [False] * 30 + [True] * 45 + [False] * 15
    model = fit_logistic(rows, labels, ridge=1e-9)
    assert model.intercept == pytest.approx(log(10 / 30), abs=1e-6)
    assert model.coefficients == pytest.approx((log(45 / 15) - log(10 / 30),), abs=1e-6)
    assert model.probability([1.0]) == pytest.approx(0.75)


def test_the_gradient_is_zero_at_the_fit() -> None:
    random = Random(0)
    rows = [[random.gauss(0, 1), random.random(), random.choice([0.0, 1.0])] for _ in range(200)]
    labels = [random.random() < 1 / (1 + exp(-row[0] + row[2])) for row in rows]
    weights = [random.choice([1.0, 3.0]) for _ in rows]
    model = fit_logistic(rows, labels, ridge=2.0, weights=weights)
    errors = [w * (y - model.probability(row)) for row, y, w in zip(rows, labels, weights, strict=True)]
    assert sum(errors) == pytest.approx(0.0, abs=1e-7)
    for index, coefficient in enumerate(model.coefficients):
        pull = sum(error * row[index] for error, row in zip(errors, rows, strict=True))
        assert pull == pytest.approx(2.0 * coefficient, abs=1e-7)


def test_a_weight_is_a_repetition() -> None:
    rows, labels = [[0.0], [1.0], [0.5], [0.2]], [False, True, True, False]
    twice = fit_logistic([*rows, rows[2]], [*labels, labels[2]], ridge=0.5)
    weighted = fit_logistic(rows, labels, ridge=0.5, weights=[1, 1, 2, 1])
    assert weighted.coefficients == pytest.approx(twice.coefficients)
    assert weighted.intercept == pytest.approx(twice.intercept)


def test_separable_labels_have_a_finite_fit() -> None:
    model = fit_logistic([[0.0]] * 50 + [[1.0]] * 50, [False] * 50 + [True] * 50, ridge=0.01)
    assert 5.0 < model.coefficients[0] < 50.0
    assert model.probability([1.0]) > 0.97
    assert model.probability([0.0]) < 0.03


def test_a_feature_without_variation_or_a_copy_is_no_failure() -> None:
    rows = [[x, x, 1.0] for x in (0.0, 0.2, 0.9, 1.0, 0.4, 0.6)]
    model = fit_logistic(rows, [False, False, True, True, True, False], ridge=1.0)
    assert model.coefficients[0] == pytest.approx(model.coefficients[1])
    assert model.coefficients[2] == pytest.approx(0.0, abs=1e-9)


def test_large_values_do_not_overflow() -> None:
    model = fit_logistic([[-1e4], [1e4], [2e4], [-2e4]], [False, True, True, False], ridge=1e-3)
    assert model.probability([1e6]) == 1.0
    assert model.probability([-1e6]) == 0.0


def test_invalid_input_is_named() -> None:
    with pytest.raises(ValueError, match="2 rows but 1 labels"):
        fit_logistic([[1.0], [2.0]], [True], ridge=1.0)
    with pytest.raises(ValueError, match="labels of both kinds"):
        fit_logistic([[1.0], [2.0]], [True, True], ridge=1.0)
    with pytest.raises(ValueError, match="ridge must be a number above 0"):
        fit_logistic([[1.0], [2.0]], [True, False], ridge=0.0)
    with pytest.raises(ValueError, match="row 1 has 2 features, the first one 1"):
        fit_logistic([[1.0], [2.0, 3.0]], [True, False], ridge=1.0)
    with pytest.raises(ValueError, match="leave out rows with missing values"):
        fit_logistic([[1.0], [float("nan")]], [True, False], ridge=1.0)
    with pytest.raises(ValueError, match="1 features, but the model was fitted on 2"):
        LogisticModel((1.0, 2.0), 0.0).probability([1.0])
