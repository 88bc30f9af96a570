"""A suite stored with a run."""

from __future__ import annotations

from typing import Any

import pytest

from gradeline.errors import ConfigError
from gradeline.suite.stored import secret_names, stored_suite, with_variables

DOCUMENT: dict[str, Any] = {
    "name": "kept",
    "target": {
        "kind": "http",
        "url": "http://agent.test/",
        "headers": {"Authorization": {"secret": "TOKEN"}, "X-Plain": "plain"},
    },
    "graders": {"exact": {"kind": "exact_match"}},
    "dataset": [],
}


def test_secrets_are_only_in_the_target() -> None:
    suite = stored_suite(DOCUMENT, secrets={"TOKEN": "Bearer abc"})
    assert suite.target.config["headers"] == {"Authorization": "Bearer abc", "X-Plain": "plain"}
    assert suite.target.secrets == {"Bearer abc"}
    assert "Bearer abc" not in repr(suite.shown)
    assert suite.digest == stored_suite(DOCUMENT, secrets={"TOKEN": "another"}).digest


def test_missing_secrets_are_reported_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="requires the secret 'TOKEN', which only the service has"):
        stored_suite(DOCUMENT)


def test_faults_have_their_key_path() -> None:
    wrong = {**DOCUMENT, "target": {"kind": "http", "url": 1}, "graders": {"a": {"kind": "nobody"}}}
    with pytest.raises(ConfigError) as caught:
        stored_suite(wrong)
    assert [problem.path for problem in caught.value.problems] == ["target.url", "graders.a.kind"]


def test_overrides_replace_stored_values() -> None:
    suite = stored_suite(DOCUMENT, ["concurrency=3"], secrets={"TOKEN": "x"})
    assert suite.concurrency == 3


def test_a_file_names_secrets_as_variables() -> None:
    assert list(secret_names(DOCUMENT)) == ["TOKEN"]
    assert with_variables(DOCUMENT["target"])["headers"] == {"Authorization": "${TOKEN}", "X-Plain": "plain"}
