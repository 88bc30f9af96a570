"""Where a case's cluster comes from, and what is wrong with one that names none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradeline.errors import ConfigError
from gradeline.model import Sample, to_json
from gradeline.suite.clusters import ClusterPath, cluster_warnings
from gradeline.suite.dataset import open_dataset
from gradeline.suite.read import read_suite
from gradeline.suite.samples import DatasetError

DOCUMENT = ClusterPath("metadata.document")


def clusters(rows: list[Any], path: ClusterPath | None = None) -> list[str | None]:
    return [sample.cluster or None for sample in open_dataset(rows, cluster=path)]


def row(**fields: Any) -> dict[str, Any]:
    return {"input": "q", **fields}


@pytest.mark.parametrize(
    ("value", "cluster"),
    [
        ("manual", "manual"),
        (7, "7"),
        (0, "0"),
        (1.5, "1.5"),
        (True, "true"),
        (False, "false"),
        (None, None),
        ("", None),
    ],
)
def test_texts_numbers_and_booleans_name_a_cluster(value: Any, cluster: str | None) -> None:
    assert clusters([row(metadata={"document": value})], DOCUMENT) == [cluster]
    assert clusters([row(cluster=value)]) == [cluster]


def test_a_path_leads_into_nested_metadata_and_to_other_fields() -> None:
    rows = [row(id="a", metadata={"source": {"page": 3}}, ground_truth="yes"), row(metadata={"source": "web"})]
    assert clusters(rows, ClusterPath("metadata.source.page")) == ["3", None]
    assert clusters(rows, ClusterPath("ground_truth")) == ["yes", None]
    assert clusters(rows, ClusterPath("id")) == ["a", "1"]


def test_the_cluster_of_a_row_wins() -> None:
    rows = [row(cluster="own", metadata={"document": "d"}), row(metadata={"document": "d"})]
    assert clusters(rows, DOCUMENT) == ["own", "d"]


def test_the_cluster_of_a_row_is_not_metadata() -> None:
    (sample,) = open_dataset([row(cluster="own", level=1)])
    assert (sample.cluster, sample.metadata) == ("own", {"level": 1})


def test_a_sample_without_a_cluster_is_stored_as_it_always_was() -> None:
    assert "cluster" not in to_json(Sample(1, "q"))
    assert Sample(1, "q", cluster=None) == Sample(1, "q")


def test_plain_lines_and_others_read_the_same_cluster(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    lines = [{"id": 1, "input": "q", "cluster": "d"}, {"id": 2, "input": "q", "cluster": "d", "level": 2}]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert [sample.cluster for sample in open_dataset(path)] == ["d", "d"]


@pytest.mark.parametrize("value", [["a"], {"a": 1}])
def test_a_list_or_object_names_no_cluster(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps(row(id="first", metadata={"document": value})))
    with pytest.raises(DatasetError) as caught:
        list(open_dataset(path, cluster=DOCUMENT))
    expected = f"case 'first': metadata.document must be a string, a number, true or false, got {value!r}"
    assert f"{path}:1" in str(caught.value)
    assert expected in str(caught.value)
    with pytest.raises(DatasetError, match="cluster: expected a string, a number, true or false"):
        clusters([row(cluster=value)])


def test_stored_cases_with_a_bad_value_are_named() -> None:
    sample = Sample("first", "q", metadata={"document": ["a"]})
    with pytest.raises(ConfigError, match=r"cluster: case 'first': metadata\.document must be a string"):
        list(DOCUMENT.of_cases([sample]))


class TestWarnings:
    def told(self, rows: list[Any], path: ClusterPath | None = DOCUMENT) -> list[str]:
        return list(cluster_warnings(open_dataset(rows, cluster=path), path))

    def test_nothing_to_say(self) -> None:
        assert self.told([row(metadata={"document": "a"}), row(metadata={"document": "b"})]) == []
        assert self.told([row(cluster="a"), row(cluster="b"), row()], None) == []
        assert self.told([row(), row()], None) == []

    def test_cases_without_the_key_are_counted(self) -> None:
        rows = [row(metadata={"document": "a"}), row(metadata={"document": "a"}), row(), row()]
        assert self.told(rows) == [
            "cluster: 2 of 4 cases have no metadata.document; each is a cluster of its own",
        ]
        assert self.told(rows[:3]) == ["cluster: 1 of 3 cases has no metadata.document; it is a cluster of its own"]

    def test_one_cluster_makes_no_interval(self) -> None:
        assert self.told([row(metadata={"document": "a"})] * 1 + [row(metadata={"document": "a"})]) == [
            "cluster: all 2 cases are in one cluster, 'a', so that no interval can be made; name a key that tells the"
            " cases apart, or leave it out"
        ]

    @pytest.mark.parametrize(
        ("metadata", "told"),
        [
            ({"documents": "a"}, "no case has 'metadata.document'; did you mean 'metadata.documents'?"),
            (
                {"level": 1, "topic": 2},
                "no case has 'metadata.document'; their metadata has 'level', 'topic'; name one of these",
            ),
            (
                {},
                "no case has 'metadata.document'; no case has any metadata; write a cluster into each row of the"
                " dataset, or leave the key out",
            ),
        ],
    )
    def test_a_key_that_no_case_has_is_an_error(self, metadata: dict[str, Any], told: str) -> None:
        with pytest.raises(ConfigError) as caught:
            self.told([row(metadata=metadata), row()])
        assert str(caught.value) == f"cluster: {told}"


class TestSuite:
    def read(self, folder: Path, cluster: str) -> ClusterPath | None:
        path = folder / "suite.yaml"
        path.write_text(
            f"name: s\ndataset: [{{input: q}}]\ntarget: {{kind: command, command: [cat]}}\n"
            f"graders: {{g: {{kind: exact_match}}}}\ncluster: {cluster}\n"
        )
        return read_suite(path).cluster

    def test_the_key_is_a_path(self, tmp_path: Path) -> None:
        assert self.read(tmp_path, "metadata.document") == DOCUMENT
        assert self.read(tmp_path, "null") is None

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ("document", "a case has no field 'document', only metadata, ground_truth, input, id, agent_args,"),
            ("document", "did you mean 'metadata.document'?"),
            ("metadata", "metadata is a mapping; name a key of it, such as metadata.document"),
            ("metadata.", "expected a path such as metadata.document, got 'metadata.'"),
            ("[a]", "expected a string that is not empty, got ['a']"),
        ],
    )
    def test_what_is_no_path_is_refused_at_its_place(self, tmp_path: Path, given: str, told: str) -> None:
        with pytest.raises(ConfigError) as caught:
            self.read(tmp_path, given)
        assert "suite.yaml:5:" in str(caught.value)
        assert told in str(caught.value)
