"""The run that a change is compared with: which runs of a commit or branch are taken, and which never."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gradeline.analysis.base_run import BaseQuery, BaseRun, find_base
from gradeline.engine.definition import RunDefinition, RunOptions
from gradeline.model import (
    CodeVersion,
    EarlyStopping,
    Grade,
    GradeKey,
    Outcome,
    Response,
    ResponseKey,
    Run,
    RunGrader,
    Sample,
    Storage,
    to_json,
)
from gradeline.store import open_storage

BASE, OLDER, OTHER = "a" * 40, "b" * 40, "c" * 40


@pytest.fixture
def storage() -> Iterator[Storage]:
    with open_storage("memory://") as opened:
        yield opened


def stored(storage: Storage, commit: str | None = BASE, *, graded: bool = True, **fields: Any) -> str:
    """A complete run of the suite; returns its id."""
    branch, dirty = fields.pop("branch", "main"), fields.pop("dirty", False)
    options = fields.pop("options", RunOptions())
    shared: dict[str, Any] = {
        "name": "evals",
        "suite": "evals",
        "status": "completed",
        "graders": {"right": RunGrader("k", "f")},
        "definition": to_json(RunDefinition("suite.yaml", options)),
        "code_version": None if commit is None else CodeVersion(commit=commit, branch=branch, dirty=dirty),
    }
    run = storage.save_run(Run(**{**shared, **fields}))
    storage.put_response(ResponseKey(run, "c"), Response(text="a"), Sample("c", "q"))
    if graded:
        storage.put_grade(GradeKey(run, "c", 0, "right"), Grade("k", "f", Outcome.PASS, 1.0, True))
    return run


def find(storage: Storage, **query: Any) -> BaseRun:
    return find_base(storage, BaseQuery(**{"suite": "evals", "options": RunOptions(), **query}))


def found_id(base: BaseRun) -> str | None:
    return None if base.run is None else base.run.id


def test_the_newest_run_of_the_commit(storage: Storage) -> None:
    stored(storage)
    expected = stored(storage)
    stored(storage, OTHER)
    found = find(storage, commit=BASE, branch="main")
    assert (found_id(found), found.reason) == (expected, "the run of the base commit aaaaaaaaaa")


def test_the_newest_of_the_branch_where_the_commit_has_none(storage: Storage) -> None:
    stored(storage, OLDER)
    expected = stored(storage, OTHER, dirty=True)
    stored(storage, OLDER, branch="pull/12")
    found = find(storage, commit=BASE, branch="main")
    reason = "the newest run on main, of commit cccccccccc with uncommitted changes"
    assert (found_id(found), found.reason) == (expected, reason)


@pytest.mark.parametrize(
    "fields",
    [
        {"suite": "other"},
        {"variant": "large"},
        {"status": "interrupted"},
        {"status": "running"},
        {"commit": None},
        {"graded": False},
        {"definition": None},
        {"options": RunOptions(limit=2)},
        {"options": RunOptions(tags=("europe",))},
        {"options": RunOptions(samples=("c",))},
        {"early": EarlyStopping("base", 10, 10, look=1, n=2, place=2)},
    ],
    ids=str,
)
def test_a_run_that_is_not_complete_or_of_other_cases_is_no_base(storage: Storage, fields: dict[str, Any]) -> None:
    stored(storage, **fields)
    found = find(storage, commit=BASE, branch="main")
    places = "of the base commit aaaaaaaaaa or on the branch main"
    assert found == BaseRun(None, f"no base: the store has no complete run of the suite 'evals' {places}")


def test_a_reference_comes_first_and_may_be_any_run(storage: Storage) -> None:
    named = stored(storage, None)
    stored(storage)
    found = find(storage, reference=named, commit=BASE)
    assert (found_id(found), found.reason) == (named, f"baseline '{named}'")


def test_a_reference_that_is_not_found_is_a_warning(storage: Storage) -> None:
    expected = stored(storage)
    found = find(storage, reference="release", commit=BASE)
    assert found_id(found) == expected
    assert found.warning is not None
    assert "'release'" in found.warning


def test_nothing_to_search_for(storage: Storage) -> None:
    stored(storage)
    assert find(storage) == BaseRun(None, "no base: name a run with --baseline, or a branch with --base-branch")
