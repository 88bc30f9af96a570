from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradeline.suite.dataset import open_dataset


def ids(rows: list[dict[str, object]]) -> list[int | str]:
    return [sample.id for sample in open_dataset(rows)]


def test_a_case_without_an_id_is_named_by_its_input() -> None:
    a, b = ids([{"input": "a"}, {"input": "b"}])
    assert a != b
    assert ids([{"input": "new"}, {"input": "b"}, {"input": "a"}])[1:] == [b, a]
    assert ids([{"input": "a", "ground_truth": "corrected", "level": 2}]) == [a]
    assert ids([{"input": "a", "id": "own"}]) == ["own"]


def test_the_name_is_the_same_in_every_format(tmp_path: Path) -> None:
    (expected,) = ids([{"input": "4"}])
    for name, text in {
        "a.jsonl": '{"input": 4}',
        "a.csv": "input\n4\n",
        "a.json": '[{"input": "4"}]',
        "a.yaml": "- input: '4'",
    }.items():
        (tmp_path / name).write_text(text)
        assert [sample.id for sample in open_dataset(tmp_path / name)] == [expected]


def test_equal_inputs_are_told_apart_by_their_ground_truth_and_then_by_their_order() -> None:
    same, other = {"input": "a", "ground_truth": "1"}, {"input": "a", "ground_truth": "2"}
    names = ids([same, other, same, same, other])
    assert len(set(names)) == 5
    assert names[3] == f"{names[2]}-2"
    assert names[4] == f"{names[1]}-2"
    assert ids([same, same, other])[2] == names[1]


def test_many_equal_rows_are_named_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "same.jsonl"
    path.write_text((json.dumps({"input": "a"}) + "\n") * 20_000)
    assert len({sample.id for sample in open_dataset(path)}) == 20_000


@pytest.mark.parametrize("text", ["x", "ä\n", "case"])
def test_names_can_be_typed_on_a_command_line(text: str) -> None:
    (name,) = ids([{"input": text}])
    assert str(name).startswith("case-")
    assert str(name).replace("-", "").isalnum()
