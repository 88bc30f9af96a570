"""The pipeline of a new suite for continuous integration, and its lines of ``.gitignore``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gradeline.cli.starter.agents import KINDS, AgentChoice, example_service

IGNORE_FILE = ".gitignore"
_IGNORED = {".gradeline/": "runs and responses", ".env": "keys"}
_GITLAB_FILE = ".gitlab-ci.yml"
_GITLAB_INCLUDE = "include: [{local: .gitlab/gradeline.yml}]"


class CiPipeline(NamedTuple):
    """A pipeline for one forge: its file, relative to the repository, and its text for a suite and an agent."""

    path: str
    text: Callable[[str, AgentChoice], str]


def _install(choice: AgentChoice) -> str:
    return "pip install " + shlex.join(["gradeline", *KINDS[choice.kind].requires.values()])


def _github(suite: str, choice: AgentChoice) -> str:
    key = KINDS[choice.kind].key if choice.url is None else None
    comment = "" if key else "#"
    service = example_service(choice)
    start = f"- run: {service} &" if service else "#- run: python my_service.py &"
    return f"""\
# Runs the suite in every pull request and compares it with the main branch: the result is in the job
# summary, in a comment, and at the lines of the cases that regressed.
name: gradeline
on:
  pull_request:
  push:
    branches: [main, master]
permissions:
  contents: read
  pull-requests: write   # for the comment
jobs:
  evals:
    runs-on: ubuntu-latest
    timeout-minutes: 30
    steps:
      - uses: actions/checkout@v6
        with:
          persist-credentials: false
      - uses: actions/setup-python@v6
        with:
          python-version: "3.12"
      - run: {_install(choice)}
      # Install what your agent needs, and start it if it is a service.
      #- run: pip install -r requirements.txt
      {start}
      # The runs of the main branch.
      - uses: actions/cache/restore@v5
        with:
          path: .gradeline
          key: gradeline-${{{{ github.event.pull_request.base.sha || github.event.before }}}}
          restore-keys: gradeline-
      - name: Run the suite
        {comment}env:
        {comment}  {key or "AGENT_KEY"}: ${{{{ secrets.{key or "AGENT_KEY"} }}}}
        run: |
          gradeline ci {shlex.quote(suite)}
      - if: ${{{{ !cancelled() && github.event_name == 'pull_request' }}}}
        env:
          GITHUB_TOKEN: ${{{{ github.token }}}}
        run: gradeline ci comment
      - if: ${{{{ !cancelled() && github.event_name == 'push' }}}}
        uses: actions/cache/save@v5
        with:
          path: .gradeline
          key: gradeline-${{{{ github.sha }}}}
      - if: ${{{{ !cancelled() }}}}
        uses: actions/upload-artifact@v6
        with:
          name: gradeline
          path: |
            .gradeline
            gradeline-ci.json
            junit.xml
          include-hidden-files: true
"""


def _gitlab(suite: str, choice: AgentChoice) -> str:
    service = example_service(choice)
    start = f"- {service} &" if service else "#- python my_service.py &"
    return f"""\
# Runs the suite in every merge request and compares it with the default branch.
# {_GITLAB_FILE} includes this file: {_GITLAB_INCLUDE}
gradeline:
  image: python:3.12
  rules:
    - if: $CI_PIPELINE_SOURCE == "merge_request_event"
      variables: {{CACHE_POLICY: pull}}
    - if: $CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH
      variables: {{CACHE_POLICY: pull-push}}
  cache:   # the runs of the default branch
    key: gradeline
    paths: [.gradeline/]
    policy: $CACHE_POLICY
    unprotect: true
    when: always
  script:
    - {_install(choice)}
    # Install what your agent needs, and start it if it is a service. Keys are CI/CD variables of the project.
    #- pip install -r requirements.txt
    {start}
    - |
      gradeline ci {shlex.quote(suite)} || code=$?
    # A comment needs the variable GITLAB_TOKEN: a project access token with the scope api.
    - if [ -n "$GITLAB_TOKEN" ]; then gradeline ci comment; fi
    - exit "${{code:-0}}"
  artifacts:
    when: always
    reports: {{junit: junit.xml}}
    paths: [junit.xml, gradeline-ci.json, .gradeline/]
"""


PIPELINES = {
    "github": CiPipeline(".github/workflows/gradeline.yml", _github),
    "gitlab": CiPipeline(".gitlab/gradeline.yml", _gitlab),
}


class PipelineFiles(NamedTuple):
    """Files to write for the pipeline, and what the user must know about it."""

    files: dict[Path, str]
    notes: tuple[str, ...] = ()


def repository_of(folder: Path) -> Path | None:
    """The root of the git repository that the folder is in."""
    real = folder.resolve()
    root = next((at for at in (real, *real.parents) if (at / ".git").exists()), None)
    return root if root is None or folder.is_absolute() else Path(os.path.relpath(root))


def default_forge(root: Path) -> str:
    """The forge whose pipelines the repository has, else "github"."""
    return "gitlab" if (root / _GITLAB_FILE).exists() else "github"


def has_pipeline(root: Path) -> bool:
    """Whether the repository has the pipeline that is written by default."""
    return (root / PIPELINES[default_forge(root)].path).exists()


def pipeline_files(root: Path, suite: Path, choice: AgentChoice, forge: str | None) -> PipelineFiles:
    """The pipeline of a suite; without a named forge, one that exists is kept."""
    if forge == "none":
        return PipelineFiles({})
    pipeline = PIPELINES[forge or default_forge(root)]
    path = root / pipeline.path
    reference = Path(os.path.relpath(suite.resolve(), root.resolve())).as_posix()
    if forge is None and has_pipeline(root):
        return PipelineFiles(
            {}, (f"kept {path}; to run this suite too, add to it: gradeline ci {shlex.quote(reference)}",)
        )
    files = {path: pipeline.text(reference, choice)}
    if pipeline is not PIPELINES["gitlab"]:
        return PipelineFiles(files)
    start = root / _GITLAB_FILE
    if start.exists():
        return PipelineFiles(files, (f"to start the pipeline, add to {start}: {_GITLAB_INCLUDE}",))
    return PipelineFiles({**files, start: f"{_GITLAB_INCLUDE}\n"})


def missing_ignore_lines(text: bytes) -> bytes:
    """What to append to a ``.gitignore`` with this text; empty if it already has all lines."""
    present = {line.strip().strip(b"/") for line in text.splitlines()}
    missing = [name for name in _IGNORED if name.encode().strip(b"/") not in present]
    if not missing:
        return b""
    start = "\n" if text and not text.endswith(b"\n") else ""
    return (start + "".join(f"# gradeline: {_IGNORED[name]}\n{name}\n" for name in missing)).encode()
