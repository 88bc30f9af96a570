"""Writes the results of a job as comments on its pull request or merge request."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from gradeline.cli.options import CliSettings
from gradeline.cli.terminal import single_line
from gradeline.errors import ConfigError, Problem
from gradeline.forge.comments import CommentForbiddenError, PlacedComment, comment_api, place_comment
from gradeline.forge.environment import CiEnvironment, read_environment
from gradeline.report.annotations import Annotation
from gradeline.report.ci_markdown import comment, comment_marker
from gradeline.report.ci_result import CiRun, Undecided, read_ci_report
from gradeline.transport import Transport

_TOKENS = {"github": ("GITHUB_TOKEN", "GH_TOKEN"), "gitlab": ("GITLAB_TOKEN",)}
_PERMISSIONS = {
    "github": "give the workflow permissions: {pull-requests: write}",
    "gitlab": "use a project access token with the scope api and the role Reporter or higher",
}
_LONGEST_PAGE = 50_000_000
"""Maximum size of a page of comments: a hundred of the maximum length, in bytes."""


async def write_comments(settings: CliSettings, paths: Sequence[Path]) -> None:
    """Create or edit the comment of each suite in the reports, if the job may."""
    environment = read_environment(os.environ)
    obstacle = _obstacle(environment)
    if obstacle is not None:
        click.echo(json.dumps({"comments": [], "reason": obstacle}) if settings.json else f"no comment: {obstacle}")
        return
    bodies = _bodies(paths)
    api = comment_api(environment, _token(environment, os.environ), environment.change or 0)
    placed: dict[str, PlacedComment] = {}
    try:
        async with Transport(max_body=_LONGEST_PAGE) as transport:
            for suite, body in bodies.items():
                placed[suite] = await place_comment(transport, api, comment_marker(suite), body)
                if not settings.json and not settings.quiet:
                    click.echo(_sentence(suite, placed[suite]))
    except CommentForbiddenError as error:
        reason = f"no comment: {error}; {_PERMISSIONS[environment.forge or 'github']}. The job summary shows the result"
        warning = Annotation("warning", reason)
        click.echo(warning.command() if environment.forge == "github" else warning.text(), err=True)
    if settings.json:
        comments = [{"suite": suite, "created": one.created, "url": one.url} for suite, one in placed.items()]
        click.echo(json.dumps({"comments": comments}, ensure_ascii=False))


def _obstacle(environment: CiEnvironment) -> str | None:
    """Why the job must not comment; None if it may."""
    if environment.forge is not None and environment.change is None:
        return "not the job of a pull request"
    if environment.from_fork:
        return "the change is from a fork, whose jobs may not comment; see the job summary"
    return None


def _bodies(paths: Sequence[Path]) -> dict[str, str]:
    """The comment of each suite; one suite may be in several reports."""
    runs: dict[str, list[CiRun]] = {}
    undecided: dict[str, Undecided] = {}
    for path in paths:
        report = read_ci_report(path)
        for run in report.runs:
            runs.setdefault(run.suite, []).append(run)
            undecided.setdefault(run.suite, report.undecided)
    return {suite: comment(suite, found, undecided[suite]) for suite, found in runs.items()}


def _token(environment: CiEnvironment, variables: Mapping[str, str]) -> str:
    names = _TOKENS[environment.forge or "github"]
    found = next((variables[name].strip() for name in names if variables.get(name, "").strip()), None)
    if found is None:
        example = (
            f"env: {{{names[0]}: ${{{{ github.token }}}}}}" if environment.forge == "github" else "a masked variable"
        )
        raise ConfigError(Problem(names[0], f"is not set; give the job a token that may write comments: {example}"))
    return found


def _sentence(suite: str, placed: PlacedComment) -> str:
    action = "created" if placed.created else "edited"
    return single_line(f"{action} the comment of {suite}{f': {placed.url}' if placed.url else ''}")
