"""The documentation is true: its examples run, its links lead somewhere, what is generated is current."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline import compat

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")])
EXECUTED = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("grading", "rules", "custom-graders"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


def run_block(source: str, names: dict[str, Any]) -> int:
    """Runs a block; an expression with a comment behind it must have the value the comment says."""
    checked = 0
    lines = source.splitlines()
    for statement in ast.parse(source).body:
        assert statement.end_lineno is not None
        comment = lines[statement.end_lineno - 1][statement.end_col_offset :].strip()
        if isinstance(statement, ast.Expr) and comment.startswith("#"):
            value = eval(compile(ast.Expression(statement.value), "<docs>", "eval"), names)
            assert repr(value) == comment.lstrip("# "), ast.unparse(statement)
            checked += 1
        else:
            exec(compile(ast.Module([statement], []), "<docs>", "exec"), names)
    return checked


@pytest.fixture(autouse=True)
def without_stand_ins() -> Iterator[None]:
    """The examples install the stand-ins for letta's packages; other tests must not see them."""
    yield
    compat.uninstall()


@pytest.mark.parametrize("page", EXECUTED, ids=lambda path: path.name)
def test_every_example_gives_what_it_says(page: Path) -> None:
    names: dict[str, Any] = {}
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    assert blocks
    assert sum(run_block(block, names) for block in blocks) > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in targets if not (page.parent / link).exists()] == []


def test_what_is_generated_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.stdout + done.stderr, done.returncode) == ("", 0)


def test_the_readme_starts_with_the_two_commands() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert [line.split("#")[0].strip() for line in blocks[0].splitlines()] == ["make demo", "make test"]


def test_continuous_integration_calls_the_readmes_test_command() -> None:
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
