"""What axe finds wrong with a page, and whether it fits its window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from browsing import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
RUN_AXE = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"


def faults_of(page: Page, name: str, width: int) -> list[str]:
    """Every fault of the page as it shows now."""
    if not AXE.is_file():
        pytest.skip("axe-core is absent; run: npm ci --ignore-scripts in ui/")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    faults = [f"{name}: {_told(violation)}" for violation in page.evaluate(RUN_AXE)["violations"]]
    if page.evaluate("document.documentElement.scrollWidth") > width:
        faults.append(f"{name}: the page is wider than the window")
    return faults


def _told(violation: dict[str, Any]) -> str:
    places = [node["target"][-1] for node in violation["nodes"][:3]]
    return f"{violation['id']}: {violation['help']} at {places}"
