"""The intervals keep their coverage, at a size that fits a test: 250 draws, three standard errors of slack (1 to 7 points)."""

from __future__ import annotations

import intervals


def test_every_interval_has_its_required_coverage() -> None:
    assert [row for row in intervals.figures() if not row.holds] == []
