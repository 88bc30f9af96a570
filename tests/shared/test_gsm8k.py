"""The numeric grader agrees with published verdicts on real answers to grade-school problems."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline.graders import grade

Row = dict[str, Any]
Rows = Callable[[str], Iterator[Row]]

DATA = Path(os.environ.get("GRADELINE_SHARED_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def passes(row: Row) -> bool:
    return grade("numeric", row["response"], row["gold"]).passed


def place(row: Row) -> tuple[int, str]:
    return row["item_id"], row["model"]


def totals(rows: Iterable[Row], label: str) -> dict[str, list[int]]:
    """For each model the number of rows labelled correct, and of all rows."""
    counts: dict[str, list[int]] = {}
    for row in rows:
        count = counts.setdefault(row["model"], [0, 0])
        count[0] += row[label]
        count[1] += 1
    return counts


@pytest.mark.parametrize(("folder", "label"), [("gsm8k_solutions", "is_correct"), ("routellm_gsm8k", "last_int_label")])
def test_all_rows_exist(shared_rows: Rows, folder: str, label: str) -> None:
    counted = totals(shared_rows(f"{folder}/rows.jsonl"), label)
    assert counted == json.loads((DATA / folder / "expected.json").read_text(encoding="utf-8"))


def test_numeric_agrees_with_every_verdict_of_the_original_solutions(shared_rows: Rows) -> None:
    rows = list(shared_rows("gsm8k_solutions/rows.jsonl"))
    assert [place(row) for row in rows if passes(row) is not row["is_correct"]] == []


def test_numeric_agrees_with_the_undisputed_labels_of_free_answers(shared_rows: Rows) -> None:
    right = {place(row): row["numeric_label"] for row in shared_rows("routellm_gsm8k/disputed.jsonl")}
    assert right
    rows = list(shared_rows("routellm_gsm8k/rows.jsonl"))
    assert right.keys() <= {place(row) for row in rows}
    wrong = [place(row) for row in rows if passes(row) is not right.get(place(row), row["last_int_label"])]
    assert wrong == []
