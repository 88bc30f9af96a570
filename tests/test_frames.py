"""Data frames as the cases of a suite, with the real libraries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gradeline import run_suite
from gradeline.errors import ConfigError
from gradeline.suite.cases import DatasetError

ROWS: dict[str, list[Any]] = {
    "question": ["What is 6 times 7?", "What is 2 plus 2?"],
    "answer": ["42", None],
    "level": [2, 3],
    "asked": [datetime(2026, 11, 16, 9, 30), None],
    "source": [{"book": "maths", "pages": [1, 2]}, None],
}
COLUMNS = {"input": "question", "ground_truth": "answer"}


def frame(library: str, rows: dict[str, list[Any]]) -> Any:
    module = pytest.importorskip(library)
    return module.table(rows) if library == "pyarrow" else module.DataFrame(rows)


def cases(data: Any, **keys: Any) -> list[Any]:
    suite = {
        "name": "frame",
        "dataset": data,
        "target": lambda question: "42",
        "graders": {"right": {"kind": "contains"}},
        **keys,
    }
    return [record.sample for record in run_suite(suite, store="memory://").records()]


@pytest.mark.parametrize("library", ["polars", "pandas", "pyarrow"])
class TestFrames:
    def test_rows_are_cases_without_the_missing_values(self, library: str) -> None:
        first, second = cases(frame(library, ROWS), columns=COLUMNS)
        assert (first.input, first.ground_truth, second.ground_truth) == (ROWS["question"][0], "42", None)
        assert first.metadata == {
            "level": 2,
            "asked": "2026-11-16T09:30:00",
            "source": {"book": "maths", "pages": [1, 2]},
        }
        assert second.metadata == {"level": 3}

    def test_the_ids_are_those_of_the_same_rows_elsewhere(self, library: str) -> None:
        rows = {"input": ["a", "b"], "ground_truth": ["1", "2"]}
        listed = [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]
        assert [one.id for one in cases(frame(library, rows))] == [one.id for one in cases(listed)]

    def test_an_unknown_column_is_refused(self, library: str) -> None:
        with pytest.raises(DatasetError, match="no column 'qestion'; did you mean 'question'"):
            cases(frame(library, ROWS), columns={"input": "qestion"})

    def test_a_binary_column_is_refused(self, library: str) -> None:
        with pytest.raises(ConfigError, match="row 0: column 'picture' is binary"):
            cases(frame(library, {"input": ["a"], "picture": [b"\x89PNG"]}))


def test_a_lazy_frame_is_collected() -> None:
    polars = pytest.importorskip("polars")
    lazy = polars.LazyFrame({"input": ["a", "b", "c"], "asked": [datetime(2026, 11, 16, 9, 30, tzinfo=UTC)] * 3})
    assert [one.input for one in cases(lazy.filter(polars.col("input") != "b"))] == ["a", "c"]
