"""One comment on a pull request, created once and then edited, on GitHub or GitLab."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from json import dumps, loads
from typing import Any, NamedTuple
from urllib.parse import quote

from gradeline.errors import ConfigError, GradelineError, Problem
from gradeline.forge.environment import CiEnvironment
from gradeline.transport import CallError, HttpRequest, Transport

_PAGE = 100
_MAX_PAGES = 200
_DEADLINE_S = 120.0
_TRIES = 3
_RATE_LIMIT_PAUSE_S = 60.0
_FAILURE_PAUSE_S = 3.0
_FORBIDDEN = 403
_REFUSALS = {
    401: "the token is invalid or expired; set GITHUB_TOKEN or GITLAB_TOKEN to a valid one",
    _FORBIDDEN: "the token may not write comments",
    404: "no such pull request, or the token may not read it",
}


class CommentForbiddenError(GradelineError):
    """The token may not write comments."""


class CommentApi(NamedTuple):
    """Where the comments of one pull request are in the API of its forge."""

    comments: str
    """The URL that lists comments, and creates one."""
    one: str
    """The URL of one comment, without its id."""
    edit: str
    """The method that edits one."""
    user: str
    """The URL of the token's user."""
    headers: Mapping[str, str]
    secret: str
    author: str
    """The key of a comment's author."""
    identity: str
    """The key of a user that is unique."""

    def request(self, method: str, url: str, data: object = None) -> HttpRequest:
        """A request with the token. Creating a comment is not repeated blindly: it may have succeeded."""
        return HttpRequest(
            method,
            url,
            self.headers,
            None if data is None else dumps(data).encode(),
            deadline_s=_DEADLINE_S,
            retries=0 if method == "POST" else 2,
            secret_headers=("Authorization", "PRIVATE-TOKEN"),
            secrets=(self.secret,),
        )


class PlacedComment(NamedTuple):
    """A comment that was written."""

    created: bool
    """False: it existed, and was edited."""
    url: str | None


def comment_api(environment: CiEnvironment, token: str, change: int) -> CommentApi:
    """The API of the job's forge; `ConfigError` if the job does not name it."""
    if environment.forge is None or environment.repository is None or environment.api_url is None:
        reason = "must run in a job of GitHub Actions or GitLab CI/CD, whose variables name the repository and the API"
        raise ConfigError(Problem("ci comment", reason))
    base, json_type = environment.api_url.rstrip("/"), {"Content-Type": "application/json"}
    if environment.forge == "github":
        issues = f"{base}/repos/{quote(environment.repository)}/issues"
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json", **json_type}
        comments, one = f"{issues}/{change}/comments", f"{issues}/comments"
        return CommentApi(comments, one, "PATCH", f"{base}/user", headers, token, "user", "login")
    notes = f"{base}/projects/{quote(environment.repository, safe='')}/merge_requests/{change}/notes"
    return CommentApi(notes, notes, "PUT", f"{base}/user", {"PRIVATE-TOKEN": token, **json_type}, token, "author", "id")


async def place_comment(
    transport: Transport,
    api: CommentApi,
    marker: str,
    body: str,
    pause: Callable[[float], Any] = asyncio.sleep,
) -> PlacedComment:
    """Edit the token's own comment that begins with the marker, or create it. ``pause`` waits before another try.

    `CommentForbiddenError` if the token may not, `ConfigError` if it is invalid or there is no such pull request,
    `CallError` if the forge fails.
    """
    for remaining in reversed(range(_TRIES)):
        creating = False
        try:
            number = await _find(transport, api, marker)
            creating = number is None
            return await _write(transport, api, number, body)
        except CallError as error:
            limited = error.http_status == _FORBIDDEN and "rate limit" in str(error).lower()
            if not limited and error.http_status in _REFUSALS:
                raise _refusal(error) from None
            # other requests were repeated by the transport; whether this one succeeded, the next list shows
            if not remaining or not (limited or (creating and _may_have_succeeded(error))):
                raise
            await pause(_RATE_LIMIT_PAUSE_S if limited else _FAILURE_PAUSE_S)
    raise AssertionError("the last try returns or raises")


async def _write(transport: Transport, api: CommentApi, number: int | None, body: str) -> PlacedComment:
    method, url = ("POST", api.comments) if number is None else (api.edit, f"{api.one}/{number}")
    written = _json((await transport.request(api.request(method, url, {"body": body}))).body)
    page = written.get("html_url") if isinstance(written, dict) else None
    return PlacedComment(number is None, page if isinstance(page, str) else None)


async def _find(transport: Transport, api: CommentApi, marker: str) -> int | None:
    """The id of the oldest own comment that begins with the marker."""
    identity: object = None
    for page in range(1, _MAX_PAGES + 1):
        response = await transport.request(
            api.request("GET", f"{api.comments}?per_page={_PAGE}&page={page}{_order(api)}")
        )
        comments = _json(response.body)
        if not isinstance(comments, list):
            raise ConfigError(Problem(api.comments, "did not return a list of comments; check the URL of the API"))
        for comment in comments:
            if not isinstance(comment, dict) or not str(comment.get("body", "")).startswith(marker):
                continue
            identity = identity or await _identity(transport, api)
            if _is_own(comment.get(api.author), api, identity) and isinstance(comment.get("id"), int):
                number: int = comment["id"]
                return number
        if len(comments) < _PAGE:
            return None
    return None


def _order(api: CommentApi) -> str:
    """GitHub lists the oldest comment first, GitLab the newest unless it is requested."""
    return "" if api.author == "user" else "&sort=asc&order_by=created_at"


_APP = object()
"""The identity of a token that belongs to an app, which has no user."""


async def _identity(transport: Transport, api: CommentApi) -> object:
    try:
        user = _json((await transport.request(api.request("GET", api.user))).body)
    except CallError as error:
        if error.http_status == _FORBIDDEN:  # the token of a job on GitHub
            return _APP
        raise
    return user.get(api.identity) if isinstance(user, dict) else None


def _is_own(author: object, api: CommentApi, identity: object) -> bool:
    if not isinstance(author, dict):
        return False
    if identity is _APP:  # no person can have the type of an app
        return author.get("type") == "Bot"
    return identity is not None and author.get(api.identity) == identity


def _json(body: bytes) -> Any:
    try:
        return loads(body)
    except (ValueError, RecursionError):
        return None


def _may_have_succeeded(error: CallError) -> bool:
    """Whether a write that failed may have been executed, or may succeed later."""
    return error.http_status is None or error.http_status == 429 or error.http_status >= 500


def _refusal(error: CallError) -> GradelineError:
    if error.http_status == _FORBIDDEN:
        return CommentForbiddenError(str(error))
    return ConfigError(Problem("ci comment", f"{_REFUSALS[error.http_status or 0]}: {error}"))
