"""The change that a CI job belongs to, from the environment variables of GitHub Actions or GitLab CI/CD."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

_MAX_EVENT = 25_000_000
"""GitHub's limit for an event, in bytes."""
_NO_COMMIT = "0" * 40
_HEADS = "refs/heads/"

ForgeName = Literal["github", "gitlab"]


class CiEnvironment(NamedTuple):
    """The job and its change. None is unknown; outside a forge everything is."""

    forge: ForgeName | None = None
    commit: str | None = None
    branch: str | None = None
    """The branch of a push; ``pull/12`` for a pull request, whose author chooses the name of its branch."""
    base_commit: str | None = None
    """The commit that the change is based on."""
    base_branch: str | None = None
    """The branch that the change will be merged into; for a push, the default branch."""
    default_branch: str | None = None
    change: int | None = None
    """The number of the pull request or merge request."""
    from_fork: bool = False
    """Whether the change comes from another repository: its job has no secrets, and a read-only token."""
    repository: str | None = None
    """``owner/name`` on GitHub, the project's number on GitLab."""
    api_url: str | None = None
    folder: Path | None = None
    """The root of the checkout."""
    summary: Path | None = None
    """The file for the job summary."""
    output: Path | None = None
    """The file for the outputs of the step."""

    @property
    def on_default_branch(self) -> bool:
        """Whether this is a push to the default branch."""
        return self.change is None and self.branch is not None and self.branch == self.default_branch


def read_environment(variables: Mapping[str, str]) -> CiEnvironment:
    """The environment of the job, from its variables and the event that they name."""
    if variables.get("GITHUB_ACTIONS") == "true":
        return _github(variables)
    if variables.get("GITLAB_CI") == "true":
        return _gitlab(variables)
    return CiEnvironment(summary=_path(variables, "GITHUB_STEP_SUMMARY"), output=_path(variables, "GITHUB_OUTPUT"))


def _github(variables: Mapping[str, str]) -> CiEnvironment:
    event = _event(variables.get("GITHUB_EVENT_PATH"))
    default_branch = _text(event, "repository", "default_branch")
    if variables.get("GITHUB_EVENT_NAME") == "schedule":  # always on the default branch; the event may not name it
        default_branch = default_branch or variables.get("GITHUB_REF_NAME") or None
    known = CiEnvironment(
        "github",
        commit=variables.get("GITHUB_SHA") or None,
        default_branch=default_branch,
        repository=variables.get("GITHUB_REPOSITORY") or None,
        api_url=variables.get("GITHUB_API_URL") or "https://api.github.com",
        folder=_path(variables, "GITHUB_WORKSPACE"),
        summary=_path(variables, "GITHUB_STEP_SUMMARY"),
        output=_path(variables, "GITHUB_OUTPUT"),
    )
    number = _value(event, "pull_request", "number")
    if isinstance(number, int):
        base = _text(event, "pull_request", "base", "repo", "full_name") or known.repository
        return known._replace(
            branch=f"pull/{number}",
            base_commit=_text(event, "pull_request", "base", "sha"),
            base_branch=_text(event, "pull_request", "base", "ref"),
            change=number,
            # a deleted fork has no repository
            from_fork=_text(event, "pull_request", "head", "repo", "full_name") != base,
        )
    queued = _text(event, "merge_group", "base_ref")
    if queued is not None:
        base_commit = _text(event, "merge_group", "base_sha")
        branch = variables.get("GITHUB_REF_NAME") or None
        return known._replace(branch=branch, base_commit=base_commit, base_branch=queued.removeprefix(_HEADS))
    branch = variables.get("GITHUB_REF_NAME") or None if variables.get("GITHUB_REF_TYPE") == "branch" else None
    return _of_push(known._replace(branch=branch), _text(event, "before"))


def _gitlab(variables: Mapping[str, str]) -> CiEnvironment:
    project = variables.get("CI_PROJECT_ID") or None
    known = CiEnvironment(
        "gitlab",
        commit=variables.get("CI_COMMIT_SHA") or None,
        branch=variables.get("CI_COMMIT_BRANCH") or None,
        default_branch=variables.get("CI_DEFAULT_BRANCH") or None,
        repository=project,
        api_url=variables.get("CI_API_V4_URL") or None,
        folder=_path(variables, "CI_PROJECT_DIR"),
        summary=_path(variables, "GITHUB_STEP_SUMMARY"),
        output=_path(variables, "GITHUB_OUTPUT"),
    )
    number = variables.get("CI_MERGE_REQUEST_IID", "")
    if not number.isdecimal():
        return _of_push(known, variables.get("CI_COMMIT_BEFORE_SHA"))
    return known._replace(
        branch=f"merge-requests/{number}",
        base_commit=variables.get("CI_MERGE_REQUEST_DIFF_BASE_SHA") or None,
        base_branch=variables.get("CI_MERGE_REQUEST_TARGET_BRANCH_NAME") or None,
        change=int(number),
        from_fork=variables.get("CI_MERGE_REQUEST_SOURCE_PROJECT_ID", project) != project,
        repository=variables.get("CI_MERGE_REQUEST_PROJECT_ID") or project,
    )


def _of_push(known: CiEnvironment, before: str | None) -> CiEnvironment:
    """A push is compared with the default branch; one to the default branch with the commit before it."""
    known = known._replace(base_branch=known.default_branch)
    if known.on_default_branch and before and before != _NO_COMMIT:
        return known._replace(base_commit=before)
    return known


def _path(variables: Mapping[str, str], name: str) -> Path | None:
    value = variables.get(name)
    return Path(value) if value else None


def _event(name: str | None) -> Any:
    """The event of the job; None if there is none or it cannot be read."""
    if not name:
        return None
    try:
        with Path(name).open("rb") as file:
            raw = file.read(_MAX_EVENT + 1)
        return json.loads(raw) if len(raw) <= _MAX_EVENT else None
    except (OSError, ValueError, RecursionError):
        return None


def _value(data: object, *keys: str) -> object:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _text(data: object, *keys: str) -> str | None:
    found = _value(data, *keys)
    return found if isinstance(found, str) and found else None
