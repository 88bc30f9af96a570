"""The commit that the folder of a suite is at, so that a run can be found by it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gradeline.model import CodeVersion

_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false")
"""Writes nothing, and starts no program that the repository's configuration names."""
_STATUS = (*_GIT, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
_ELSEWHERE = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"})
"""Variables by which a hook points to another repository."""
_LIMIT_S = 10.0
_NO_COMMIT = "(initial)"
_NO_BRANCH = "(detached)"


def read_code_version(folder: Path) -> CodeVersion | None:
    """The commit, branch and state of the Git repository of a folder.

    None outside of a repository, in one without a commit, and where git is absent, slow or fails.
    """
    if not _in_repository(folder):
        return None
    try:
        environment = {key: value for key, value in os.environ.items() if key not in _ELSEWHERE}
        done = subprocess.run(  # noqa: S603 - fixed arguments
            _STATUS, cwd=folder, env=environment, capture_output=True, timeout=_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return _parse(done.stdout.decode(errors="replace"))


def _in_repository(folder: Path) -> bool:
    folder = folder.resolve()
    return any((parent / ".git").exists() for parent in (folder, *folder.parents))


def _parse(status: str) -> CodeVersion | None:
    headers, dirty = {}, False
    for line in status.splitlines():
        if line.startswith("# branch."):
            key, _, value = line.removeprefix("# branch.").partition(" ")
            headers[key] = value
        elif line:
            dirty = True
    commit, branch = headers.get("oid", _NO_COMMIT), headers.get("head", _NO_BRANCH)
    if commit == _NO_COMMIT:
        return None
    return CodeVersion(commit=commit, branch=None if branch == _NO_BRANCH else branch, dirty=dirty)
