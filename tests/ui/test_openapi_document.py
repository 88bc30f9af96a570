"""The UI's types are made of the service's own description."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

UI = Path(__file__).parents[2] / "ui"


def test_the_stored_document_is_the_services() -> None:
    made = subprocess.run([sys.executable, str(UI / "describe.py")], capture_output=True, text=True, check=True)
    stored = (UI / "openapi.json").read_text()
    assert stored == made.stdout, "run: make types"
