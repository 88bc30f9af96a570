"""Planted biases are found and an honest judge is not flagged, at a size that fits a test."""

from __future__ import annotations

import probes


def test_probes_find_planted_biases_and_no_others() -> None:
    assert [figure for figure in probes.figures() if not figure.holds] == []
