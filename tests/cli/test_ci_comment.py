"""The pull-request workflow end to end: jobs of two pushes, and the one comment that they write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci_checkout import TOKEN, Checkout
from forge_server import ForgeServer

WORSE = range(3, 18)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture
def github() -> Iterator[ForgeServer]:
    with ForgeServer("github", TOKEN) as server:
        yield server


def variables(server: ForgeServer) -> dict[str, str]:
    if server.forge == "github":
        return {"GITHUB_API_URL": server.url, "GITHUB_TOKEN": TOKEN}
    return {"CI_API_V4_URL": server.url, "GITLAB_TOKEN": TOKEN}


def test_two_pushes_to_a_pull_request_edit_one_comment(checkout: Checkout, github: ForgeServer) -> None:
    base = checkout.commit()
    assert checkout.run("suite.yaml", checkout.push_job()).code == 0
    nothing = checkout.run("comment", {**checkout.push_job(), **variables(github)})
    assert (nothing.code, nothing.printed) == (0, "no comment: not the job of a pull request\n")
    assert github.requests == []

    checkout.answer(*WORSE)
    checkout.commit(detached=True)
    first = checkout.run("suite.yaml", checkout.pull_request_job(base))
    assert first.code == 1
    assert first.commands[0] == "::error file=cases.jsonl,line=4::case 'c3' regressed: right 1.000 → 0.000"
    written = checkout.run("comment", {**checkout.pull_request_job(base), **variables(github)})
    assert (written.code, written.printed) == (0, "created the comment of evals: https://forge.example/comments/100\n")
    text = github.comments[0]["body"]
    assert text.startswith("<!-- gradeline:evals -->\n### ❌ Fail: <code>evals</code>\n")
    assert "**15 cases became worse**" in text
    assert "<code>cases.jsonl&#58;4</code>" in text

    checkout.answer()
    fixed = checkout.commit()
    second = checkout.run("suite.yaml", checkout.pull_request_job(base))
    assert (second.code, second.outputs["verdict"]) == (0, "undecided")
    written = checkout.run("comment", {**checkout.pull_request_job(base), **variables(github)})
    assert (written.code, written.printed) == (0, "edited the comment of evals: https://forge.example/comments/100\n")
    assert len(github.comments) == 1
    text = github.comments[0]["body"]
    assert text.startswith("<!-- gradeline:evals -->\n### ⚠️ Undecided: <code>evals</code>\n")
    assert "became worse" not in text
    assert fixed[:10] in text


def test_each_suite_has_its_own_comment(checkout: Checkout, github: ForgeServer) -> None:
    base = checkout.commit()
    job = {**checkout.pull_request_job(base), **variables(github)}
    checkout.run("suite.yaml", job)
    checkout.suite(name="other")
    checkout.run("suite.yaml --output other.json", job)
    for _ in range(2):
        assert checkout.run("comment gradeline-ci.json other.json", job).code == 0
    assert [one["body"].splitlines()[0] for one in github.comments] == [
        "<!-- gradeline:evals -->",
        "<!-- gradeline:other -->",
    ]


def test_a_merge_request_on_gitlab_has_one_note(checkout: Checkout) -> None:
    base = checkout.commit(detached=True)
    with ForgeServer("gitlab", TOKEN) as gitlab:
        job = checkout.gitlab_job(base, **variables(gitlab))
        for expected in ("created", "edited"):
            checkout.run("suite.yaml", job)
            done = checkout.run("comment", job)
            assert (done.code, done.printed.split()[0]) == (0, expected)
        assert len(gitlab.comments) == 1


@pytest.mark.parametrize("forge", ["github", "gitlab"])
def test_a_change_from_a_fork_has_only_its_summary(checkout: Checkout, forge: str) -> None:
    base = checkout.commit()
    with ForgeServer(forge, TOKEN) as server:
        own = checkout.pull_request_job(base, "else/repo") if forge == "github" else checkout.gitlab_job(base, "78")
        checkout.run("suite.yaml", own)
        own.pop("GITHUB_TOKEN", None)
        done = checkout.run("comment", {**own, **variables(server)})
        assert done.code == 0
        assert done.printed.startswith("no comment: the change is from a fork")
        assert server.requests == []


def test_a_token_that_may_not_comment_is_a_warning_with_the_remedy(checkout: Checkout, github: ForgeServer) -> None:
    github.read_only = True
    base = checkout.commit()
    job = {**checkout.pull_request_job(base), **variables(github)}
    checkout.run("suite.yaml", job)
    done = checkout.run("comment", job)
    assert done.code == 0
    assert done.errors.startswith("::warning::no comment: POST ")
    assert "give the workflow permissions: {pull-requests: write}" in done.errors


def test_a_missing_token_is_an_error(checkout: Checkout, github: ForgeServer) -> None:
    base = checkout.commit()
    job = checkout.pull_request_job(base)
    checkout.run("suite.yaml", job)
    done = checkout.run("comment", {**job, "GITHUB_API_URL": github.url})
    assert done.code == 2
    assert "GITHUB_TOKEN: is not set" in done.errors


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_forge_that_repeats_the_token_does_not_make_it_visible(
    checkout: Checkout, github: ForgeServer, method: str
) -> None:
    base = checkout.commit()
    job = {**checkout.pull_request_job(base), **variables(github)}
    checkout.run("suite.yaml", job)
    github.faults.append((method, 422, f"invalid request of {TOKEN}", False))
    done = checkout.run("comment", job)  # it checks that the token is in no output
    assert done.code == 4
    assert "answered 422" in done.errors


def test_an_invalid_token_is_not_shown(checkout: Checkout, github: ForgeServer) -> None:
    base = checkout.commit()
    job = {**checkout.pull_request_job(base), "GITHUB_API_URL": github.url, "GH_TOKEN": f"{TOKEN}x"}
    checkout.run("suite.yaml", job)
    done = checkout.run("comment", job)
    assert done.code == 2
    assert "the token is invalid or expired" in done.errors


@pytest.mark.parametrize("text", [None, "", "{}", '{"schema": 2, "runs": []}', "[" * 100_000, "\xff"])
def test_a_file_that_is_no_report_is_refused(checkout: Checkout, github: ForgeServer, text: str | None) -> None:
    base = checkout.commit()
    if text is not None:
        checkout.write("gradeline-ci.json", text)
    done = checkout.run("comment", {**checkout.pull_request_job(base), **variables(github)})
    assert done.code == 2
    assert "gradeline-ci.json" in done.errors
    assert "gradeline ci SUITE" in done.errors
    assert github.requests == []


def test_outside_of_a_forge_there_is_nowhere_to_comment(checkout: Checkout) -> None:
    checkout.commit()
    checkout.run("suite.yaml")
    done = checkout.run("comment", {"GITHUB_TOKEN": TOKEN})
    assert done.code == 2
    assert "must run in a job of GitHub Actions or GitLab CI/CD" in done.errors


def test_json_lists_the_comments(checkout: Checkout, github: ForgeServer) -> None:
    base = checkout.commit()
    job = {**checkout.pull_request_job(base), **variables(github)}
    checkout.run("suite.yaml", job)
    assert json.loads(checkout.run("comment --json", job).printed) == {
        "comments": [{"suite": "evals", "created": True, "url": "https://forge.example/comments/100"}]
    }
