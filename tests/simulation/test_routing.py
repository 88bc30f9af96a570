"""Regret, flattery and the promise at a reduced size."""

from __future__ import annotations

import routing


def test_the_router_earns_more_than_the_strong_model_and_keeps_its_promises() -> None:
    rows = routing.figures()
    assert len(rows) == 8
    assert [row for row in rows if not row.holds] == []
