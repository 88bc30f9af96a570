"""The workflows and pipelines of the documentation: the shape that forges accept, and what an audit finds in them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from page_runner import Block, blocks_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
WORKFLOWS = [
    block
    for page in sorted(ROOT.glob("docs/*.md"))
    for block in blocks_of(page)
    if (block.title or "").startswith(".github/workflows/")
]
PIPELINES = [
    block for page in sorted(ROOT.glob("docs/*.md")) for block in blocks_of(page) if block.title == ".gitlab-ci.yml"
]
# the audit allows tags for GitHub's own actions and for gradeline's, which the reader replaces
POLICIES = {"actions/*": "ref-pin", "OWNER/gradeline": "ref-pin"}


def place_of(block: Block) -> str:
    return block.place


def run(*command: str) -> None:
    done = subprocess.run([str(PROGRAMS / command[0]), *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def written(block: Block, folder: Path) -> str:
    assert block.title is not None
    path = folder / block.title
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")
    return str(path)


def test_the_page_has_a_workflow_for_pull_requests_and_one_for_the_main_branch() -> None:
    names = {block.title for block in WORKFLOWS}
    assert {".github/workflows/evals.yml", ".github/workflows/evals-main.yml"} <= names


@pytest.mark.parametrize("block", WORKFLOWS, ids=place_of)
def test_a_workflow_has_the_shape_that_github_accepts(block: Block, tmp_path: Path) -> None:
    run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", written(block, tmp_path))


@pytest.mark.parametrize("block", WORKFLOWS, ids=place_of)
def test_an_audit_of_a_workflow_finds_nothing(block: Block, tmp_path: Path) -> None:
    config = tmp_path / "zizmor.yml"
    config.write_text(json.dumps({"rules": {"unpinned-uses": {"config": {"policies": POLICIES}}}}))
    run("zizmor", "--offline", "--no-progress", "--config", str(config), written(block, tmp_path))


@pytest.mark.parametrize("block", PIPELINES, ids=place_of)
def test_a_pipeline_has_the_shape_that_gitlab_accepts(block: Block, tmp_path: Path) -> None:
    run("check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", written(block, tmp_path))
