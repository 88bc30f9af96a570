"""The ledger's interval keeps its coverage when cases are observed again, at a size that fits a test."""

from __future__ import annotations

import ledger


def test_nights_of_the_same_cases_do_not_narrow_the_interval() -> None:
    assert [figure for figure in ledger.figures() if not figure.holds] == []
