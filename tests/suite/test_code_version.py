"""The commit that a suite's folder is at."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gradeline.model import CodeVersion
from gradeline.suite.code_version import read_code_version


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "suite.yaml").write_text("name: a\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_a_folder_of_a_repository_has_its_commit_and_branch(repository: Path) -> None:
    version = read_code_version(repository / "suites")
    assert version == CodeVersion(commit=git(repository, "rev-parse", "HEAD"), branch="main", dirty=False)


def test_a_changed_file_is_dirty_and_a_new_one_is_not(repository: Path) -> None:
    (repository / "new.txt").write_text("new")
    version = read_code_version(repository)
    assert version is not None
    assert version.dirty is False
    (repository / "suites" / "suite.yaml").write_text("name: b\n")
    version = read_code_version(repository)
    assert version is not None
    assert version.dirty is True


def test_a_detached_commit_has_no_branch(repository: Path) -> None:
    git(repository, "checkout", "--quiet", "--detach")
    version = read_code_version(repository)
    assert version == CodeVersion(commit=git(repository, "rev-parse", "HEAD"), branch=None, dirty=False)


def test_a_repository_without_a_commit_has_no_version(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert read_code_version(tmp_path) is None


def test_no_process_is_started_outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert read_code_version(tmp_path) is None


def test_without_git_there_is_no_version(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert read_code_version(repository) is None


def test_a_hooks_variables_do_not_name_another_repository(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(repository / "nowhere"))
    version = read_code_version(repository)
    assert version is not None
    assert version.branch == "main"
