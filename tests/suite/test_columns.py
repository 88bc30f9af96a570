from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradeline.model import Sample
from gradeline.suite.cases import DatasetError
from gradeline.suite.columns import column_faults
from gradeline.suite.dataset import open_dataset

ROW = {"uid": "q1", "question": "2+2?", "answer": {"text": ["4", "four"]}, "lang": "en", "level": 1}


def read(row: dict[str, Any], columns: dict[str, Any]) -> Sample:
    (sample,) = open_dataset([row], columns=columns)
    return sample


def problems(source: Any, columns: dict[str, Any]) -> list[str]:
    with pytest.raises(DatasetError) as caught:
        list(open_dataset(source, columns=columns))
    return [str(problem) for problem in caught.value.problems]


def test_columns_are_named_or_found_by_a_path() -> None:
    sample = read(ROW, {"id": "uid", "input": "question", "ground_truth": "answer.text[0]"})
    assert (sample.id, sample.input, sample.ground_truth) == ("q1", "2+2?", "4")
    # a column that is used whole is no metadata any more, one that a path leads into is
    assert sample.metadata == {"answer": ROW["answer"], "lang": "en", "level": 1}


def test_listed_metadata_is_all_metadata() -> None:
    sample = read(ROW, {"input": "question", "metadata": {"language": "lang", "first": "answer.text[0]"}})
    assert sample.metadata == {"language": "en", "first": "4"}


def test_a_column_with_the_name_of_a_key_keeps_its_role_unless_the_key_has_another_column() -> None:
    row = {"input": "old", "question": "new", "tags": ["a"], "sample_id": "s", "id": "i"}
    sample = read(row, {"input": "question", "id": "id"})
    assert (sample.id, sample.input, sample.tags) == ("i", "new", ("a",))
    assert sample.metadata == {"input": "old", "sample_id": "s"}
    assert read(row, {"input": "question", "tags": None}).metadata["tags"] == ["a"]


def test_a_column_with_spaces_and_dots_is_named_as_it_is() -> None:
    sample = read({"Best Answer": "4", "q.text": "2+2?"}, {"input": "q.text", "ground_truth": "Best Answer"})
    assert (sample.input, sample.ground_truth, sample.metadata) == ("2+2?", "4", {})


def test_ids_can_be_numbers_or_digests() -> None:
    rows = [{"id": "x", "input": "a"}, {"id": "y", "input": "b"}]
    assert [sample.id for sample in open_dataset(rows, columns={"id": "$number"})] == [0, 1]
    digests = [sample.id for sample in open_dataset(rows, columns={"id": "$digest"})]
    assert digests == [sample.id for sample in open_dataset([{"input": "a"}, {"input": "b"}])]


def test_an_unknown_column_is_refused_with_the_columns_that_exist(tmp_path: Path) -> None:
    wrong = {"input": "qestion", "ground_truth": "solution.text", "metadata": {"lang": "lang"}}
    rows = tmp_path / "a.jsonl"
    rows.write_text(json.dumps(ROW) + "\n")
    assert problems(rows, wrong) == [
        f"{rows}:1: columns.input: no column 'qestion'; did you mean 'question'? the columns are 'uid', 'question',"
        " 'answer', 'lang', 'level'; where only some rows have it, write NAME || null",
        f"{rows}:1: columns.ground_truth: no column 'solution'; did you mean 'question'? the columns are 'uid', 'question', 'answer', 'lang',"
        " 'level'; where only some rows have it, write NAME || null",
    ]
    table = tmp_path / "a.csv"
    table.write_text("question,answer\n2+2?,\n")
    assert problems(table, {"input": "qestion"}) == [
        f"{table}:1: columns.input: no column 'qestion'; did you mean 'question'? the columns are 'question', 'answer'"
    ]
    # the header has the column, although the first row leaves it empty
    (sample,) = open_dataset(table, columns={"input": "question", "ground_truth": "answer"})
    assert sample.ground_truth is None


def test_cells_of_csv_are_read_as_the_key_they_become(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text('question,labels,extra,nested\nhi,"a, b","{""k"": 1}","{""deep"": [""x""]}"\n')
    columns = {"input": "question", "tags": "labels", "metadata": "extra", "ground_truth": "nested.deep[0]"}
    (sample,) = open_dataset(table, columns=columns)
    assert (sample.tags, sample.ground_truth) == (("a", "b"), "x")
    assert sample.metadata["k"] == 1


def test_a_path_that_fails_has_its_row() -> None:
    assert problems([ROW], {"input": "join('-', level)"})[0].startswith("dataset[0]: columns: the JMESPath")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"inputs": "q"}, "inputs: a case has no key 'inputs'; did you mean 'input'?"),
        ({"input": 3}, "input: expected a column or a JMESPath, got 3"),
        ({"input": {"a": "b"}}, "input: expected a column or a JMESPath, got {'a': 'b'}"),
        ({"metadata": {"a": 1}}, "metadata.a: expected a column or a JMESPath, got 1"),
        ({"id": "$row"}, "id: expected a column, $digest or $number, got '$row'"),
    ],
)
def test_a_fault_of_the_suite_is_reported(columns: dict[str, Any], message: str) -> None:
    assert [str(fault) for fault in column_faults(columns)] == [message]
