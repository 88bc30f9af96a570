"""A run as a table for spreadsheets."""

from __future__ import annotations

import csv
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest

from gradeline.model import Record, Sample
from gradeline.report.table import CSV_COLUMNS, write_csv


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text, newline="")))


def test_a_row_for_each_case_repeat_and_grader_with_missing_left_empty(bench: Any, written: Callable[..., str]) -> None:
    report = bench.mixed()
    text = written(write_csv, report.records(), report.run.graders)
    assert text.split("\r\n", 1)[0] == ",".join(CSV_COLUMNS)
    rows = table(text)
    assert rows[1] == {
        "run": "run-1",
        "case": "spain",
        "repeat": "0",
        "grader": "exact",
        "kind": "string-match",
        "outcome": "fail",
        "score": "0.25",
        "passed": "false",
        "rationale": "not equal",
        "error_type": "",
        "error_message": "",
        "fault": "",
        "response_status": "success",
        "latency_ms": "250.0",
        "input": "Capital of Spain?",
        "expected": "Madrid",
        "submission": "Sevilla",
        "text": "Sevilla",
    }
    message = ("case", "outcome", "score", "passed", "error_type", "fault", "response_status")
    assert [tuple(row[name] for name in message) for row in rows] == [
        ("france", "pass", "1.0", "true", "", "", "success"),
        ("spain", "fail", "0.25", "false", "", "", "success"),
        ("norway", "error", "", "", "crashed", "grader", "success"),
        ("peru", "skipped", "", "", "timeout", "agent", "timeout"),
        ("chad", "", "", "", "", "", "success"),
    ]


def test_a_failed_call_has_a_row_before_any_grader_skips_it(bench: Any, written: Callable[..., str]) -> None:
    report = bench.report([(Sample("peru", "q"), bench.timeout(), {})])
    with_graders = table(written(write_csv, report.records(), report.run.graders))
    without_graders = table(written(write_csv, report.records()))
    assert [(row["grader"], row["outcome"]) for row in with_graders] == [("exact", "skipped")]
    assert [(row["grader"], row["outcome"]) for row in without_graders] == [("", "skipped")]


def test_repeats_have_their_own_rows(bench: Any, written: Callable[..., str]) -> None:
    grades = {"a": bench.grade(1.0), "b": bench.grade(0.0)}
    report = bench.report([(Sample("one", "q"), [bench.answer(), bench.answer()], grades)], ("a", "b"))
    rows = table(written(write_csv, report.records()))
    assert [(row["repeat"], row["grader"]) for row in rows] == [("0", "a"), ("0", "b"), ("1", "a"), ("1", "b")]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_spreadsheet_formulas_get_an_apostrophe(bench: Any, written: Callable[..., str], start: str) -> None:
    formula = f'{start}HYPERLINK("http://evil.example")'
    report = bench.report(
        [(Sample(formula, formula, formula), bench.answer(formula), {"exact": bench.grade(0.0, formula)})]
    )
    (row,) = table(written(write_csv, report.records()))
    texts = ("case", "rationale", "input", "expected", "submission", "text")
    assert {row[name] for name in texts} == {f"'{formula}"}


def test_numbers_stay_numbers_and_a_minus_within_a_text_is_not_a_formula(
    bench: Any, written: Callable[..., str]
) -> None:
    report = bench.report([(Sample("a-b", "1-2"), bench.answer("5=5", latency_ms=-0.5), {"exact": bench.grade(1.0)})])
    (row,) = table(written(write_csv, report.records()))
    assert (row["case"], row["input"], row["text"], row["latency_ms"]) == ("a-b", "1-2", "5=5", "-0.5")


def test_quotes_commas_and_line_ends_round_trip(bench: Any, written: Callable[..., str]) -> None:
    answer = 'He said "Paris",\r\nthen\nleft; 巴黎 '
    report = bench.report([(Sample("one", "q"), bench.answer(answer), {"exact": bench.grade(1.0)})])
    assert [row["text"] for row in table(written(write_csv, report.records()))] == [answer]


def test_turns_are_a_json_list(bench: Any, written: Callable[..., str]) -> None:
    sample = Sample("one", ["ask", "über"], ["a", "b"])
    report = bench.report([(sample, bench.answer(), {"exact": bench.grade(1.0)})])
    (row,) = table(written(write_csv, report.records()))
    assert (row["input"], row["expected"]) == ('["ask", "über"]', '["a", "b"]')


def test_hostile_text_is_written_as_utf_8(bench: Any, written: Callable[..., str]) -> None:
    report = bench.hostile_report()
    rows = table(written(write_csv, report.records(), report.run.graders).encode().decode())
    assert len(rows) == 4


def test_records_are_streamed(bench: Any) -> None:
    """The row of the first record is written before the last record is read."""
    (record,) = bench.report([(Sample("one", "q"), bench.answer(), {"exact": bench.grade(1.0)})]).records()
    file = StringIO(newline="")
    seen: list[int] = []

    def records() -> Any:
        for _ in range(3):
            seen.append(len(file.getvalue().splitlines()))
            yield record

    write_csv(file, records())
    assert isinstance(record, Record)
    assert seen == [1, 2, 3]
