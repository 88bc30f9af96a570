"""The number of cases or labels for an interval of a given width."""

from __future__ import annotations

import pytest

from gradeline.stats.power import cases_for_half_width, labels_for_kappa, labels_for_rate


def test_labels_for_a_rate_equal_the_textbook() -> None:
    assert [labels_for_rate(width) for width in (0.1, 0.05, 0.03)] == [97, 385, 1068]
    assert labels_for_rate(0.05, rate=0.9) == 139


def test_labels_for_a_kappa_increase_with_the_chance_agreement() -> None:
    assert labels_for_kappa(0.1, 0.85) == 196
    assert labels_for_kappa(0.1, 0.85, chance=0.7) == 545


def test_cases_for_a_mean() -> None:
    assert cases_for_half_width(0.1, 0.25) == labels_for_rate(0.1)
    assert cases_for_half_width(0.5, 0.0) == 2


@pytest.mark.parametrize("width", [0.0, -0.1])
def test_no_number_of_cases_gives_certainty(width: float) -> None:
    with pytest.raises(ValueError, match="a half width above 0 is needed"):
        labels_for_rate(width)


def test_agreement_by_chance_only_is_refused() -> None:
    with pytest.raises(ValueError, match="by chance must be from 0 to below 1"):
        labels_for_kappa(0.1, 1.0, chance=1.0)
