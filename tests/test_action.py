"""``action.yml``: its steps, run as GitHub runs them, and what linters of workflows find in it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from action_runner import ACTION, ActionResult, ActionRunner
from ci_checkout import TOKEN, Checkout
from forge_server import ForgeServer

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = Path(sys.executable).parent
WORSE = range(3, 18)
ALWAYS = ["Restore the store", "Install gradeline", "Run the suite"]
REPORTED = [*ALWAYS, "Write the report", "Comment on the pull request", "Upload the reports and the store"]
SAVED = [*ALWAYS, "Write the report", "Upload the reports and the store", "Save the store"]


@pytest.fixture
def github() -> Iterator[ForgeServer]:
    with ForgeServer("github", TOKEN) as server:
        yield server


class Repository:
    """A repository whose jobs begin on a machine without a store, but with the caches of earlier jobs."""

    def __init__(self, folder: Path, server: ForgeServer) -> None:
        folder.mkdir()
        self.checkout = Checkout(folder)
        self.caches: dict[str, Path] = {}
        self.artifacts: dict[str, list[str]] = {}
        self._server = server

    def use(self, job: dict[str, str], **inputs: str) -> ActionResult:
        shutil.rmtree(self.checkout.folder / ".gradeline", ignore_errors=True)
        self.artifacts.clear()
        variables = {**job, "GITHUB_API_URL": self._server.url}
        runner = ActionRunner(self.checkout.folder, variables, TOKEN, self.caches, self.artifacts)
        return runner.run(suite="suite.yaml", **inputs)


@pytest.fixture
def repository(tmp_path: Path, github: ForgeServer) -> Repository:
    return Repository(tmp_path / "checkout", github)


def test_pushes_to_main_and_to_a_pull_request(repository: Repository, github: ForgeServer) -> None:
    checkout = repository.checkout
    base = checkout.commit()
    main = repository.use(checkout.push_job())
    assert (main.failed, main.ran, main.outputs["verdict"]) == (False, SAVED, "none")
    assert list(repository.caches) == [f"gradeline-suite.yaml-{base}"]
    assert github.comments == []

    checkout.answer(*WORSE)
    checkout.commit(detached=True)
    first = repository.use(checkout.pull_request_job(base))
    assert (first.failed, first.ran) == (True, REPORTED)
    assert first.outputs == {"verdict": "fail", "run": checkout.report()["run"], "exit-code": "1"}
    assert "::error file=cases.jsonl,line=4::case 'c3' regressed: right 1.000 → 0.000" in first.printed
    assert "### ❌ Fail" in github.comments[0]["body"]
    files = [".gradeline/store.db", "gradeline-ci.json", "junit.xml", "report.html"]
    assert repository.artifacts["gradeline"] == files

    checkout.answer()
    checkout.commit()
    second = repository.use(checkout.pull_request_job(base))
    assert (second.failed, second.outputs["verdict"]) == (False, "undecided")
    assert len(github.comments) == 1
    assert "### ⚠️ Undecided" in github.comments[0]["body"]
    assert list(repository.caches) == [f"gradeline-suite.yaml-{base}"]


def test_a_base_without_a_cache_is_replaced_by_the_newest_of_main(repository: Repository) -> None:
    checkout = repository.checkout
    measured = checkout.commit()
    repository.use(checkout.push_job())
    unmeasured = checkout.commit()
    checkout.commit(detached=True)
    repository.use(checkout.pull_request_job(unmeasured))
    assert checkout.report()["runs"][0]["base_reason"] == f"the newest run on main, of commit {measured[:10]}"


def test_a_first_pull_request_without_any_store_claims_nothing(repository: Repository, github: ForgeServer) -> None:
    checkout = repository.checkout
    base = checkout.commit()
    checkout.commit(detached=True)
    done = repository.use(checkout.pull_request_job(base))
    assert (done.failed, done.outputs["verdict"]) == (False, "undecided")
    assert "Not compared" in github.comments[0]["body"]
    assert repository.use(checkout.pull_request_job(base), undecided="fail").failed


def test_a_pull_request_from_a_fork_has_its_summary_and_no_comment(repository: Repository, github: ForgeServer) -> None:
    checkout = repository.checkout
    base = checkout.commit()
    checkout.commit(detached=True)
    done = repository.use(checkout.pull_request_job(base, "else/repo"))
    assert not done.failed
    assert "no comment: the change is from a fork" in done.printed
    assert github.requests == []
    assert "Not compared" in (checkout.folder / "summary.out").read_text(encoding="utf-8")


def test_a_job_that_may_run_code_of_a_fork_on_main_saves_no_store(repository: Repository, github: ForgeServer) -> None:
    checkout = repository.checkout
    base = checkout.commit()
    job = {**checkout.push_job(), **checkout.pull_request_job(base, "else/repo")}
    target = {"GITHUB_EVENT_NAME": "pull_request_target", "GITHUB_REF": "refs/heads/main", "GITHUB_REF_NAME": "main"}
    done = repository.use({**job, **target})
    assert (repository.caches, github.requests) == ({}, [])
    assert done.ran == [*ALWAYS, "Write the report", "Upload the reports and the store"]


def test_only_pushes_to_the_default_branch_and_scheduled_jobs_save_the_store(repository: Repository) -> None:
    checkout = repository.checkout
    commit = checkout.commit()
    other = {"GITHUB_REF": "refs/heads/feature", "GITHUB_REF_NAME": "feature"}
    tag = {"GITHUB_REF": "refs/tags/main", "GITHUB_REF_TYPE": "tag"}
    for job in (other, tag):
        repository.use({**checkout.push_job(), **job})
        assert repository.caches == {}
    event = checkout.write("schedule.out", json.dumps({"schedule": "0 3 * * *"}))
    schedule = {"GITHUB_EVENT_NAME": "schedule", "GITHUB_EVENT_PATH": str(event)}
    done = repository.use({**checkout.push_job(), **schedule})
    assert done.outputs["verdict"] == "none"
    assert list(repository.caches) == [f"gradeline-suite.yaml-{commit}"]


def test_an_invalid_suite_fails_the_job_without_a_report_or_a_store(repository: Repository) -> None:
    checkout = repository.checkout
    checkout.write("suite.yaml", "name: evals\n")
    checkout.commit()
    done = repository.use(checkout.push_job())
    assert (done.failed, done.ran) == (True, [*ALWAYS, "Upload the reports and the store"])
    assert repository.caches == {}


def test_values_of_inputs_are_never_executed(repository: Repository) -> None:
    checkout = repository.checkout
    checkout.commit()
    done = repository.use(
        checkout.push_job(),
        args="--name\n$(touch executed); `touch executed`\n\n--limit\n2\n",
        baseline='"; touch executed; "',
        comment="false",
    )
    assert not done.failed
    run = checkout.report()["runs"][0]
    assert (run["name"], run["cases"]) == ("$(touch executed); `touch executed`", 2)
    assert "'\"; touch executed; \"'" in run["base_warning"]
    assert not (checkout.folder / "executed").exists()


def test_no_artifact_and_no_comment_on_request(repository: Repository, github: ForgeServer) -> None:
    checkout = repository.checkout
    base = checkout.commit()
    done = repository.use(checkout.pull_request_job(base), artifact="", comment="false")
    assert done.ran == [*ALWAYS, "Write the report"]
    assert (repository.artifacts, github.requests) == ({}, [])


def test_the_action_has_no_program_of_its_own() -> None:
    assert ACTION["runs"]["using"] == "composite"
    used = [step["uses"] for step in ACTION["runs"]["steps"] if "uses" in step]
    assert [one.split("@")[0] for one in used] == [
        "actions/cache/restore",
        "actions/upload-artifact",
        "actions/cache/save",
    ]


def test_the_action_has_the_shape_that_github_accepts() -> None:
    command = [
        str(PROGRAMS / "check-jsonschema"),
        "--builtin-schema",
        "vendor.github-actions",
        str(ROOT / "action.yml"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_audit_of_the_action_finds_nothing(tmp_path: Path) -> None:
    config = tmp_path / "zizmor.yml"
    # GitHub's own actions are named by their major version
    config.write_text(json.dumps({"rules": {"unpinned-uses": {"config": {"policies": {"actions/*": "ref-pin"}}}}}))
    command = [
        str(PROGRAMS / "zizmor"),
        "--offline",
        "--no-progress",
        "--config",
        str(config),
        str(ROOT / "action.yml"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
