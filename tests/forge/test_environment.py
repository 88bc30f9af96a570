"""What a job knows of its change: variables and events of GitHub and GitLab."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradeline.forge.environment import CiEnvironment, read_environment

NO_COMMIT = "0" * 40


def github(folder: Path, event: object, **variables: str) -> CiEnvironment:
    path = folder / "event.json"
    path.write_text(event if isinstance(event, str) else json.dumps(event), encoding="utf-8")
    shared = {"GITHUB_ACTIONS": "true", "GITHUB_EVENT_PATH": str(path), "GITHUB_REPOSITORY": "owner/repo"}
    return read_environment({**shared, "GITHUB_SHA": "abc", **variables})


def pull_request(head: Any, **base: Any) -> dict[str, Any]:
    request = {"number": 7, "head": head, "base": {"sha": "base", "ref": "main", **base}}
    return {"pull_request": request, "repository": {"default_branch": "main"}}


def test_outside_of_a_job_nothing_is_known() -> None:
    assert read_environment({}) == CiEnvironment()


def test_a_pull_request_has_a_base_and_a_branch_that_its_author_cannot_choose(tmp_path: Path) -> None:
    event = pull_request({"ref": "main", "repo": {"full_name": "owner/repo"}})
    found = github(tmp_path, event, GITHUB_REF_NAME="7/merge", GITHUB_REF_TYPE="branch", GITHUB_HEAD_REF="main")
    assert found == CiEnvironment(
        "github",
        commit="abc",
        branch="pull/7",
        base_commit="base",
        base_branch="main",
        default_branch="main",
        change=7,
        repository="owner/repo",
        api_url="https://api.github.com",
    )
    assert not found.on_default_branch


@pytest.mark.parametrize("head", [{"repo": {"full_name": "else/repo"}}, {"repo": None}, {}, None])
def test_a_pull_request_of_another_or_a_deleted_repository_is_from_a_fork(tmp_path: Path, head: Any) -> None:
    assert github(tmp_path, pull_request(head)).from_fork


def test_a_push_to_the_default_branch_is_compared_with_the_commit_before(tmp_path: Path) -> None:
    event = {"before": "old", "repository": {"default_branch": "main"}}
    found = github(tmp_path, event, GITHUB_REF_NAME="main", GITHUB_REF_TYPE="branch")
    assert (found.on_default_branch, found.base_commit, found.base_branch) == (True, "old", "main")


def test_the_first_push_of_a_branch_has_no_commit_before(tmp_path: Path) -> None:
    event = {"before": NO_COMMIT, "repository": {"default_branch": "main"}}
    found = github(tmp_path, event, GITHUB_REF_NAME="main", GITHUB_REF_TYPE="branch")
    assert (found.base_commit, found.base_branch) == (None, "main")


def test_a_push_to_another_branch_is_compared_with_the_default_branch(tmp_path: Path) -> None:
    event = {"before": "old", "repository": {"default_branch": "main"}}
    found = github(tmp_path, event, GITHUB_REF_NAME="feature", GITHUB_REF_TYPE="branch")
    assert (found.on_default_branch, found.base_commit, found.base_branch) == (False, None, "main")


def test_a_tag_of_the_name_of_the_default_branch_is_not_that_branch(tmp_path: Path) -> None:
    event = {"repository": {"default_branch": "main"}}
    assert not github(tmp_path, event, GITHUB_REF_NAME="main", GITHUB_REF_TYPE="tag").on_default_branch


def test_a_scheduled_job_is_on_the_default_branch(tmp_path: Path) -> None:
    found = github(
        tmp_path,
        {"schedule": "0 3 * * *"},
        GITHUB_EVENT_NAME="schedule",
        GITHUB_REF_NAME="main",
        GITHUB_REF_TYPE="branch",
    )
    assert (found.on_default_branch, found.base_branch) == (True, "main")


def test_a_merge_queue_has_a_base(tmp_path: Path) -> None:
    event = {"merge_group": {"base_ref": "refs/heads/main", "base_sha": "base"}}
    found = github(tmp_path, event, GITHUB_REF_NAME="gh-readonly-queue/main/pr-7")
    assert (found.base_commit, found.base_branch, found.change) == ("base", "main", None)


@pytest.mark.parametrize("event", ["", "not json", "[]", '"text"', '{"pull_request": 3}', "[" * 100_000])
def test_an_event_that_cannot_be_read_is_unknown(tmp_path: Path, event: str) -> None:
    found = github(tmp_path, event)
    assert (found.forge, found.change, found.base_commit, found.on_default_branch) == ("github", None, None, False)


def gitlab(**variables: str) -> CiEnvironment:
    return read_environment({"GITLAB_CI": "true", "CI_PROJECT_ID": "77", "CI_DEFAULT_BRANCH": "main", **variables})


def test_a_merge_request_belongs_to_the_project_that_it_is_for() -> None:
    found = gitlab(
        CI_MERGE_REQUEST_IID="5",
        CI_MERGE_REQUEST_DIFF_BASE_SHA="base",
        CI_MERGE_REQUEST_TARGET_BRANCH_NAME="main",
        CI_MERGE_REQUEST_PROJECT_ID="70",
        CI_MERGE_REQUEST_SOURCE_PROJECT_ID="78",
        CI_API_V4_URL="https://gitlab.example/api/v4",
    )
    assert found == CiEnvironment(
        "gitlab",
        branch="merge-requests/5",
        base_commit="base",
        base_branch="main",
        default_branch="main",
        change=5,
        from_fork=True,
        repository="70",
        api_url="https://gitlab.example/api/v4",
    )


def test_a_push_on_gitlab_is_on_its_branch() -> None:
    found = gitlab(CI_COMMIT_BRANCH="main", CI_COMMIT_BEFORE_SHA="old")
    assert (found.on_default_branch, found.base_commit, found.change) == (True, "old", None)
