"""Documentation: examples run, links resolve, generated pages are current."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_runner import PageRunner

from gradeline import compat

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {"cli-reference.md", "suite-reference.md", "reference.md", "python-reference.md", "errors.md"}
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md")])
FOLLOWED = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted(ROOT.glob("docs/*.md")) if page.name not in GENERATED),
]
EXAMPLES = {"README.md": "quickstart", "quickstart.md": "quickstart", "from-letta-evals.md": "letta"}
"""The example of a page; its files are copied before the page runs."""
_LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


@pytest.fixture(autouse=True)
def without_letta_replacements() -> Iterator[None]:
    """The examples install the replacements for letta's packages; other tests must not see them."""
    yield
    compat.uninstall()


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda path: path.name)
def test_examples_of_a_page_run_and_print_the_documented_output(page: Path, tmp_path: Path) -> None:
    with PageRunner(tmp_path) as runner:
        if page.name in EXAMPLES:
            runner.add_example(ROOT / "examples" / EXAMPLES[page.name])
        # the README lists commands that do not build on each other
        runner.follow(page, run_commands=page.name != "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_link_resolves(page: Path) -> None:
    targets = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in targets if not (page.parent / link).exists()] == []


def test_messages_of_a_troubleshooting_table_are_those_of_the_program() -> None:
    texts: list[str] = []
    for module in (ROOT / "src" / "gradeline").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(one.value if isinstance(one, ast.Constant) else "…" for one in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    program = "\n".join(texts)
    listed = [
        message
        for page in PAGES
        for table in re.findall(
            r"^\| message \|.*\n\|-.*\n((?:\|.*\n?)+)", page.read_text(encoding="utf-8"), re.MULTILINE
        )
        for row in table.splitlines()
        for message in re.findall(r"`([^`]+)`", row.split(" | ")[0])
    ]
    assert len(listed) > 10
    assert [message for message in listed if message not in program] == []


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.stdout + done.stderr, done.returncode) == ("", 0)


def test_a_broken_link_fails_the_site_build(tmp_path: Path) -> None:
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for file in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml"):
        shutil.copy(file, tmp_path)
    with (tmp_path / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write("\n[Nowhere](nowhere.md), [no heading](gates.md#nowhere) and [no file](../examples/nowhere.md)\n")
    # the command of `make check`
    called = re.search(r"^SITE := .*/mkdocs (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert called is not None
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *called[1].split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert re.findall(r"link '(\S*nowhere\S*)'", done.stderr) == [
        "nowhere.md",
        "../examples/nowhere.md",
        "gates.md#nowhere",
    ]
    assert done.returncode == 1


def test_the_readme_starts_with_the_installation_and_ends_with_the_commands_of_the_repository() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    first, second, *_, last = ([line.split("#")[0].strip() for line in block.splitlines()] for block in blocks)
    assert first == ["pip install gradeline", "uvx gradeline demo"]
    assert second == [
        "gradeline init evals",
        "gradeline validate evals/suite.yaml",
        "gradeline run evals/suite.yaml",
    ]
    assert last == ["make demo", "make test"]


def test_continuous_integration_calls_the_readmes_test_command() -> None:
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
