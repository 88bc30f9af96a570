"""Runs whose cases have no ids: how they are named, resumed and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import gradeline
from gradeline.engine.comparison import compare
from gradeline.errors import ConfigError
from gradeline.store import InMemoryStorage

SUITE = """
name: named
dataset: cases.jsonl
target: {kind: python, function: "agent.py:answer", isolation: none}
graders: {right: {kind: string-match}}
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "cases.jsonl").write_text('{"input": "a", "ground_truth": "a"}\n{"input": "b", "ground_truth": "b"}\n')
    (tmp_path / "agent.py").write_text("def answer(text):\n    return text\n")
    (tmp_path / "suite.yaml").write_text(SUITE)
    return tmp_path / "suite.yaml"


def test_rows_that_move_stay_the_same_cases(suite: Path) -> None:
    storage = InMemoryStorage()
    first = gradeline.run_suite(suite, store=storage)
    lines = (suite.parent / "cases.jsonl").read_text().splitlines()
    (suite.parent / "cases.jsonl").write_text("\n".join(['{"input": "new", "ground_truth": "x"}', *lines[::-1]]))
    second = gradeline.run_suite(suite, store=storage)
    found = compare(storage, first.run, second.run)
    assert (found.comparable, found.edited) == (True, ())


def test_a_run_with_row_numbers_is_explained(suite: Path) -> None:
    storage = InMemoryStorage()
    numbered = gradeline.run_suite(suite, store=storage, overrides=["columns.id=$number"])
    named = gradeline.run_suite(suite, store=storage)
    assert [record.case for record in numbered.records()] == ["0", "1"]
    found = compare(storage, numbered.run, named.run)
    assert not found.comparable
    assert any("named by the number of their row in the baseline" in reason for reason in found.reasons)


def test_a_stored_run_resumes_with_the_names_it_has(suite: Path) -> None:
    from gradeline.engine.definition import RunDefinition
    from gradeline.engine.orchestrate import suite_of_run

    run = gradeline.run_suite(suite, store="memory://").run
    old = json.loads(run.definition or "")
    assert old.pop("case_ids") == "content"
    before = RunDefinition.of(replace(run, definition=json.dumps(old)))
    assert suite_of_run(before).dataset.scheme == "number"
    assert suite_of_run(RunDefinition.of(run)).dataset.scheme == "content"


def test_a_sample_that_is_a_row_number_is_explained(suite: Path) -> None:
    with pytest.raises(ConfigError, match=r"no case '1'; rows without an id are named by a digest"):
        gradeline.run_suite(suite, store="memory://", samples=["1"])


def test_a_letta_suite_keeps_row_numbers(suite: Path) -> None:
    from gradeline.suite.read import read_suite

    text = SUITE.replace(
        '{kind: python, function: "agent.py:answer", isolation: none}', "{kind: letta_agent, agent_id: a}"
    )
    suite.write_text(text)
    assert read_suite(suite).dataset.scheme == "number"
