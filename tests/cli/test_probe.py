"""``gradeline probe``: a fake judge with known biases replaces the provider."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gradeline.testing.fake_judge import FakeJudge, with_mark
from gradeline_command import COMMAND, run_command

CASES = 40
SUITE = """\
name: capitals
dataset: cases.jsonl
target: {kind: replay, responses: answers.jsonl}
graders:
  exact: {kind: contains}
  quality: {kind: model_judge, prompt: Is it right?, model: judge, base_url: URL/v1, api_key_env: KEY, max_retries: 0}
  better: {kind: pairwise, model: judge, base_url: URL/v1, api_key_env: KEY, max_retries: 0}
"""


@pytest.fixture
def judge() -> Iterator[FakeJudge]:
    with FakeJudge("honest,sd=0.05", seed=3).in_thread() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, judge: FakeJudge) -> Path:
    (tmp_path / "suite.yaml").write_text(SUITE.replace("URL", judge.url))
    chance = Random(1)
    cases, answers = [], []
    for number in range(CASES):
        text = f"The capital is city {number}. It is on a river. Many people live there."
        cases.append({"id": f"c{number}", "input": f"Capital {number}?", "ground_truth": f"city {number}"})
        marked = with_mark(text, f"a{number}", quality=round(chance.uniform(0.3, 0.8), 2), family="openai")
        answers.append({"id": f"c{number}", "text": marked})
    write(tmp_path / "cases.jsonl", cases)
    write(tmp_path / "answers.jsonl", answers)
    return tmp_path


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def gradeline(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command([COMMAND, *words], cwd=folder, env={**os.environ, "KEY": "sk-probe-0123456789"}, text=True)


def probe(folder: Path, *words: str, key: str = "quality") -> dict[str, Any]:
    done = gradeline(folder, "probe", key, "suite.yaml", "--json", *words)
    data: dict[str, Any] = json.loads(done.stdout)
    assert data["exit_code"] == done.returncode
    return data


def run(folder: Path, *words: str) -> str:
    done = gradeline(folder, "run", "suite.yaml", "--json", *(words or ("--grader", "exact", "--grader", "quality")))
    return str(json.loads(done.stdout)["run"]["id"])


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {one["probe"]: one["verdict"] for one in report["findings"]}


def test_a_planted_bias_is_flagged_stored_and_shown_where_the_judge_is_used(folder: Path, judge: FakeJudge) -> None:
    judge.behaviour = FakeJudge("length,g=0.1,sd=0.05").behaviour
    source = run(folder)
    report = probe(folder, "--probe", "length,authority")
    assert (report["exit_code"], report["run"], report["answers"], report["verdicts"]) == (1, source, CASES, 3 * CASES)
    assert verdicts(report)["length"] == "flagged"
    length = report["findings"][0]
    assert length["effect"] == pytest.approx(0.1, abs=0.05)
    assert length["n"] == length["planned"] == CASES

    shown = gradeline(folder, "show").stdout
    assert f"{source}  completed" in shown  # latest is never a probe
    assert "quality: probe length: flagged: answers that are padded by repeating them score +0." in " ".join(
        shown.split()
    )
    summary = json.loads(gradeline(folder, "show", "--json").stdout)["summary"]["graders"]
    assert [one["probe"] for one in summary["quality"]["probes"]] == ["length", "authority"]
    assert summary["exact"]["probes"] == []
    for report_format in ("markdown", "html", "junit"):
        page = gradeline(folder, "export", "latest", "--format", report_format).stdout
        assert "probe length: flagged" in page

    # calibrating the judge shows the bias too
    labels = [
        {"case": f"c{number}", "question": "quality", "verdict": "pass", "rater": "ann"} for number in range(CASES)
    ]
    write(folder / "labels.jsonl", labels)
    imported = gradeline(folder, "label", source, "--import", "labels.jsonl")
    assert imported.returncode == 0, imported.stderr
    assert "probe length: flagged: answers that are padded" in gradeline(folder, "calibrate", source).stdout
    calibrated = json.loads(gradeline(folder, "calibrate", source, "--json").stdout)
    assert [one["probe"] for one in calibrated["probes"]["quality"]] == ["length", "authority"]

    # a later report of other probes replaces only those
    judge.behaviour = FakeJudge("honest,sd=0.05").behaviour
    assert verdicts(probe(folder, "--probe", "authority", "--seed", "1")) == {"authority": "not_flagged"}
    summary = json.loads(gradeline(folder, "show", "--json").stdout)["summary"]["graders"]
    assert {one["probe"]: one["verdict"] for one in summary["quality"]["probes"]} == {
        "length": "flagged",
        "authority": "not_flagged",
    }


def test_an_honest_judge_is_not_flagged(folder: Path) -> None:
    run(folder, "--grader", "exact")
    report = probe(folder)
    assert report["exit_code"] == 3
    assert verdicts(report) == {
        "position": "not_applicable",
        "length": "not_flagged",
        "format": "not_flagged",
        "verbosity": "not_flagged",
        "authority": "not_flagged",
        "self_preference": "not_enough_data",
        "injection": "not_flagged",
        "repeat": "not_flagged",
    }
    assert report["errors"] == 0
    assert report["cost"] is None


def test_a_judge_of_pairs_is_probed_in_both_orders(folder: Path, judge: FakeJudge) -> None:
    judge.behaviour = FakeJudge("position,b=0.8").behaviour
    run(folder, "--grader", "exact")
    report = probe(folder, "--probe", "position,length", key="better")
    assert verdicts(report) == {"position": "flagged", "length": "not_flagged"}
    position = report["findings"][0]
    assert position["details"]["first"] > 10 > position["details"]["second"]


def test_without_a_run_the_expected_values_are_used(folder: Path) -> None:
    report = probe(folder, "--probe", "repeat")
    assert report["run"] is None
    assert report["source"].startswith("the expected values of the cases")
    assert verdicts(report) == {"repeat": "not_flagged"}


def test_a_judge_of_several_models_is_probed_with_the_answers_of_the_latest(folder: Path) -> None:
    suite = (folder / "suite.yaml").read_text()
    (folder / "suite.yaml").write_text(f"{suite}models: [gpt-a, llama-b]\n")
    gradeline(folder, "run", "suite.yaml", "--grader", "exact")
    report = probe(folder, "--probe", "repeat")
    assert "[llama-b]" in report["source"]
    assert verdicts(report) == {"repeat": "not_flagged"}


def test_verdicts_that_are_stored_are_not_paid_again(folder: Path, judge: FakeJudge) -> None:
    run(folder, "--grader", "exact")
    judge.reset()
    stopped = probe(folder, "--probe", "length", "--budget", "30calls")
    assert (stopped["exit_code"], stopped["stopped"]) == (3, "the budget of 30 calls is spent")
    assert judge.counts().requests == 30
    whole = probe(folder, "--probe", "length")
    assert whole["probe_run"] == stopped["probe_run"]
    assert whole["verdicts"] == judge.counts().requests == 2 * CASES
    assert probe(folder, "--probe", "length")["findings"] == whole["findings"]
    assert judge.counts().requests == 2 * CASES
    again = probe(folder, "--probe", "length", "--again")
    assert again["probe_run"] != whole["probe_run"]
    assert judge.counts().requests == 4 * CASES


def test_findings_are_stored_in_postgresql_too(folder: Path, judge: FakeJudge, postgres_url: str) -> None:
    judge.behaviour = FakeJudge("nondeterministic,sd=0.2,flip=0").behaviour
    store = ("--store", postgres_url)
    run(folder, "--grader", "quality", *store)
    report = probe(folder, "--probe", "repeat", *store)
    assert verdicts(report) == {"repeat": "flagged"}
    assert verdicts(probe(folder, "--probe", "repeat", *store)) == {"repeat": "flagged"}
    assert judge.counts().requests == 4 * CASES
    shown = gradeline(folder, "show", *store).stdout
    assert "capitals" in shown.splitlines()[0]
    assert "quality: probe repeat: flagged: verdicts on the same answer" in " ".join(shown.split())


def test_a_killed_probe_continues(folder: Path, judge: FakeJudge) -> None:
    run(folder, "--grader", "exact")
    judge.reset()
    command = [COMMAND, "probe", "quality", "suite.yaml", "--probe", "length", "--concurrency", "2", "--json"]
    environment = {**os.environ, "KEY": "sk-probe-0123456789"}
    killed = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while judge.counts().requests < 20:
        assert killed.poll() is None
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    before = judge.counts().requests
    report = probe(folder, "--probe", "length")
    assert verdicts(report) == {"length": "not_flagged"}
    # what was in flight may be asked twice: two calls, and in both runs cases that wait to be stored
    assert judge.counts().requests <= 2 * CASES + before - 20 + 66
    assert report["findings"][0]["n"] == CASES


def test_an_interrupt_says_how_to_continue(folder: Path, judge: FakeJudge) -> None:
    run(folder, "--grader", "exact")
    judge.reset()
    command = [COMMAND, "probe", "quality", "suite.yaml", "--concurrency", "1"]
    environment = {**os.environ, "KEY": "sk-probe-0123456789"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while judge.counts().requests < 3:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate()
    assert process.returncode == 130
    assert "interrupted; continue with the same command: verdicts that are stored are not paid again" in printed


def test_a_judge_that_always_fails_gives_no_finding(folder: Path, judge: FakeJudge) -> None:
    run(folder, "--grader", "exact")
    judge.behaviour = FakeJudge("prose").behaviour
    report = probe(folder, "--probe", "length,injection,repeat")
    assert (report["exit_code"], report["errors"]) == (4, report["verdicts"])
    assert set(verdicts(report).values()) == {"not_enough_data"}
    assert report["findings"][0]["missing"] == CASES
    # it asks again for what is missing
    judge.behaviour = FakeJudge("honest,sd=0.05").behaviour
    again = probe(folder, "--probe", "length,injection,repeat")
    assert (again["probe_run"], again["errors"]) == (report["probe_run"], 0)


def test_missing_verdicts_are_missing_pairs(folder: Path, judge: FakeJudge) -> None:
    run(folder, "--grader", "exact")
    judge.behaviour = FakeJudge("prose,rate=0.2").behaviour
    (length,) = probe(folder, "--probe", "length")["findings"]
    assert length["verdict"] == "not_enough_data"
    assert length["n"] + length["missing"] == length["planned"] == CASES
    assert "the judge gave no verdict for" in length["reason"]


def test_a_family_that_scores_its_own_answers_higher_is_flagged(folder: Path, judge: FakeJudge) -> None:
    """Two models answered; the graders without a model say that their answers are equally good."""
    judge.behaviour = FakeJudge("self,g=0.2,family=openai").behaviour
    suite = (folder / "suite.yaml").read_text().replace("model: judge", "model: gpt-judge")
    (folder / "suite.yaml").write_text(suite.replace("answers.jsonl}", "answers.jsonl, model: gpt-agent}"))
    run(folder)
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    write(folder / "others.jsonl", [{**row, "text": row["text"].replace("openai", "meta")} for row in rows])
    other = (folder / "suite.yaml").read_text().replace("answers.jsonl, model: gpt-agent", "others.jsonl, model: llama")
    (folder / "suite.yaml").write_text(other)
    run(folder)
    report = probe(folder, "--probe", "self-preference")
    (found,) = report["findings"]
    assert found["verdict"] == "flagged"
    assert found["effect"] == pytest.approx(0.2, abs=0.03)
    assert "quality from the graders that call no model" in found["sentence"]


def test_labels_show_the_preference_and_the_influence_of_the_length(folder: Path, judge: FakeJudge) -> None:
    """One run with answers of two families, named by their cases; people labelled all of them."""
    judge.behaviour = FakeJudge("self,g=0.3,family=openai").behaviour
    suite = (folder / "suite.yaml").read_text().replace("model: judge", "model: gpt-judge")
    (folder / "suite.yaml").write_text(suite)
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    cases = [json.loads(line) for line in (folder / "cases.jsonl").read_text().splitlines()]
    for number, (row, case) in enumerate(zip(rows, cases, strict=True)):
        case["metadata"] = {"producer": "gpt-6" if number % 2 else "llama-5"}
        text = row["text"] + " It is old." * (number % 5)
        row["text"] = text if number % 2 else text.replace("openai", "meta")
    write(folder / "answers.jsonl", rows)
    write(folder / "cases.jsonl", cases)
    source = run(folder)
    good = [float(row["text"].partition("quality=")[2].split()[0]) > 0.5 for row in rows]
    labels = [
        {"case": row["id"], "question": "quality", "verdict": "pass" if passed else "fail", "rater": "ann"}
        for row, passed in zip(rows, good, strict=True)
    ]
    write(folder / "labels.jsonl", labels)
    assert gradeline(folder, "label", source, "--import", "labels.jsonl").returncode == 0
    gradeline(folder, "regrade", source, "--grader", "quality")  # the same answers count once
    length, preference = probe(folder, "--probe", "length,self-preference")["findings"]
    assert preference["verdict"] == "flagged"
    assert preference["details"] == {"own": CASES // 2, "others": CASES // 2}
    assert preference["effect"] == pytest.approx(0.3, abs=0.1)
    assert "quality from labels" in preference["sentence"]
    assert length["verdict"] == "not_flagged"
    assert length["details"]["length_labels"] == CASES
    assert abs(length["details"]["length_z"]) < 2.6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nope", "suite.yaml"), "has no grader 'nope'; its judges are quality, better"),
        (("exact", "suite.yaml"), "graders.exact: calls no model, so there is no judge to probe; its judges are"),
        (("quality", "suite.yaml", "--probe", "postion"), "invalid probe 'postion': use some of position, length,"),
        (("quality", "suite.yaml", "--pairs", "0"), "0 is not in the range"),
        (("quality", "suite.yaml", "--run", "nope"), "no run 'nope'"),
        (("quality", "suite.yaml", "--baseline", "latest"), "has no effect: quality judges one answer at a time"),
        (("better", "suite.yaml"), "compares two answers, which need a stored run"),
        (("quality", "none.yaml"), "none.yaml"),
        (("quality", "suite.yaml", "--probe", "position"), "position: the judge does not choose between two answers"),
    ],
)
def test_invalid_requests_are_explained(folder: Path, words: tuple[str, ...], message: str) -> None:
    done = gradeline(folder, "probe", *words)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_answers_that_cannot_be_changed_are_counted(folder: Path) -> None:
    texts = ["", '{"a": 1}', "x" * 30_000]
    write(folder / "answers.jsonl", [{"id": f"c{place}", "text": text} for place, text in enumerate(texts)])
    run(folder, "--grader", "exact")
    done = gradeline(folder, "probe", "quality", "suite.yaml")
    assert done.returncode == 2
    printed = " ".join(done.stderr.split())
    assert "no answer that can be changed (" in printed
    for reason in ("failed call: 37", "empty answer: 1", "code or JSON, which a change would break: 1"):
        assert reason in printed


def test_one_hostile_answer_is_probed(folder: Path) -> None:
    text = "\u202eignore\x1b[31m <b>{submission}</b> \U0001f600 [item:x quality=0.4] " + "é" * 500
    write(folder / "answers.jsonl", [{"id": "c0", "text": text}])
    run(folder, "--grader", "exact")
    done = gradeline(folder, "probe", "quality", "suite.yaml")
    assert done.returncode == 3
    assert "\x1b[31m" not in done.stdout
    assert "not enough data" in done.stdout
    assert gradeline(folder, "probe", "quality", "suite.yaml", "--quiet").stdout == "not enough data\n"


def test_a_probe_cannot_be_resumed_as_a_run(folder: Path) -> None:
    run(folder, "--grader", "exact")
    report = probe(folder, "--probe", "repeat")
    done = gradeline(folder, "probe", "quality", "suite.yaml", "--run", report["probe_run"])
    assert "is a probe, whose answers were changed; name the run of an agent" in " ".join(done.stderr.split())
    done = gradeline(folder, "resume", report["probe_run"])
    assert done.returncode == 2
    assert "probes a judge; repeat or continue that with: gradeline probe JUDGE SUITE" in done.stderr
