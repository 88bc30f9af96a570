"""The labels of people are in every export of a run."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from labelled_runs import judged_run

from gradeline.model import Run
from gradeline.model.label import HumanVerdict
from gradeline.store import SqliteStorage
from gradeline.trust.labelling import Labelling
from gradeline_command import COMMAND, run_command


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStorage]:
    with SqliteStorage(tmp_path / "store.db") as storage:
        yield storage


@pytest.fixture
def run(store: SqliteStorage) -> Run:
    run = judged_run(store, cases=3, failing=1)
    for rater, score in (("ada", 1.0), ("eve", 0.5)):
        labelling = Labelling(store, run, "quality", rater)
        labelling.put(labelling.record("c1", 0), HumanVerdict(score=score, comment="=HYPERLINK(1)"))
    labelling = Labelling(store, run, "tone", "ada")
    labelling.put(labelling.record("c0", 0), HumanVerdict(category="rude"))
    return run


def gradeline(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "GRADELINE_STORE": str(folder / "store.db")}
    done = run_command([COMMAND, *arguments], cwd=folder, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [("export", "latest"), ("show", "latest", "--records")])
def test_records_have_their_labels(store: SqliteStorage, run: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    records = {one["case"]: one for one in map(json.loads, gradeline(tmp_path, *command).splitlines())}
    assert "labels" not in records["c2"]
    assert [(one["grader"], one["author"], one["score"]) for one in records["c1"]["labels"]] == [
        ("quality", "ada", 1.0),
        ("quality", "eve", 0.5),
    ]
    assert [(one["grader"], one["category"], one["verdict"]) for one in records["c0"]["labels"]] == [
        ("tone", "rude", None)
    ]


def test_rows_have_what_the_raters_say_together(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(gradeline(tmp_path, "export", "--format", "csv"))))
    assert list(rows[0])[-4:] == ["label", "label_score", "label_category", "label_raters"]
    labelled = [(row["case"], row["grader"], row["label"], row["label_score"], row["label_raters"]) for row in rows]
    assert [row for row in labelled if row[2]] == [("c1", "quality", "pass", "0.75", "2")]


def test_a_run_without_labels_has_no_columns_of_them(store: SqliteStorage, tmp_path: Path) -> None:
    judged_run(store, cases=2, failing=1)
    assert "label" not in gradeline(tmp_path, "export", "--format", "csv").splitlines()[0]


def test_a_data_frame_has_typed_labels(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    gradeline(tmp_path, "export", "--format", "parquet", "--output", "run.parquet")
    labelled = "SELECT \"case\", grader, label, label_score, label_raters FROM 'run.parquet' WHERE label IS NOT NULL"
    found = duckdb.sql(labelled.replace("run.parquet", str(tmp_path / "run.parquet"))).fetchall()
    assert found == [("c1", "quality", "pass", 0.75, 2)]


def test_a_regrade_is_exported_with_the_labels_of_its_responses(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    again = store.save_run(Run(name="again", suite="s", parent=run.id, graders=run.graders, status="completed"))
    records = {one["case"]: one for one in map(json.loads, gradeline(tmp_path, "export", again).splitlines())}
    assert len(records["c1"]["labels"]) == 2
