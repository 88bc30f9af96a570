"""The OpenAPI document from which the UI types are generated is up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

UI = Path(__file__).parents[2] / "ui"


def test_the_openapi_document_is_up_to_date() -> None:
    generated = subprocess.run([sys.executable, str(UI / "describe.py")], capture_output=True, text=True, check=True)
    stored = (UI / "openapi.json").read_text()
    assert stored == generated.stdout, "run: make types"
