"""The design notes: every path exists, and the names that they look for are in these files."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DESIGN = ROOT / "docs" / "design"
PAGES = sorted(DESIGN.glob("*.md"))
NOTES = [page for page in PAGES if page.name != "index.md"]
SECTIONS = ["Problem", "Mechanism", "Invariants", "Files", "Rejected alternatives"]

_PATH = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|tsx?|md|toml|yaml|json))`")
_NAME = re.compile(r"`([A-Za-z_]\w*)(?:\.\w+)?`")


def place_of(path: str) -> Path:
    """The file of a path as the design notes write it."""
    in_repository = path.startswith(("tests/", "ui/", "bench/", "docs/"))
    return ROOT / path if in_repository else ROOT / "src" / "gradeline" / path


def rows_with_files(page: Path) -> list[tuple[list[str], str]]:
    """The files of each table row that names some in one cell, and the text of the next cell."""
    rows = [line.strip(" |").split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if "|" in line]
    return [
        (_PATH.findall(cell), following) for row in rows for cell, following in pairwise(row) if _PATH.findall(cell)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_path_exists(page: Path) -> None:
    named = _PATH.findall(page.read_text(encoding="utf-8"))
    assert [path for path in named if not place_of(path).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_names_of_a_row_are_in_its_files(page: Path) -> None:
    missing = []
    for files, text in rows_with_files(page):
        contents = "\n".join(place_of(path).read_text(encoding="utf-8") for path in files)
        names = [name for name in _NAME.findall(text) if not re.search(rf"\b{name}\b", contents)]
        missing += [(files, name) for name in names]
    assert missing == []


@pytest.mark.parametrize("page", NOTES, ids=lambda page: page.stem)
def test_a_note_has_its_sections_and_a_diagram(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    (diagram,) = re.findall(r"^!\[[^\]]+\]\((\S+\.svg)\)$", text, re.MULTILINE)
    assert (page.parent / diagram).is_file()


def test_the_index_lists_every_note() -> None:
    listed = re.findall(
        r"^\| \[[^\]]+\]\(([\w-]+\.md)\) \|", (DESIGN / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == [page.name for page in NOTES]


def test_no_answer_needs_more_than_three_files() -> None:
    answers = rows_with_files(DESIGN / "index.md")
    assert len(answers) >= 10
    assert [files for files, _ in answers if len(files) > 3] == []
