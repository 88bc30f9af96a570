"""Corrected rates and calibration at a reduced size. The limits allow three standard errors of so few draws."""

from __future__ import annotations

import corrected
import judged_sets
import pytest


def test_corrected_rates_and_calibration_keep_their_promises() -> None:
    rows = corrected.figures()
    assert [row for row in rows if not row.holds] == []
    if not judged_sets.present():
        pytest.skip("labelled data is absent, so no real judge is included (GRADELINE_SHARED_DATA names its folder)")
    assert sum(row.name.startswith(("rate, ", "difference, ", "arena, ", "evouna ", "best of ")) for row in rows) > 20
