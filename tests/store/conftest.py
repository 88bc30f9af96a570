"""Lets the tests of this folder import its modules, with asserts that show their values."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("full_store", "ledger_sums")
