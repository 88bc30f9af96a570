"""Annotations: workflow commands that untrusted text cannot end, and their levels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from gradeline.report.annotations import Annotation, run_annotations
from gradeline.report.ci_result import CiCase, CiRun, CiScore, Undecided


@dataclass
class Shown:
    exit_code: int = 1
    tone: str = "fail"
    more: dict[str, Any] = field(default_factory=dict)

    def __call__(self, undecided: Undecided) -> list[tuple[str, str]]:
        case = CiCase(case="peru", scores=(CiScore("right", 1.0, 0.25),), file="cases.jsonl", line=12)
        run = CiRun(
            suite="evals",
            name="evals",
            run="0123456789ab",
            verdict=self.tone,
            headline=self.tone.title(),
            tone=self.tone,
            exit_code=self.exit_code,
            reasons=("right: open",),
            cases=2,
            base="1123456789ab",
            base_reason="the run of the base commit",
            regressions=(case,),
            **self.more,
        )
        return [(one.level, one.message) for one in run_annotations(run, undecided)]


REGRESSED = "case 'peru' regressed: right 1.000 → 0.250"
OPEN = "suite 'evals': undecided: right: open"


def test_a_case_is_named_by_file_and_line() -> None:
    annotation = Annotation("error", REGRESSED, "cases.jsonl", 12)
    assert annotation.command() == f"::error file=cases.jsonl,line=12::{REGRESSED}"
    assert annotation.text() == f"cases.jsonl:12: error: {REGRESSED}"


def test_a_message_without_a_place() -> None:
    assert Annotation("warning", "no base").command() == "::warning::no base"
    assert Annotation("warning", "no base").text() == "warning: no base"
    assert Annotation("error", "x", "cases.jsonl").command() == "::error file=cases.jsonl::x"


@pytest.mark.parametrize(
    ("file", "escaped"),
    [("a,line=1::b.jsonl", "a%2Cline=1%3A%3Ab.jsonl"), ("50%0A.jsonl", "50%250A.jsonl"), ("a\nb", "a%0Ab")],
)
def test_a_file_name_ends_neither_its_property_nor_the_command(file: str, escaped: str) -> None:
    assert Annotation("error", "x", file, 3).command() == f"::error file={escaped},line=3::x"


@pytest.mark.parametrize("message", ["a\n::error::b", "a\r::stop-commands::b", "a%0A::error::b", "a\u2028::error::b"])
def test_a_message_is_one_line(message: str) -> None:
    for shown in (Annotation("error", message).command(), Annotation("error", message, "f", 1).text()):
        assert len(shown.splitlines()) == 1
    assert "%0A" not in Annotation("error", message).command().replace("%250A", "")


def test_a_long_message_is_cut() -> None:
    assert len(Annotation("error", "x" * 100_000).command()) < 1_100


def test_cases_of_a_failed_run_are_errors() -> None:
    assert Shown()("warn") == [("error", REGRESSED)]


def test_cases_of_a_run_that_passes_are_notices() -> None:
    assert Shown(0, "pass")("fail") == [("notice", REGRESSED)]


@pytest.mark.parametrize(
    ("undecided", "expected"),
    [
        ("fail", [("error", OPEN), ("error", REGRESSED)]),
        ("warn", [("warning", OPEN), ("warning", REGRESSED)]),
        ("pass", [("warning", REGRESSED)]),
    ],
)
def test_an_undecided_run_is_an_error_only_where_it_fails_the_job(
    undecided: Undecided, expected: list[tuple[str, str]]
) -> None:
    assert Shown(3, "undecided")(undecided) == expected


def test_a_run_in_which_nothing_was_graded_is_an_error_even_if_undecided_ones_pass() -> None:
    assert Shown(4, "undecided")("pass") == [("error", OPEN), ("error", REGRESSED)]


def test_a_baseline_that_was_not_found_is_a_warning() -> None:
    shown = Shown(0, "pass", {"base_warning": "no run 'release'"})("pass")
    assert shown[0] == ("warning", "suite 'evals': no run 'release'; the run of the base commit")
