"""The table of faults in the documentation names existing tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy" / "faults.md").read_text(encoding="utf-8")
TESTS = ROOT / "tests"


def test_every_row_of_the_fault_model_is_in_it() -> None:
    assert {int(number) for number in re.findall(r"\bF(\d+)\b", PAGE)} == set(range(1, 36))


def test_everything_it_names_exists() -> None:
    named: list[tuple[str, str]] = []
    for row in PAGE.splitlines():
        files: list[str] = []
        for name in re.findall(r"`([^`]+)`", row.rpartition(" | ")[2] if row.startswith("|") else ""):
            if name.endswith(".py") and "/" in name:
                files.append(name)
                assert (TESTS / name).is_file() or (ROOT / name).is_file(), name
            elif re.fullmatch(r"test_\w+|Test\w+", name):
                named.append((" ".join(files), name))
                texts = [(TESTS / file).read_text(encoding="utf-8") for file in files if (TESTS / file).is_file()]
                assert any(re.search(rf"\b(def|class) {name}\b", text) for text in texts), (name, files)
    assert len(named) > 40
