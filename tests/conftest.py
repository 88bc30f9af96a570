"""Fixtures and settings that all tests share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

settings.register_profile("gradeline", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gradeline")

Rows = Callable[[str], Iterator[dict[str, Any]]]


@pytest.fixture
def shared_rows() -> Rows:
    """Reads a JSONL file of the labelled data that lies beside the project; skips where it is absent."""
    home = Path(os.environ.get("GRADELINE_SHARED_DATA") or SHARED / "data")

    def rows(name: str) -> Iterator[dict[str, Any]]:
        path = home / name
        if not path.exists():
            pytest.skip(f"labelled data is absent: {name} (GRADELINE_SHARED_DATA names its folder)")
        with path.open(encoding="utf-8") as lines:
            return iter([json.loads(line) for line in lines if line.strip()])

    return rows


@pytest.fixture
def seed() -> Callable[[str], str]:
    """Reads one of the documents the project was created from; skips where it is absent."""

    def read(name: str) -> str:
        path = SHARED / "seeds" / name
        if not path.exists():
            pytest.skip(f"the seed document {name} is absent")
        return path.read_text(encoding="utf-8")

    return read
