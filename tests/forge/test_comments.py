"""One comment per suite: found by its marker and author, edited, and created once whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from forge_server import ForgeServer
from gradeline.errors import ConfigError
from gradeline.forge.comments import CommentForbiddenError, PlacedComment, comment_api, place_comment
from gradeline.forge.environment import CiEnvironment, ForgeName
from gradeline.transport import CallError, Transport

TOKEN = "ghs_SecretTokenOfTheJob0123456789"
MARKER = "<!-- gradeline:evals -->"
BODY = f"{MARKER}\n### Pass"
PLACES: dict[ForgeName, tuple[str, int]] = {"github": ("owner/repo", 12), "gitlab": ("77", 5)}


@pytest.fixture(params=PLACES)
def server(request: pytest.FixtureRequest) -> Iterator[ForgeServer]:
    with ForgeServer(request.param, TOKEN) as server:
        yield server


@pytest.fixture
def github() -> Iterator[ForgeServer]:
    with ForgeServer("github", TOKEN) as server:
        yield server


class Waits(list[float]):
    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def place(server: ForgeServer, body: str = BODY, token: str = TOKEN, waits: Waits | None = None) -> PlacedComment:
    forge: ForgeName = "github" if server.forge == "github" else "gitlab"
    repository, number = PLACES[forge]
    environment = CiEnvironment(forge, repository=repository, api_url=server.url, change=number)

    async def send() -> PlacedComment:
        async with Transport() as transport:
            api = comment_api(environment, token, number)
            return await place_comment(transport, api, MARKER, body, Waits() if waits is None else waits)

    return asyncio.run(send())


def test_the_first_job_creates_a_comment_and_the_next_one_edits_it(server: ForgeServer) -> None:
    url = "https://forge.example/comments/100" if server.forge == "github" else None  # a note has no page of its own
    assert place(server) == PlacedComment(True, url)
    assert place(server, f"{MARKER}\n### Fail") == PlacedComment(False, url)
    assert [one["body"] for one in server.comments] == [f"{MARKER}\n### Fail"]


def test_the_comment_is_found_after_many_others(server: ForgeServer) -> None:
    for number in range(150):
        server.add(f"comment {number}")
    server.add(f"{MARKER}\nold", own=True)
    assert not place(server).created
    assert server.comments[150]["body"] == BODY
    assert len(server.comments) == 151


def test_the_oldest_of_two_own_comments_is_edited(server: ForgeServer) -> None:
    server.add(f"{MARKER}\nfirst", own=True)
    server.add(f"{MARKER}\nsecond", own=True)
    place(server)
    assert [one["body"] for one in server.comments] == [BODY, f"{MARKER}\nsecond"]


def test_a_comment_of_another_user_with_the_marker_is_left_alone(server: ForgeServer) -> None:
    server.add(f"{MARKER}\nforged")
    assert place(server).created
    assert server.comments[0]["body"] == f"{MARKER}\nforged"


def test_a_comment_that_quotes_the_marker_or_is_of_another_suite_is_left_alone(server: ForgeServer) -> None:
    server.add(f"> {MARKER}", own=True)
    server.add("<!-- gradeline:evals2 -->", own=True)
    assert place(server).created


@pytest.mark.parametrize("executed", [True, False])
def test_a_creation_that_failed_is_not_repeated_if_it_succeeded_all_the_same(
    server: ForgeServer, executed: bool
) -> None:
    server.faults.append(("POST", 502, "Bad Gateway", executed))
    waits = Waits()
    place(server, waits=waits)
    assert [one["body"] for one in server.comments] == [BODY]
    assert waits == [3.0]


def test_a_rate_limit_is_waited_for(github: ForgeServer) -> None:
    github.faults.append(("POST", 403, "You have exceeded a secondary rate limit", False))
    waits = Waits()
    assert place(github, waits=waits).created
    assert waits == [60.0]


def test_a_forge_that_keeps_failing_is_an_error(github: ForgeServer) -> None:
    github.faults += [("POST", 500, "broken", False)] * 3
    with pytest.raises(CallError, match="answered 500"):
        place(github)
    assert github.comments == []


def test_a_token_that_may_only_read_is_refused_without_another_try(server: ForgeServer) -> None:
    server.read_only = True
    waits = Waits()
    with pytest.raises(CommentForbiddenError) as refused:
        place(server, waits=waits)
    assert TOKEN not in str(refused.value)
    assert waits == []


def test_an_invalid_token_is_named_but_not_shown(server: ForgeServer) -> None:
    with pytest.raises(ConfigError, match="the token is invalid or expired") as refused:
        place(server, token="wrong-0123456789abcdef")
    assert "wrong-0123456789abcdef" not in str(refused.value)


def test_a_pull_request_that_does_not_exist(github: ForgeServer) -> None:
    environment = CiEnvironment("github", repository="owner/else", api_url=github.url, change=12)

    async def send() -> None:
        async with Transport() as transport:
            await place_comment(transport, comment_api(environment, TOKEN, 12), MARKER, BODY)

    with pytest.raises(ConfigError, match="no such pull request"):
        asyncio.run(send())


def test_outside_of_a_forge_there_is_no_api() -> None:
    with pytest.raises(ConfigError, match="must run in a job of GitHub Actions or GitLab CI/CD"):
        comment_api(CiEnvironment(), TOKEN, 12)
