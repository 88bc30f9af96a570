"""The comment about the runs of a suite: its marker, its content, its length, and hostile text in it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gradeline.report.ci_markdown import comment, comment_marker
from gradeline.report.ci_result import CiCase, CiChange, CiGrader, CiRun, CiScore
from gradeline.report.markdown import LONGEST_COMMENT

HOSTILE = "</code>\n<img src=x>\n--> @team | `x` [a](//e.org) #12 https://e.org ::error::\u202e"


def ci_run(**fields: Any) -> CiRun:
    shared = {
        "suite": "evals",
        "name": "evals",
        "run": "0123456789ab",
        "commit": "c" * 40,
        "verdict": "fail",
        "headline": "Fail",
        "tone": "fail",
        "exit_code": 1,
        "cases": 3,
        "base": "1123456789ab",
        "base_reason": "the run of the base commit",
        "decision": "worse",
        "sentence": "worse (right)",
        "changes": {"right": change()},
        "regressions": (case("peru"),),
        "regressed": 1,
    }
    return CiRun(**{**shared, **fields})


def change() -> CiChange:
    return CiChange(
        baseline=1.0,
        candidate=0.75,
        difference=-0.25,
        interval=(-0.4, -0.1),
        improved=0,
        worse=1,
        same=2,
        missing=0,
        decision="not_worse",
    )


def case(name: str, now: float | None = 0.0) -> CiCase:
    return CiCase(case=name, scores=(CiScore("right", 1.0, now),), file="cases.jsonl", line=12)


def test_a_comment_starts_with_its_marker_and_has_verdict_comparison_and_cases() -> None:
    assert comment("evals", [ci_run()], "warn").splitlines() == [
        "<!-- gradeline:evals -->",
        "### ❌ Fail: <code>evals</code>",
        "",
        "Against the base: **worse (right)**",
        "",
        "| grader | base | now | difference | 95 % interval | up | down | same | missing | decision |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
        "| <code>right</code> | 1.000 | 0.750 | -0.250 | -0.400 to -0.100 | 0 | 1 | 2 | 0 | not worse |",
        "",
        "**1 case became worse**:",
        "",
        "| case | grader | base | now | where |",
        "|---|---|---|---|---|",
        "| <code>peru</code> | <code>right</code> | 1.000 | 0.000 | <code>cases.jsonl&#58;12</code> |",
        "",
        "3 cases · commit <code>cccccccccc</code> · run <code>0123456789ab</code> · base <code>1123456789ab</code>,"
        " the run of the base commit",
    ]


def test_a_run_without_a_base_shows_its_graders_and_claims_no_comparison() -> None:
    grader = CiGrader(mean=0.9, mean_ci=(0.8, 1.0), pass_rate=0.9, scored=9, total=10, errors=1)
    alone: dict[str, Any] = {"base": None, "decision": None, "sentence": None, "changes": {}, "regressions": ()}
    run = ci_run(**alone, regressed=0, base_reason="no base: none", graders={"right": grader}, tone="pass", exit_code=0)
    text = comment("evals", [run], "warn")
    assert "| <code>right</code> | 0.900 | 90.0 % | 9 of 10 | 1 |" in text
    assert "not compared: no base&#58; none" in text
    assert "worse" not in text


def test_what_labels_say_is_next_to_the_judges_numbers() -> None:
    rate, difference = (
        "0.705 judge → 0.398 (0.305–0.499), 100 labels",
        "+0.030 judge → -0.052 (-0.110…+0.006), 60 cases",
    )
    graders = {
        "kind": CiGrader(mean=0.7, mean_ci=None, pass_rate=0.7, scored=10, total=10, errors=0, corrected=rate),
        "<b>": CiGrader(mean=0.7, mean_ci=None, pass_rate=0.7, scored=10, total=10, errors=0, corrected=HOSTILE),
        "plain": CiGrader(mean=0.7, mean_ci=None, pass_rate=0.7, scored=10, total=10, errors=0),
    }
    changes = {"kind": msgspec.structs.replace(change(), corrected=difference), "plain": change()}
    lines = comment("evals", [ci_run(graders=graders, changes=changes)], "warn").splitlines()
    assert "- kind&#58; pass rate 0.705 judge → 0.398 (0.305–0.499), 100 labels" in lines
    assert f"- kind&#58; difference {difference}" in lines
    assert sum("judge →" in line for line in lines) == 2
    assert "<img" not in "".join(lines)


@pytest.mark.parametrize(("undecided", "expected"), [("fail", "The job fails"), ("warn", "does not fail")])
def test_an_undecided_run_says_what_that_means_for_the_job(undecided: Any, expected: str) -> None:
    run = ci_run(verdict="undecided", headline="Undecided", tone="undecided", exit_code=3)
    assert expected in comment("evals", [run], undecided)


def test_a_case_that_lost_its_score_is_not_called_worse() -> None:
    text = comment("evals", [ci_run(regressions=(case("peru", None),), regressed=0)], "warn")
    assert "**Cases that no longer have a score**:" in text
    assert "| 1.000 | no score |" in text
    assert "became worse" not in text


def test_the_marker_of_a_suite_is_one_comment_whatever_its_name() -> None:
    names = ["evals", "--> <script>", "a\nb", "evals ", "x" * 5_000, "x" * 5_001, "ü/é"]
    markers = [comment_marker(name) for name in names]
    assert len(set(markers)) == len(names)
    for marker in markers:
        assert marker.startswith("<!-- gradeline:")
        assert marker.index("-->") == len(marker) - 3
        assert len(marker) < 300
        assert len(marker.splitlines()) == 1


def test_hostile_text_creates_no_markup_link_or_mention() -> None:
    scores = (CiScore(HOSTILE, 1.0, 0.0),)
    hostile = ci_run(
        name=HOSTILE,
        headline=HOSTILE,
        reasons=(HOSTILE,),
        notes=(HOSTILE,),
        sentence=HOSTILE,
        base_reason=HOSTILE,
        base_warning=HOSTILE,
        changes={HOSTILE: change()},
        regressions=(CiCase(case=HOSTILE, scores=scores, file=HOSTILE, line=1),),
    )
    text = comment(HOSTILE, [hostile], "warn")
    for forbidden in ("<img", "@team", "[a](", "`x`", "#12 ", "https://", "\u202e", "&#64;team"):
        assert forbidden not in text
    assert text.count("-->") == 1
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {row.count(" | ") for row in rows} == {9, 4}


def test_a_comment_is_never_longer_than_a_forge_accepts() -> None:
    runs = [
        ci_run(reasons=tuple("é" * 300 for _ in range(30)), changes={f"{'g' * 70}{n}": change() for n in range(40)})
        for _ in range(30)
    ]
    text = comment("evals", runs, "warn")
    assert len(text.encode()) <= LONGEST_COMMENT
    assert text.endswith("*The rest is left out; the job summary has more.*\n")
