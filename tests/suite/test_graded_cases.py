from __future__ import annotations

from pathlib import Path

import pytest

from gradeline.errors import ConfigError
from gradeline.model import Sample
from gradeline.suite.dataset import read_cases


def write(tmp_path: Path, text: str, name: str = "cases.jsonl") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_case_is_a_sample_with_its_submission(tmp_path: Path) -> None:
    path = write(tmp_path, '{"input": "q", "ground_truth": 4, "submission": "4", "x": 1}\n\n{"submission": ""}\n')
    assert list(read_cases(path)) == [
        (Sample(id=0, input="q", ground_truth="4", metadata={"x": 1}), "4"),
        (Sample(id=1, input=""), ""),
    ]


def test_cases_are_read_lazily(tmp_path: Path) -> None:
    cases = read_cases(write(tmp_path, '{"submission": "a"}\nbroken'))
    assert next(cases)[1] == "a"
    with pytest.raises(ConfigError, match=r"cases\.jsonl:2: not JSON"):
        next(cases)


def test_the_faults_of_the_sample_and_of_the_submission_come_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        list(read_cases(write(tmp_path, '{"submission": 3, "ground_truth": {}, "tags": "x"}')))
    assert [problem.path.rpartition(": ")[2] for problem in caught.value.problems] == [
        "submission",
        "ground_truth",
        "tags",
    ]


def test_a_submission_is_required(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="1: submission: must be the text to grade, got None"):
        list(read_cases(write(tmp_path, '{"input": "q"}')))


def test_every_kind_of_dataset_can_hold_cases(tmp_path: Path) -> None:
    path = write(tmp_path, "submission,ground_truth\n4,4\n", "cases.csv")
    assert list(read_cases(path)) == [(Sample(id=0, input="", ground_truth="4"), "4")]


def test_a_file_of_another_ending_is_jsonl(tmp_path: Path) -> None:
    assert len(list(read_cases(write(tmp_path, '{"submission": "a"}', "cases.txt")))) == 1


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl: no such file"):
        next(read_cases(tmp_path / "none.jsonl"))
