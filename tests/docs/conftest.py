"""Makes ``page_runner`` importable, with rewritten asserts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("page_runner")
