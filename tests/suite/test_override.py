"""Values that stand over a suite's own for one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradeline.errors import ConfigError
from gradeline.suite.document import Document, read_document
from gradeline.suite.override import override
from gradeline.suite.places import DocumentError
from gradeline.suite.read import read_suite

SUITE = """\
name: short
dataset: [{input: q}]
target: {kind: http, url: "http://127.0.0.1:9000"}
graders: {exact: {kind: string-match}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "suite.yaml"
    file.write_text(SUITE)
    return file


@pytest.fixture
def document(path: Path) -> Document:
    return read_document(path)


def test_values_are_yaml_and_stand_where_they_are_told(document: Document) -> None:
    data = override(
        document,
        ["target.url=http://other:1/x?a=b", "graders.exact.case_sensitive=false", "max_samples=3", "dataset[0].id=a"],
    ).data
    assert data["target"]["url"] == "http://other:1/x?a=b"
    assert data["graders"]["exact"] == {"kind": "string-match", "case_sensitive": False}
    assert data["max_samples"] == 3
    assert data["dataset"] == [{"input": "q", "id": "a"}]
    assert document.data["dataset"] == [{"input": "q"}]


def test_the_last_word_counts_and_nothing_is_null(document: Document) -> None:
    data = override(document, ["target.timeout=1", "target.timeout=2", "gate="]).data
    assert (data["target"]["timeout"], data["gate"]) == (2, None)


def test_what_stands_over_it_makes_another_suite(document: Document) -> None:
    digests = {override(document, settings).digest for settings in ([], ["max_samples=1"], ["max_samples=2"])}
    assert len(digests) == 3


def test_an_unknown_key_is_refused_as_in_the_file(path: Path) -> None:
    with pytest.raises(DocumentError, match=r"target\.urll: unknown"):
        read_suite(path, ["target.urll=http://x"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("max_samples", "write key=value"),
        ("=3", "write key=value"),
        ("a..b=3", "write key=value"),
        ("name.x=3", "name is 'short', which has no keys"),
        ("dataset[4].id=3", r"dataset has no item \[4\]"),
        ("name=[", "not YAML"),
        ("target.headers.authorization=Bearer abc", "may be a secret; export it and write"),
        ("target.api_key=sk-123", "may be a secret"),
    ],
)
def test_a_wrong_setting_says_what_to_write(document: Document, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        override(document, [setting])
    assert "sk-123" not in str(caught.value)
    assert "abc" not in str(caught.value)


def test_a_secret_by_its_name_in_the_environment_is_taken(document: Document) -> None:
    assert override(document, ["target.api_key=${KEY}"]).data["target"]["api_key"] == "${KEY}"


def test_a_word_that_only_sounds_secret_elsewhere_is_taken(document: Document) -> None:
    assert override(document, ["gate.metric_key=exact"]).data["gate"] == {"metric_key": "exact"}
