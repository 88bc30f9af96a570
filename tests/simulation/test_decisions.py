"""Decisions are as seldom wrong as they promise.

Rates over pass and fail are exact sums. Those of several graders (150 draws) and of the number of cases (60 draws) have
three standard errors of slack: 5 and 16 points.
"""

from __future__ import annotations

import decisions
import pytest
from tables import tables


def test_every_rate_keeps_its_limit() -> None:
    assert [row for row in decisions.figures() if not row.holds] == []


def test_a_table_is_decided_as_its_cases_are() -> None:
    for cases, up, down in [(50, 0, 0), (50, 6, 0), (50, 0, 9), (200, 3, 12), (400, 0, 6), (400, 10, 10)]:
        assert decisions.decided(cases, up, down) == decisions.compared(cases, up, down).decision


@pytest.mark.parametrize(("cases", "up", "down"), [(10, 0.1, 0.2), (50, 0.0, 0.03), (300, 0.1, 0.05)])
def test_the_chances_of_all_tables_sum_to_1(cases: int, up: float, down: float) -> None:
    assert sum(table.chance for table in tables(cases, up, down)) == pytest.approx(1.0, abs=1e-4)
