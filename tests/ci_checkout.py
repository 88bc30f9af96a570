"""A repository with a suite, and the jobs of GitHub and GitLab that run in it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gradeline_command import COMMAND, AnyCommand, run_command, start_command

TOKEN = "ghs_SecretTokenOfTheJob0123456789"
DOWN = {"type": "connect", "message": "down", "fault": "infrastructure"}


def push_job(folder: Path, commit: str, **event: Any) -> dict[str, str]:
    """The variables of a job on GitHub, of a push to the default branch."""
    path = folder / "event.out"
    path.write_text(json.dumps({"repository": {"default_branch": "main"}, "before": "0" * 40, **event}))
    return {
        "GITHUB_ACTIONS": "true",
        "GITHUB_EVENT_NAME": "push",
        "GITHUB_EVENT_PATH": str(path),
        "GITHUB_SHA": commit,
        "GITHUB_REPOSITORY": "owner/repo",
        "GITHUB_REF": "refs/heads/main",
        "GITHUB_REF_NAME": "main",
        "GITHUB_REF_TYPE": "branch",
        "GITHUB_WORKSPACE": str(folder),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.out"),
        "GITHUB_OUTPUT": str(folder / "outputs.out"),
    }


def pull_request_job(folder: Path, commit: str, base: str, fork: str = "owner/repo") -> dict[str, str]:
    """The variables of a job on GitHub, of pull request 12."""
    request = {
        "number": 12,
        "base": {"sha": base, "ref": "main", "repo": {"full_name": "owner/repo"}},
        "head": {"repo": {"full_name": fork}},
    }
    return {
        **push_job(folder, commit, pull_request=request),
        "GITHUB_EVENT_NAME": "pull_request",
        "GITHUB_REF": "refs/pull/12/merge",
        "GITHUB_REF_NAME": "12/merge",
    }


def gitlab_job(folder: Path, commit: str, base: str | None = None, fork: str = "77") -> dict[str, str]:
    """The variables of a job on GitLab, of a push to the default branch, or of merge request 5."""
    shared = {
        "GITLAB_CI": "true",
        "CI_PROJECT_ID": "77",
        "CI_COMMIT_SHA": commit,
        "CI_DEFAULT_BRANCH": "main",
        "CI_PROJECT_DIR": str(folder),
    }
    if base is None:
        return {**shared, "CI_COMMIT_BRANCH": "main", "CI_COMMIT_BEFORE_SHA": "0" * 40}
    return {
        **shared,
        "CI_MERGE_REQUEST_IID": "5",
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": base,
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
        "CI_MERGE_REQUEST_PROJECT_ID": "77",
        "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": fork,
    }


def _environment(job: Mapping[str, str] | None) -> dict[str, str]:
    """The variables of this process that are not those of a job, and those of the job."""
    forges = ("GITHUB_", "GITLAB_", "CI_", "GH_", "GRADELINE_")
    return {**{key: value for key, value in os.environ.items() if not key.startswith(forges)}, **(job or {})}


class JobResult(NamedTuple):
    code: int
    printed: str
    errors: str
    summary: str
    outputs: dict[str, str]

    @property
    def commands(self) -> list[str]:
        """The workflow commands, without those that switch commands off and on."""
        return [line for line in self.printed.splitlines() if line.startswith(("::error", "::warning", "::notice"))]


class Checkout:
    """The folder of a job; the suite ``evals`` has 60 cases, and its agent gives recorded answers."""

    def __init__(self, folder: Path, cases: int = 60) -> None:
        self.folder = folder
        self.cases = [{"id": f"c{number}", "input": f"q{number}", "ground_truth": "yes"} for number in range(cases)]
        self.write("cases.jsonl", "".join(f"{json.dumps(case)}\n" for case in self.cases))
        self.suite()
        self.answer()
        self.write(".gitignore", ".gradeline/\n*.out\ngradeline-ci.json\njunit.xml\n")
        self.git("init", "-qb", "main", ".")

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def suite(self, **keys: Any) -> None:
        document = {
            "name": "evals",
            "dataset": "cases.jsonl",
            "target": {"kind": "replay", "responses": "answers.jsonl"},
            "graders": {"right": {"kind": "contains"}},
        }
        self.write("suite.yaml", json.dumps({**document, **keys}))

    def answer(self, *wrong: int, text: str = "no", down: bool = False) -> None:
        """Record the agent's answers: wrong ones to these cases."""
        rows: list[dict[str, Any]] = [
            {"id": case["id"], "text": text if number in wrong else "yes"} for number, case in enumerate(self.cases)
        ]
        if down:
            rows = [{"id": row["id"], "response": {"status": "error", "error": DOWN}} for row in rows]
        self.write("answers.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))

    def git(self, *arguments: str) -> str:
        command = ["git", "-c", "user.name=ci", "-c", "user.email=ci@example.org", *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, *, detached: bool = False) -> str:
        """Commit everything and return the commit; a job of a pull request is on no branch."""
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "change")
        if detached:
            self.git("checkout", "-q", "--detach")
        return self.git("rev-parse", "HEAD")

    def push_job(self) -> dict[str, str]:
        """The variables of a job on GitHub, of a push to the default branch."""
        return push_job(self.folder, self.git("rev-parse", "HEAD"))

    def pull_request_job(self, base: str, fork: str = "owner/repo") -> dict[str, str]:
        """The variables of a job on GitHub, of pull request 12."""
        return pull_request_job(self.folder, self.git("rev-parse", "HEAD"), base, fork)

    def gitlab_job(self, base: str | None = None, fork: str = "77", **more: str) -> dict[str, str]:
        """The variables of a job on GitLab, of a push to the default branch, or of merge request 5."""
        return {**gitlab_job(self.folder, self.git("rev-parse", "HEAD"), base, fork), **more}

    def run(self, arguments: str | Sequence[str], job: Mapping[str, str] | None = None) -> JobResult:
        """Run ``gradeline ci`` with these arguments, in a job or in a terminal."""
        files = self.folder / "summary.out", self.folder / "outputs.out"
        for file in files:
            file.unlink(missing_ok=True)
        words = shlex.split(arguments) if isinstance(arguments, str) else arguments
        command = [COMMAND, "ci", *words]
        done = run_command(command, cwd=self.folder, env=_environment(job), text=True)
        summary, outputs = (file.read_text(encoding="utf-8") if file.exists() else "" for file in files)
        named = dict(line.split("=", 1) for line in outputs.splitlines())
        assert TOKEN not in done.stdout + done.stderr + summary + outputs
        return JobResult(done.returncode, done.stdout, done.stderr, summary, named)

    def start(self, arguments: str, job: Mapping[str, str]) -> AnyCommand:
        """Start ``gradeline ci`` with these arguments."""
        return start_command([COMMAND, "ci", *shlex.split(arguments)], cwd=self.folder, env=_environment(job))

    def report(self) -> Any:
        return json.loads((self.folder / "gradeline-ci.json").read_text(encoding="utf-8"))
