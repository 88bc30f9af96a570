"""The documentation is true: its examples run, its links lead somewhere, what is generated is current."""

from __future__ import annotations

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
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")])
FOLLOWED = [ROOT / "README.md", *(page for page in sorted(ROOT.glob("docs/*.md")) if page.name not in GENERATED)]
GIVEN = {"README.md": "quickstart", "quickstart.md": "quickstart", "from-letta-evals.md": "letta"}
"""The example that a page is about: its files are there from the start."""
_LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


@pytest.fixture(autouse=True)
def without_stand_ins() -> Iterator[None]:
    """The examples install the stand-ins for letta's packages; other tests must not see them."""
    yield
    compat.uninstall()


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda path: path.name)
def test_whoever_follows_the_page_sees_what_it_says(page: Path, tmp_path: Path) -> None:
    with PageRunner(tmp_path) as reader:
        if page.name in GIVEN:
            reader.give(ROOT / "examples" / GIVEN[page.name])
        # the README shows what there is, not one way through it
        reader.follow(page, run_commands=page.name != "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in targets if not (page.parent / link).exists()] == []


def test_what_is_generated_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.stdout + done.stderr, done.returncode) == ("", 0)


def test_a_broken_link_ends_the_build_of_the_site(tmp_path: Path) -> None:
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for file in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml"):
        shutil.copy(file, tmp_path)
    with (tmp_path / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write("\n[Nowhere](nowhere.md), [no heading](gates.md#nowhere) and [no file](../examples/nowhere.md)\n")
    # as `make check` calls it
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


def test_the_readme_starts_with_the_two_commands() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert [line.split("#")[0].strip() for line in blocks[0].splitlines()] == ["make demo", "make test"]


def test_continuous_integration_calls_the_readmes_test_command() -> None:
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
