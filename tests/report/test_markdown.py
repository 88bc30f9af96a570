"""A run as Markdown for a pull request."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from gradeline.model import Sample
from gradeline.report.markdown import LONGEST_COMMENT, append_step_summary, code, markdown, words

GATE = {"kind": "simple", "metric_key": "exact", "aggregation": "avg_score", "op": "gte", "value": 0.8}
MARKUP = {"link_open", "image", "code_inline", "fence", "code_block", "em_open", "s_open", "hr", "blockquote_open"}
parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table, as written in the source."""
    found: list[list[list[str]]] = []
    tokens = parser.parse(text)
    for before, token in pairwise(tokens):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif before.type in ("th_open", "td_open"):
            found[-1][-1].append(token.content)
    return found


def kinds(text: str) -> set[str]:
    """The tokens of a text, including inline ones."""
    tokens = parser.parse(text)
    return {one.type for token in tokens for one in (token, *(token.children or ()))}


def test_the_verdict_comes_first_with_its_reasons(bench: Any) -> None:
    lines = markdown(bench.mixed(gate=GATE)).splitlines()
    assert lines[:5] == [
        "### ❌ Fail: <code>capitals</code>",
        "",
        "- exact&#58; avg&#95;score 0.625 ≥ 0.8 is false",
        "",
        "5 cases · 40.0 % scored (2 of 5) · p50 250 ms, p95 250 ms · run <code>run-1</code>",
    ]


@pytest.mark.parametrize(
    ("changes", "opening"),
    [
        ({"gate": {**GATE, "value": 0.6}}, "### ✅ Pass: "),
        ({"gate": {**GATE, "value": 0.6}, "coverage_floor": 0.95}, "### ⚠️ Undecided: "),
        ({}, "### ➖ No gate: "),
        ({"coverage_floor": 0.95}, "### ⚠️ No gate: "),
        ({"status": "cancelled"}, "### ⚠️ No gate: "),
    ],
)
def test_every_verdict_has_its_label(bench: Any, changes: dict[str, Any], opening: str) -> None:
    assert markdown(bench.mixed(**changes)).startswith(opening)


def test_without_grades_there_is_no_verdict(bench: Any) -> None:
    report = bench.report([(Sample("peru", "q"), bench.timeout(), {"exact": bench.skipped()})])
    assert markdown(report).startswith("### ⚠️ Nothing graded: ")


def test_graders_have_intervals_and_denominators_and_missing_is_not_zero(bench: Any) -> None:
    report = bench.mixed(graders=("exact", "other"))
    (header, exact, other), *_ = tables(markdown(report))
    assert header == [
        "grader", "mean", "95 % interval", "pass rate", "95 % interval", "scored", "pass", "fail", "error", "skipped",
    ]  # fmt: skip
    assert exact == ["<code>exact</code>", "0.625", exact[2], "50.0 %", "9.5 to 90.5 %", "2 of 5", "1", "1", "1", "1"]
    assert other == ["<code>other</code>", "–", "–", "–", "–", "0 of 5", "0", "0", "0", "0"]


def test_errors_are_counted_by_kind(bench: Any) -> None:
    _, errors, _ = tables(markdown(bench.mixed()))
    assert errors == [
        ["count", "error", "where", "fault", "first message"],
        ["1", "<code>timeout</code>", "agent's call", "agent", "<code>no answer within 30 s</code>"],
        ["1", "<code>crashed</code>", "grader <code>exact</code>", "grader", "<code>the worker died</code>"],
    ]


def test_the_worst_cases_are_collapsed_with_their_numbers(bench: Any) -> None:
    text = markdown(bench.mixed())
    summary = "<details><summary>Worst cases: 1 failed, 1 could not be graded, 1 got no answer; 3 shown</summary>"
    assert summary in text.splitlines()
    assert text.endswith("\n\n</details>\n")
    _, failed, broken, unanswered = tables(text)[2]
    assert failed == [
        "<code>spain</code>",
        "<code>exact</code> fail 0.250",
        "<code>Capital of Spain?</code>",
        "<code>Madrid</code>",
        "<code>Sevilla</code>",
        "<code>not equal</code>",
    ]
    assert broken[1:2] + broken[5:] == ["<code>exact</code> error", "<code>crashed&#58; the worker died</code>"]
    assert unanswered[4:] == ["–", "<code>timeout&#58; no answer within 30 s</code>"]


def test_the_lowest_scores_come_first_and_the_others_are_counted(bench: Any) -> None:
    rows = [(Sample(str(n), "q"), bench.answer(), {"exact": bench.grade(n / 100)}) for n in range(30, 0, -1)]
    text = markdown(bench.report(rows), worst=3)
    assert "Worst cases: 30 failed; 3 shown" in text
    assert [row[0] for row in tables(text)[1][1:]] == ["<code>1</code>", "<code>2</code>", "<code>3</code>"]


def test_a_run_without_failures_has_no_details(bench: Any) -> None:
    text = markdown(bench.report([(Sample("one", "q"), bench.answer(), {"exact": bench.grade(1.0)})]))
    assert "<details>" not in text
    assert "errors**" not in text


def test_hostile_text_makes_no_markup(bench: Any) -> None:
    text = markdown(bench.hostile_report())
    assert kinds(text).isdisjoint(MARKUP)
    assert [line for line in text.splitlines() if line.startswith("#")] == text.splitlines()[:1]
    tokens = parser.parse(text)
    inline = {child.content for token in tokens for child in token.children or () if child.type == "html_inline"}
    assert inline == {"<code>", "</code>"}
    blocks = [token.content.partition(">")[0] for token in tokens if token.type == "html_block"]
    assert blocks == ["<details", "</details"]
    assert [{len(row) for row in table} for table in tables(text)] == [{10}, {5}, {6}]


def test_any_hostile_text_is_one_line_without_markup(bench: Any) -> None:
    made = words(bench.hostile, most=10_000)
    assert kinds(made) == {"paragraph_open", "inline", "paragraph_close", "text"}
    # hosts look for links and mentions in the finished text, where an entity is a character again
    drawn = parser.render(made)
    assert [bait for bait in ("@octocat", "#1", "www.", "://", "@evil") if bait in drawn] == []


@pytest.mark.parametrize("text", ["- item", "1. item", "+ item", "# item", "> item", "    code", "---", "==="])
def test_text_never_begins_a_block(text: str) -> None:
    assert {token.type for token in parser.parse(words(text))} == {"paragraph_open", "inline", "paragraph_close"}


def test_an_empty_text_is_distinguished_from_none() -> None:
    assert (code(""), code(None), code("0")) == ("*empty*", "–", "<code>0</code>")


def test_the_report_always_fits_into_a_comment(bench: Any) -> None:
    text = "|" * 1000
    graders = tuple(f"{text}{n}" for n in range(20))
    rows = [
        (Sample(f"{text}{n}", text, text), bench.answer(text), {key: bench.grade(0.0, text) for key in graders})
        for n in range(20)
    ]
    made = markdown(bench.report(rows, graders), worst=20)
    assert len(made) <= LONGEST_COMMENT
    assert "20 failed" in made


def test_the_same_run_gives_the_same_text(bench: Any) -> None:
    assert markdown(bench.mixed()) == markdown(bench.mixed())


class TestStepSummary:
    def test_the_summary_is_appended_to_the_file_of_the_job(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "summary.md"
        file.write_text("before\n")
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
        assert append_step_summary("### ✅ Pass\n")
        assert file.read_text(encoding="utf-8") == "before\n### ✅ Pass\n"

    def test_without_that_file_nothing_is_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
        assert not append_step_summary("### ✅ Pass\n")
