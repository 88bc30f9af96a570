from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from export_project import ExportProject


@pytest.fixture
def exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> ExportProject:
    """A folder in which exports are written and imported."""
    monkeypatch.chdir(tmp_path)
    return ExportProject(tmp_path, capsys)
