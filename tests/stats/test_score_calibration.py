"""Scores against labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.stats import CalibrationBin, brier, calibration_curve, expected_calibration_error, isotonic

SCORES = [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99]
LABELS = [0, 0, 1, 0, 1, 0, 1, 1, 1, 1]


def test_isotonic_equals_the_reference() -> None:
    fit = isotonic([1, 2, 3, 4, 5, 6], [1, 3, 2, 4, 3.5, 5])
    assert fit.values == (1.0, 2.5, 2.5, 3.75, 3.75, 5.0)
    assert [fit(score) for score in (-3, 2.5, 9)] == [1.0, 2.5, 5.0]
    assert isotonic(SCORES, LABELS).values == (0.0, 0.0, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0)


def test_equal_scores_have_one_value() -> None:
    fit = isotonic([0.5, 0.2, 0.5, 0.9], [1, 0, 0, 1])
    assert fit.scores == (0.2, 0.5, 0.9)
    assert fit.values == (0.0, 0.5, 1.0)


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=60))
def test_the_fit_never_decreases_and_keeps_the_mean(pairs: list[tuple[int, bool]]) -> None:
    scores, labels = [score for score, _ in pairs], [float(label) for _, label in pairs]
    fit = isotonic(scores, labels)
    assert list(fit.values) == sorted(fit.values)
    assert sum(map(fit, scores)) == pytest.approx(sum(labels))


def test_errors_equal_the_reference() -> None:
    assert brier(SCORES, LABELS) == pytest.approx(0.14026)
    assert expected_calibration_error(SCORES, LABELS, bins=5) == pytest.approx(0.166)


def test_the_curve_leaves_out_empty_bins() -> None:
    assert calibration_curve([0.0, 0.1, 1.0], [0, 1, 1], bins=4) == [
        CalibrationBin(0.0, 0.25, 0.05, 0.5, 2),
        CalibrationBin(0.75, 1.0, 1.0, 1.0, 1),
    ]


def test_a_weight_counts_as_often_as_the_label_repeated() -> None:
    weights = [1.0 + place % 3 for place in range(len(SCORES))]
    times = [int(weight) for weight in weights]
    scores = [score for score, number in zip(SCORES, times, strict=True) for _ in range(number)]
    labels = [label for label, number in zip(LABELS, times, strict=True) for _ in range(number)]
    assert brier(SCORES, LABELS, weights) == pytest.approx(brier(scores, labels))
    assert isotonic(SCORES, LABELS, weights).values == pytest.approx(isotonic(scores, labels).values)
    ours, theirs = (
        expected_calibration_error(SCORES, LABELS, 5, weights),
        expected_calibration_error(scores, labels, 5),
    )
    assert ours == pytest.approx(theirs)
    for one, other in zip(
        calibration_curve(SCORES, LABELS, 5, weights), calibration_curve(scores, labels, 5), strict=True
    ):
        assert (one.score, one.label) == (pytest.approx(other.score), pytest.approx(other.label))


def test_invalid_input_is_named() -> None:
    with pytest.raises(ValueError, match="2 scores but 1 labels"):
        brier([0.5, 0.6], [1])
    with pytest.raises(ValueError, match=r"score 0 is 1\.5"):
        calibration_curve([1.5], [1])
    with pytest.raises(ValueError, match="at least 1 bin"):
        calibration_curve([0.5], [1], bins=0)
    with pytest.raises(ValueError, match="no values"):
        isotonic([], [])
