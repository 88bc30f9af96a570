"""Ranks of equally good runs, in a simulation of reduced size."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

MANY = run_path(str(Path(__file__).with_name("many.py")))


def test_equally_good_runs_are_seldom_ranked_apart_and_the_intervals_hold_together() -> None:
    found = MANY["figures"](full=False)
    assert len(found) == 2 * len(MANY["SMALL"])
    assert [row for row in found if not row.holds] == []
