"""The file and line of single cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradeline.suite.case_positions import case_positions
from gradeline.suite.dataset import open_dataset
from gradeline.suite.problems import SourcePosition
from gradeline.suite.read import read_suite

TEMPLATE = """\
name: capitals
target: {{kind: command, command: [cat]}}
graders: {{right: {{kind: contains}}}}
dataset: {dataset}
"""
LINES = '{"id": "france", "input": "France"}\n\n{"id": "spain", "input": "Spain"}\n{"id": 3, "input": "Peru"}\n'


def positions(folder: Path, dataset: str, *cases: str) -> dict[str, SourcePosition]:
    file = folder / "suite.yaml"
    file.write_text(TEMPLATE.format(dataset=dataset))
    return case_positions(read_suite(file), cases)


def test_a_case_of_a_file_has_its_line_there(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(LINES)
    found = positions(tmp_path, "cases.jsonl", "spain", "3", "absent")
    assert found == {"spain": SourcePosition(str(file), 3), "3": SourcePosition(str(file), 4)}


def test_cases_of_several_files_have_their_own(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.jsonl").write_text(f'{{"id": "case-{number}", "input": "x"}}\n')
    found = positions(tmp_path, "['1.jsonl', '2.jsonl']", "case-1", "case-2")
    assert found == {f"case-{number}": SourcePosition(str(tmp_path / f"{number}.jsonl"), 1) for number in (1, 2)}


def test_a_case_in_the_suite_has_its_line_there(tmp_path: Path) -> None:
    found = positions(tmp_path, "\n  - {id: france, input: France}\n  - {id: peru, input: Peru}", "peru")
    assert found == {"peru": SourcePosition(str(tmp_path / "suite.yaml"), 6, 5)}


def test_a_case_without_an_id_is_found_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text('{"input": "France"}\n{"input": "Peru"}\n')
    suite = tmp_path / "suite.yaml"
    suite.write_text(TEMPLATE.format(dataset="cases.jsonl"))
    read = read_suite(suite)
    names = [sample.case_key for sample in open_dataset(read.dataset)]
    assert case_positions(read, [names[1]]) == {names[1]: SourcePosition(str(file), 2)}


@pytest.mark.parametrize("text", ["not JSON\n", ""])
def test_a_file_that_is_no_longer_valid_gives_what_was_found_before(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(LINES)
    suite = tmp_path / "suite.yaml"
    suite.write_text(TEMPLATE.format(dataset="cases.jsonl"))
    read = read_suite(suite)
    file.write_text(LINES.split("\n")[0] + "\n" + text)
    assert case_positions(read, ["france", "3"]) == {"france": SourcePosition(str(file), 1)}
    file.unlink()
    assert case_positions(read, ["france"]) == {}
