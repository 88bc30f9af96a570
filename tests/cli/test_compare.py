"""``gradeline compare`` as a user calls it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gradeline.cli import run_cli as gradeline
from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample, Storage
from gradeline.store import open_storage
from gradeline_command import COMMAND, run_command

HOSTILE = "evil\x1b[31m\n0.99 \u202e[bold]case"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("GRADELINE_STORE", str(tmp_path / "store.db"))
    return str(tmp_path / "store.db")


def put(store: str, name: str, scores: Mapping[str, float], question: str = "q", **fields: Any) -> str:
    defaults = {"suite": "s", "status": "completed", "graders": {"exact": RunGrader("string-match", "f")}}
    with open_storage(store) as storage:
        run = storage.save_run(Run(**{**defaults, "name": name, **fields}))
        asyncio.run(fill(storage, run, scores, question))
    return run


async def fill(storage: Storage, run: str, scores: Mapping[str, float], question: str) -> None:
    async with storage.writer() as writer:
        await asyncio.gather(
            *(
                writer.put_response(ResponseKey(run, case, 0), Response(text="a"), Sample(case, question))
                for case in scores
            )
        )
        grades = {
            case: Grade("string-match", "f", Outcome.PASS if score else Outcome.FAIL, score, bool(score))
            for case, score in scores.items()
        }
        await asyncio.gather(
            *(writer.put_grade(GradeKey(run, case, 0, "exact"), grade) for case, grade in grades.items())
        )


def passing(count: int, cases: int = 400) -> dict[str, float]:
    return {f"c{n}": float(n < count) for n in range(cases)}


@pytest.mark.parametrize(
    ("after", "decision", "code"), [(240, "better", 0), (200, "not_worse", 0), (150, "worse", 1), (195, "undecided", 3)]
)
def test_the_exit_code_is_the_decision(
    store: str, capsys: pytest.CaptureFixture[str], after: int, decision: str, code: int
) -> None:
    put(store, "base", passing(200))
    put(store, "cand", passing(after))
    assert gradeline(["compare", "base", "cand", "--quiet"]) == code
    assert capsys.readouterr().out == f"{decision}\n"
    assert gradeline(["--json", "compare", "latest~1", "latest"]) == code
    output = json.loads(capsys.readouterr().out)
    assert list(output) == [
        "baseline", "candidate", "comparable", "reasons", "warnings", "edited", "graders", "primary", "decision",
        "sentence", "exit_code",
    ]  # fmt: skip
    assert (output["baseline"]["name"], output["candidate"]["name"]) == ("base", "cand")
    assert (output["graders"]["exact"]["decision"], output["exit_code"]) == (decision, code)


def test_the_report_shows_the_numbers_and_the_cases(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = put(store, "base", {**passing(20, 60), "only before": 1.0})
    second = put(store, "cand", passing(33, 60), target={"kind": "openai", "model": "large"})
    assert gradeline(["compare", "base", "cand"]) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        f"baseline   base  {first}",
        f"candidate  cand  {second}",
        "  target: kind nothing against 'openai'",
        "  target: model nothing against 'large'",
        "  cases: 1 case in the baseline alone",
        "grader   base → cand   diff          95 %      p up down same miss decision",
        "exact  0.333 → 0.550 +0.217 +0.114…+0.336 0.0001 13    0   47    1 better",
        "exact: improved: c20, c21, c22, c23, c24, c25, c26, c27, c28, c29 … and 3 more",
        "exact: missing: only before",
        "chance: exact ±0.120",
        "decision: better (exact)",
    ]


def test_undecided_shows_how_many_more_cases_are_needed(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, "base", passing(30, 60))
    put(store, "cand", passing(32, 60))
    assert gradeline(["compare", "base", "cand", "--json"]) == 3
    expected_cases = json.loads(capsys.readouterr().out)["graders"]["exact"]["cases_to_decide"]
    assert gradeline(["compare", "base", "cand"]) == 3
    output = capsys.readouterr().out.splitlines()
    assert output[-1] == "decision: undecided (exact)"
    first = next(place for place, line in enumerate(output) if "undecided:" in line)
    note = " ".join(" ".join(output[first:-1]).split())
    assert note.endswith(
        f"{expected_cases:,} cases in all ({expected_cases - 60:,} more) settle it with a power of 80 % if both are equally good"
    )
    assert gradeline(["compare", "base", "base", "--margin", "0"]) == 3
    assert "no number of cases shows that it is not worse without a margin" in " ".join(capsys.readouterr().out.split())


def test_the_margin_and_force_are_options(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, "base", passing(200))
    put(store, "cand", passing(195))
    put(store, "other", passing(195), graders={"exact": RunGrader("string-match", "g")})
    assert gradeline(["compare", "base", "cand", "--margin", "0.1", "--quiet"]) == 0
    assert gradeline(["compare", "base", "other", "--quiet"]) == 2
    assert gradeline(["compare", "base", "other", "--force", "--quiet"]) == 3
    assert capsys.readouterr().out == "not_worse\nnot comparable\nundecided\n"
    assert gradeline(["compare", "base", "other"]) == 2
    message = " ".join(capsys.readouterr().out.split())
    assert "grader 'exact' is not the same in both runs: string-match f against string-match g" in message
    assert message.endswith("not comparable; use --force to compare what they have in common")
    assert gradeline(["compare", "base", "other", "--json"]) == 2
    output = json.loads(capsys.readouterr().out)
    assert (output["comparable"], output["graders"], output["exit_code"]) == (False, {}, 2)


def test_large_drops_behind_small_gains_are_shown(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, "base", {f"c{n}": 0.5 for n in range(30)} | {HOSTILE: 1.0})
    put(store, "cand", {f"c{n}": 0.51 + n / 10_000 for n in range(30)} | {HOSTILE: 0.25})
    gradeline(["compare", "base", "cand"])
    output = " ".join(capsys.readouterr().out.split())
    assert "exact: largest drops: evil" in output
    assert "case 1.000 → 0.250 chance: exact ±0." in output
    assert "\x1b" not in output
    gradeline(["compare", "base", "cand", "--json"])
    found = json.loads(capsys.readouterr().out)["graders"]["exact"]
    assert (found["test"], found["skewed"]) == ("paired_t", True)
    assert found["largest_drops"] == [{"case": HOSTILE, "baseline": 1.0, "candidate": 0.25}]


def test_edited_cases_are_listed(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, "base", passing(10, 30))
    put(store, "cand", {f"c{n}": 1.0 for n in range(12)}, question="another")
    assert gradeline(["compare", "base", "cand", "--force"]) == 3
    output = capsys.readouterr().out
    assert "edited: c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 … and 2 more" in output
    assert "exact: undecided: no case has a score in both runs" in output


def test_hostile_names_are_escaped(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, "base", {HOSTILE: 0.0, "a": 1.0})
    put(store, f"cand {HOSTILE}", {HOSTILE: 1.0, "a": 1.0})
    assert gradeline(["compare", "base", "latest"]) == 3
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "\u202e" not in output
    assert "exact: improved: evil<1B>[31m 0.99 <202E>[bold]case\n" in output


@pytest.mark.parametrize(
    ("arguments", "message_part"),
    [
        (["base", "nothing"], "no run 'nothing'"),
        (["base"], "Missing argument 'CAND'"),
        (["base", "base", "--margin", "2"], "2.0 is not in the range 0<=x<=1"),
        (["base", "base", "--margin", "nan"], "margin: expected a number from 0 to 1, got nan"),
    ],
)
def test_invalid_usage_exits_with_2(
    store: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message_part: str
) -> None:
    put(store, "base", passing(1, 2))
    assert gradeline(["compare", *arguments]) == 2
    message = capsys.readouterr()
    assert message_part in message.err
    assert message.out == ""


def test_the_installed_command(store: str) -> None:
    put(store, "base", passing(200))
    put(store, "cand", passing(240))
    done = run_command([COMMAND, "compare", "base", "cand"], text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("decision: better (exact)\n")


def test_the_noise_of_a_grader_is_printed_and_explains_the_difference(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    graders = {"exact": RunGrader("string-match", "f", noise=0.01)}
    put(store, "base", {f"c{n}": 0.5 for n in range(60)}, graders=graders)
    put(store, "cand", {f"c{n}": 0.508 if n < 40 else 0.7 for n in range(60)}, graders=graders)
    assert gradeline(["compare", "base", "cand"]) == 0
    output = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("exact 0.500 → 0.572 +0.067 ") and line.endswith(" 20 0 40 0 better") for line in output)
    note = output[output.index("decision: better (exact)") - 2 : -1]
    assert " ".join(note).endswith(
        "noise: exact: changes below 0.010 count as same (40 of 60 cases); with them the difference is +0.072"
    )
    assert any(line.startswith("chance: exact ±") for line in output)
    assert gradeline(["compare", "base", "cand", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["graders"]["exact"]
    assert (found["noise"], found["within_noise"], found["same"]) == (0.01, 40, 40)


def test_a_grader_without_noise_has_no_such_line(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, "base", passing(20, 60))
    put(store, "cand", passing(33, 60))
    gradeline(["compare", "base", "cand"])
    assert "noise" not in capsys.readouterr().out
