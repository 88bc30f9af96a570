"""Clusters of cases: their sources, and invalid ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gradeline.errors import ConfigError
from gradeline.model import Sample, to_json
from gradeline.suite.cases import DatasetError
from gradeline.suite.clusters import COMPARED_CASES, ClusterPath, cluster_warnings, near_duplicate_warning
from gradeline.suite.dataset import open_dataset
from gradeline.suite.read import read_suite

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
    rows = [row(id="a", metadata={"source": {"page": 3}}, ground_truth="yes"), row(id="b", metadata={"source": "web"})]
    assert clusters(rows, ClusterPath("metadata.source.page")) == ["3", None]
    assert clusters(rows, ClusterPath("ground_truth")) == ["yes", None]
    assert clusters(rows, ClusterPath("id")) == ["a", "b"]


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
def test_a_list_or_object_is_not_a_valid_cluster(value: Any, tmp_path: Path) -> None:
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
        list(DOCUMENT.with_clusters([sample]))


class TestWarnings:
    def message(self, rows: list[Any], path: ClusterPath | None = DOCUMENT) -> list[str]:
        return list(cluster_warnings(open_dataset(rows, cluster=path), path))

    def test_no_warning_without_a_reason(self) -> None:
        assert self.message([row(metadata={"document": "a"}), row(metadata={"document": "b"})]) == []
        assert self.message([row(cluster="a"), row(cluster="b"), row()], None) == []
        assert self.message([row(), row()], None) == []

    def test_cases_without_the_key_are_counted(self) -> None:
        rows = [row(metadata={"document": "a"}), row(metadata={"document": "a"}), row(), row()]
        assert self.message(rows) == [
            "cluster: 2 of 4 cases have no metadata.document; each is a cluster of its own",
        ]
        assert self.message(rows[:3]) == ["cluster: 1 of 3 cases has no metadata.document; it is a cluster of its own"]

    def test_one_cluster_has_no_interval(self) -> None:
        assert self.message([row(metadata={"document": "a"})] * 1 + [row(metadata={"document": "a"})]) == [
            "cluster: all 2 cases are in one cluster, 'a', so that there is no interval; name a key that"
            " distinguishes the cases, or leave it out"
        ]

    @pytest.mark.parametrize(
        ("metadata", "message"),
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
    def test_a_key_that_no_case_has_is_an_error(self, metadata: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            self.message([row(metadata=metadata), row()])
        assert str(caught.value) == f"cluster: {message}"


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
        ("given", "message"),
        [
            ("document", "a case has no field 'document', only metadata, ground_truth, input, id, agent_args,"),
            ("document", "did you mean 'metadata.document'?"),
            ("metadata", "metadata is a mapping; name a key of it, such as metadata.document"),
            ("metadata.", "expected a path such as metadata.document, got 'metadata.'"),
            ("[a]", "expected a string that is not empty, got ['a']"),
        ],
    )
    def test_an_invalid_path_is_refused_with_its_position(self, tmp_path: Path, given: str, message: str) -> None:
        with pytest.raises(ConfigError) as caught:
            self.read(tmp_path, given)
        assert "suite.yaml:5:" in str(caught.value)
        assert message in str(caught.value)


CAPITALS = {"France": "Paris", "Spain": "Madrid", "Peru": "Lima", "Norway": "Oslo"}
WORDINGS = ("What is the capital of {}?", "What is the capital city of {}?", "What's the capital of {}?")


def paraphrases(**fields: str) -> list[Sample]:
    return [
        Sample(f"{country}-{number}", wording.format(country), city, **fields)
        for country, city in CAPITALS.items()
        for number, wording in enumerate(WORDINGS)
    ]


def test_three_pairs_are_named_with_what_to_add() -> None:
    assert near_duplicate_warning(paraphrases()) == (
        "dataset: 12 of 12 cases are nearly the same as another with the same ground truth, such as 'France-0' and"
        " 'France-1', 'Spain-0' and 'Spain-1', 'Peru-0' and 'Peru-1'; they count as independent cases: name what they"
        " share with cluster: metadata.KEY in the suite, or give each row a cluster"
    )


def test_the_warning_does_not_depend_on_the_order_of_the_file() -> None:
    cases = paraphrases()
    Random(2).shuffle(cases)
    assert "12 of 12 cases" in (near_duplicate_warning(cases) or "")


def test_cases_with_clusters_give_no_warning() -> None:
    assert near_duplicate_warning(paraphrases(cluster="capitals")) is None


def test_another_ground_truth_is_another_question() -> None:
    cases = [Sample(n, f"What is the capital of country {n}?", f"city {n}") for n in range(40)]
    assert near_duplicate_warning(cases) is None


def test_an_unknown_ground_truth_is_not_the_same() -> None:
    assert near_duplicate_warning(Sample(n, "What is the capital of France?") for n in range(40)) is None


def test_different_questions_with_one_answer_give_no_warning() -> None:
    random = Random(4)
    cases = [Sample(n, " ".join(random.choices("abcdefghij", k=30)), "yes") for n in range(40)]
    assert near_duplicate_warning(cases) is None


def test_a_fifth_of_the_cases_is_not_enough_for_a_warning() -> None:
    others = [Sample(f"other {n}", f"{n} {'x' * n}", f"answer {n}") for n in range(48)]
    assert near_duplicate_warning([*paraphrases(), *others]) is None
    assert near_duplicate_warning([*paraphrases(), *others[:47]]) is not None


def test_few_cases_give_no_warning() -> None:
    assert near_duplicate_warning(paraphrases()[:9]) is None


def test_only_the_first_cases_are_read() -> None:
    seen = 0

    def cases() -> Iterator[Sample]:
        nonlocal seen
        while True:
            seen += 1
            yield Sample(seen, f"How many wheels has bicycle number {seen}?", "2")

    assert f"of the first {COMPARED_CASES} cases" in (near_duplicate_warning(cases()) or "")
    assert seen == COMPARED_CASES


def test_conversations_and_long_texts_are_compared_too() -> None:
    text = "A long text about the sea. " * 200
    cases = [Sample(n, [text, f"question {n % 10}"], ["a", "b"]) for n in range(12)]
    assert near_duplicate_warning(cases) is not None
