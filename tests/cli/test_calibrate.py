"""``gradeline calibrate``: judges of real runs measured against labels, and what the states change."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader
from gradeline.model.label import HumanVerdict
from gradeline.store import PostgresStorage, SqliteStorage
from gradeline.testing.fake_judge import Behaviour, FakeJudge, read_behaviour, with_mark
from gradeline_command import COMMAND, run_command
from judged_run import JUDGE, JudgedCase, put_labels, store_run

CASES = 160
GATE = {"kind": "simple", "metric_key": "quality", "aggregation": "accuracy", "op": "gte", "value": 0.3}
RIGHT = {case: Random(case).random() < 0.6 for case in range(CASES)}


@pytest.fixture(scope="module")
def judge() -> Iterator[FakeJudge]:
    with FakeJudge(seed=3).in_thread() as server:
        yield server


def gradeline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    return run_command([COMMAND, *arguments], cwd=folder, text=True, env=environment)


def answer(folder: Path, *arguments: str, code: int = 0) -> Any:
    """The JSON that a command printed."""
    done = gradeline(folder, *arguments, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def write_suite(folder: Path, judge: FakeJudge, behaviour: str, **options: Any) -> str:
    cases = [{"id": f"c{case}", "input": f"q{case}", "ground_truth": "yes"} for case in range(CASES)]
    (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)))
    replies = [
        {"id": f"c{case}", "text": with_mark(f"answer {case}", f"i{case} quality={0.9 if right else 0.1}")}
        for case, right in RIGHT.items()
    ]
    (folder / "replies.jsonl").write_text("\n".join(map(json.dumps, replies)))
    quality = {"kind": "model_judge", "model": "m", "base_url": judge.base_url(behaviour), "prompt": "Is it right?"}
    suite = {
        "name": "support",
        "dataset": "cases.jsonl",
        "target": {"kind": "replay", "responses": "replies.jsonl"},
        "graders": {"quality": quality | options},
        "gate": GATE,
        "require_calibrated": True,
    }
    (folder / "suite.json").write_text(json.dumps(suite))
    return "suite.json"


def label_all(folder: Path, question: str = "quality", only: Sequence[int] = range(CASES)) -> Run:
    with SqliteStorage(folder / ".gradeline" / "store.db") as storage:
        run = storage.find_run("latest")
        labels = [
            (f"c{case}", HumanVerdict("pass" if RIGHT[case] else "fail", probability=len(only) / CASES))
            for case in only
        ]
        put_labels(storage, run, question, labels)
        return run


def state_of(report: Any) -> str:
    state: str = report["summary"]["graders"]["quality"]["calibration"]["state"]
    return state


def test_a_good_judge_becomes_calibrated_until_its_prompt_changes(tmp_path: Path, judge: FakeJudge) -> None:
    (tmp_path / ".gradeline").mkdir()
    behaviour = "perfect,sensitivity=0.92&specificity=0.9"
    suite = write_suite(tmp_path, judge, behaviour)
    ran = answer(tmp_path, "run", suite, code=3)
    assert state_of(ran) == "uncalibrated"
    assert ran["verdict"]["reasons"][-1] == "quality: its judge is not calibrated, which this gate requires"

    run = label_all(tmp_path, only=range(120))
    found = answer(tmp_path, "calibrate", "latest")
    (quality,) = found["calibrations"]
    assert (quality["state"], quality["reasons"], quality["labels"]) == ("calibrated", [], 120)
    assert quality["run"] == found["run"] == run.id
    low, high = quality["sensitivity_ci"]
    assert low <= 0.92 <= high
    low, high = quality["specificity_ci"]
    assert low <= 0.9 <= high
    assert quality["labels_saved"] > 10
    assert found["best"] is None

    shown = answer(tmp_path, "show", "latest")
    assert state_of(shown) == "calibrated"
    assert shown["verdict"]["result"] == "pass"
    assert not shown["verdict"]["uncalibrated"]
    again = answer(tmp_path, "run", suite)
    assert (state_of(again), again["verdict"]["result"]) == ("calibrated", "pass")
    text = " ".join(gradeline(tmp_path, "show", "latest").stdout.split())
    assert "quality: judge calibrated: agreement 0." in text

    suite = write_suite(tmp_path, judge, behaviour, prompt="Is the answer right?")
    changed = answer(tmp_path, "run", suite, code=3)
    assert state_of(changed) == "expired"
    reason = changed["verdict"]["reasons"][-1]
    assert reason.startswith("quality: its judge is not calibrated (expired: the prompt changed since 20")
    assert reason.endswith("), which this gate requires")
    (listed,) = answer(tmp_path, "calibrate", "latest", "--list")["judges"]
    assert listed["state"] == "expired"
    assert listed["calibration"]["run"] == run.id
    (stored,) = answer(tmp_path, "calibrate", "--list")["judges"]
    assert (stored["grader"], stored["state"]) == ("quality", "calibrated")


def test_a_model_that_the_provider_replaced_is_another_judge(tmp_path: Path, judge: FakeJudge) -> None:
    (tmp_path / ".gradeline").mkdir()
    suite = write_suite(tmp_path, judge, "perfect")
    judge.behaviour = read_behaviour({"echo_model": "m-2026-05"})
    gradeline(tmp_path, "run", suite)
    label_all(tmp_path)
    (quality,) = answer(tmp_path, "calibrate", "latest")["calibrations"]
    assert quality["served"] == ["m-2026-05"]
    assert state_of(answer(tmp_path, "run", suite)) == "calibrated"
    judge.behaviour = read_behaviour({"echo_model": "m-2026-11"})
    changed = answer(tmp_path, "run", suite, code=3)
    judge.behaviour = Behaviour()
    assert changed["summary"]["graders"]["quality"]["calibration"] == {
        "state": "expired",
        "reason": "the provider answered as m-2026-11, and as m-2026-05 when it was calibrated",
    }


def test_a_judge_that_guesses_fails_and_the_report_says_so(tmp_path: Path, judge: FakeJudge) -> None:
    (tmp_path / ".gradeline").mkdir()
    suite = write_suite(tmp_path, judge, "random")
    gradeline(tmp_path, "run", suite)
    label_all(tmp_path)
    done = gradeline(tmp_path, "calibrate", "latest")
    assert done.returncode == 1, done.stderr
    text = " ".join(done.stdout.split())
    assert "failed: agreement 0." in text
    assert "is below 0.4" in text
    assert "This judge saves no labels" in text
    shown = answer(tmp_path, "show", "latest")
    assert state_of(shown) == "failed"
    assert "(failed: kappa is" in shown["verdict"]["reasons"][-1]


def test_errors_of_the_judge_are_missing(tmp_path: Path, judge: FakeJudge) -> None:
    (tmp_path / ".gradeline").mkdir()
    gradeline(tmp_path, "run", write_suite(tmp_path, judge, "prose,rate=0.2", max_retries=0))
    label_all(tmp_path)
    (quality,) = answer(tmp_path, "calibrate", "latest", code=1)["calibrations"]
    assert quality["table"]["missing"] == quality["missing"] > 10
    assert quality["results"] == CASES
    assert quality["agreement"] == 1.0
    assert quality["reasons"] == [
        f"no verdict on {quality['missing']} of {CASES} results ({quality['missing_rate']:.1%}), above 5%"
    ]


def agreeing(labels: int, unlabelled: int = 0, wrong: int = 0, **fields: Any) -> list[JudgedCase]:
    """A judge that is right in all but ``wrong`` of the labelled cases."""
    known = [
        JudgedCase(
            {"quality": (case % 2 == 0) is (case >= wrong)},
            case % 2 == 0,
            f"answer {case % 7}" * (case % 5 + 1),
            **fields,
        )
        for case in range(labels)
    ]
    return known + [JudgedCase({"quality": case % 2 == 0}) for case in range(unlabelled)]


def store(folder: Path, cases: list[JudgedCase], **options: Any) -> Run:
    (folder / ".gradeline").mkdir(exist_ok=True)
    with SqliteStorage(folder / ".gradeline" / "store.db") as storage:
        return store_run(storage, cases, **options)


def test_too_few_labels_decide_nothing(tmp_path: Path) -> None:
    run = store(tmp_path, agreeing(60, 40, probability=0.6))
    found = answer(tmp_path, "calibrate", "latest", code=3)
    assert found["calibrations"][0]["reasons"] == [
        f"only 60 labels, 40 more are needed: gradeline label {run.id} --grader quality --sample 100"
    ]
    assert found["exit_code"] == 3


def test_a_run_without_labels_is_an_error_that_says_how_to_label(tmp_path: Path) -> None:
    run = store(tmp_path, [JudgedCase({"quality": True})])
    done = gradeline(tmp_path, "calibrate", "latest")
    assert done.returncode == 2
    assert f"quality: run {run.id} has no labels for it: gradeline label {run.id} --grader quality --sample 100" in (
        done.stderr
    )
    run = store(tmp_path, agreeing(5), question="tone")
    done = gradeline(tmp_path, "calibrate", "latest")
    assert done.returncode == 2
    assert "if labels of tone answer the same question, name it with --question" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name the RUN to calibrate"),
        (["latest", "--import", "x.json"], "--import takes no RUN"),
        (["latest", "--against", "exact", "--question", "tone"], "--against replaces labels"),
        (["--list", "--question", "tone"], "--list takes only RUN"),
        (["--export", "x.json", "--grader", "quality"], "need a RUN"),
        (["latest", "--grader", "qualty"], "'qualty' is not a grader of the run; did you mean 'quality'?"),
        (["latest", "--question", "tune"], "run {run} has no labels for it"),
        (["latest", "--positive", "polite"], "no label of 'quality' has the category 'polite'"),
        (["--import", "missing.json"], "missing.json: cannot be read"),
    ],
)
def test_wrong_options_are_errors(tmp_path: Path, arguments: list[str], message: str) -> None:
    run = store(tmp_path, agreeing(5))
    done = gradeline(tmp_path, "calibrate", *arguments)
    assert done.returncode == 2
    assert message.format(run=run.id) in " ".join(done.stderr.split())


def test_several_judges_on_the_same_labels(tmp_path: Path) -> None:
    graders = {
        "cheap": RunGrader("model_judge", "f1", ("openai:small",)),
        "good": RunGrader("model_judge", "f2", ("openai:large",)),
        "exact": RunGrader("exact_match", "f3"),
    }
    cases = [
        JudgedCase({"cheap": (case % 2 == 0) is (case % 10 != 0), "good": case % 2 == 0, "exact": True}, case % 2 == 0)
        for case in range(120)
    ]
    store(tmp_path, cases, graders=graders, question="human")
    found = answer(tmp_path, "calibrate", "latest", "--question", "human")
    assert [(one["grader"], one["state"]) for one in found["calibrations"]] == [
        ("cheap", "calibrated"),
        ("good", "calibrated"),
    ]
    assert found["best"] == "good"
    text = gradeline(tmp_path, "calibrate", "latest", "--question", "human").stdout
    assert "Of these judges, good agrees most with the labels." in text


def test_graders_without_labels_of_their_own_are_named(tmp_path: Path) -> None:
    graders = {"quality": JUDGE, "tone": RunGrader("model_judge", "f2", ("openai:m",))}
    cases = [one._replace(verdicts={**one.verdicts, "tone": True}) for one in agreeing(100)]
    run = store(tmp_path, cases, graders=graders)
    found = answer(tmp_path, "calibrate", "latest")
    assert [one["grader"] for one in found["calibrations"]] == ["quality"]
    assert found["without_labels"] == ["tone"]
    text = gradeline(tmp_path, "calibrate", "latest").stdout
    assert f"tone: no labels; gradeline label {run.id} --grader tone --sample 100" in text


def test_categories_pass_by_option(tmp_path: Path) -> None:
    run = store(tmp_path, [JudgedCase({"quality": case % 2 == 0}) for case in range(100)])
    with SqliteStorage(tmp_path / ".gradeline" / "store.db") as storage:
        names = ["right", "wrong", "mostly right", "off topic"]
        labels = [(f"c{case}", HumanVerdict(category=names[case % 4])) for case in range(100)]
        put_labels(storage, run, "quality", labels)
    done = gradeline(tmp_path, "calibrate", "latest")
    assert done.returncode == 2
    assert "are categories ('mostly right', 'off topic', 'right', 'wrong')" in " ".join(done.stderr.split())
    found = answer(tmp_path, "calibrate", "latest", "--positive", "right", "--positive", "mostly right")
    assert found["calibrations"][0]["table"] == {"tp": 50.0, "fp": 0.0, "fn": 0.0, "tn": 50.0, "missing": 0.0}


def test_a_method_in_place_of_labels_is_named_with_its_limits(tmp_path: Path) -> None:
    cases = [
        JudgedCase({"quality": case % 2 == 0}, None, "Well: the Paris." if case % 2 == 0 else "It is Rome")
        for case in range(100)
    ]
    store(tmp_path, cases, expected="paris")
    found = answer(tmp_path, "calibrate", "latest", "--against", "inclusion")
    (quality,) = found["calibrations"]
    assert (quality["against"], quality["labels"], quality["agreement"]) == ("inclusion", 100, 1.0)
    assert quality["notes"][0].startswith("the reference is inclusion, not people: ")
    (exact,) = answer(tmp_path, "calibrate", "latest", "--against", "exact", code=3)["calibrations"]
    assert (exact["positives"], exact["negatives"]) == (0, 100)
    assert "agree with people on one answer in five" in exact["notes"][0]


def test_a_method_needs_expected_values(tmp_path: Path) -> None:
    run = store(tmp_path, agreeing(5))
    done = gradeline(tmp_path, "calibrate", "latest", "--against", "exact")
    assert done.returncode == 2
    assert f"no result of run {run.id} has an expected value to compare with by exact" in " ".join(done.stderr.split())


def test_calibrations_travel_in_a_file(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    store(here, agreeing(120, wrong=6))
    file = tmp_path / "judges.json"
    assert gradeline(here, "calibrate", "latest").returncode == 0
    assert answer(here, "calibrate", "--export", str(file)) == {"written": [str(file)], "calibrations": 1}
    store(there, agreeing(1))
    before = answer(there, "calibrate", "latest", "--list")["judges"][0]
    assert before["state"] == "uncalibrated"
    assert len(answer(there, "calibrate", "--import", str(file))["added"]) == 1
    assert answer(there, "calibrate", "--import", str(file)) == {"added": [], "known": 1}
    after = answer(there, "calibrate", "latest", "--list")["judges"][0]
    assert after["state"] == "calibrated"
    assert after["calibration"]["labels"] == 120


def test_a_calibration_that_was_edited_is_refused(tmp_path: Path) -> None:
    store(tmp_path, agreeing(120, wrong=60))
    file = tmp_path / "judges.json"
    assert gradeline(tmp_path, "calibrate", "latest", "--export", str(file)).returncode == 1
    data = json.loads(file.read_text())
    (record,) = data["calibrations"]
    data["calibrations"] = [
        {**record, "state": "calibrated"},
        {**record, "at": "2999-01-01T00:00:00Z", "labels": 7},
        {**record, "kappa_lower": "high"},
    ]
    file.write_text(json.dumps(data))
    done = gradeline(tmp_path, "calibrate", "--import", str(file))
    assert done.returncode == 2
    for message in (
        "calibrations[0].state: 'calibrated' does not follow from the numbers, which give 'failed'",
        "calibrations[1].at: '2999-01-01T00:00:00Z' is in the future",
        "calibrations[1].labels: 7 labels are not 60 that pass and 60 that fail",
        "calibrations[2]: Expected `float | null`, got `str` - at `$.kappa_lower`",
    ):
        assert message in done.stderr
    assert len(answer(tmp_path, "calibrate", "--list")["judges"]) == 1
    file.write_text("[]")
    assert (
        "is not a file of gradeline calibrate --export"
        in gradeline(tmp_path, "calibrate", "--import", str(file)).stderr
    )


def test_names_of_others_cannot_imitate_output(tmp_path: Path) -> None:
    graders = {"quality": RunGrader("model_judge", "f1", ("openai:\x1b[31mm\ncalibrated: yes",))}
    cases = [one._replace(tags=("\x1b[2J\nok",)) for one in agreeing(100)]
    store(tmp_path, cases, graders=graders)
    done = gradeline(tmp_path, "calibrate", "latest")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert not any(line.startswith(("calibrated: yes", "ok")) for line in done.stdout.splitlines())
    listed = gradeline(tmp_path, "calibrate", "--list").stdout
    assert "\x1b" not in listed


def test_the_list_of_runs_shows_the_state_of_judges(tmp_path: Path) -> None:
    store(tmp_path, agreeing(120, wrong=60))
    store(tmp_path, [JudgedCase({"exact": True})], graders={"exact": RunGrader("exact_match", "f0")})
    assert gradeline(tmp_path, "calibrate", "latest~1").returncode == 1
    newest, judged = answer(tmp_path, "list")["runs"]
    assert "judges" not in newest
    assert judged["judges"] == {"quality": "failed"}
    lines = gradeline(tmp_path, "list").stdout.splitlines()
    assert lines[0].split()[-1] == "judge"
    assert lines[2].split()[-1] == "failed"


def test_quiet_output_is_one_line_per_judge(tmp_path: Path) -> None:
    store(tmp_path, agreeing(120, wrong=60))
    assert gradeline(tmp_path, "calibrate", "latest", "--quiet").stdout == "quality failed\n"


def test_a_store_in_postgresql(tmp_path: Path, postgres_url: str) -> None:
    with PostgresStorage(postgres_url) as storage:
        run = store_run(storage, agreeing(120, wrong=6, cost=0.01))
    (found,) = answer(tmp_path, "calibrate", run.id, "--store", postgres_url)["calibrations"]
    assert (found["state"], found["labels"], found["cost"]) == ("calibrated", 120, pytest.approx(1.2))
    (listed,) = answer(tmp_path, "calibrate", run.id, "--list", "--store", postgres_url)["judges"]
    assert listed["state"] == "calibrated"


def test_labels_of_responses_count_for_a_run_that_grades_them_again(tmp_path: Path) -> None:
    parent = store(tmp_path, agreeing(120, wrong=60))
    assert answer(tmp_path, "calibrate", "latest", code=1)["calibrations"][0]["agreement"] == 0.5
    with SqliteStorage(tmp_path / ".gradeline" / "store.db") as storage:
        better = msgspec.structs.replace(JUDGE, fingerprint="f2", prompt_hash="p2")
        child = Run(
            name="again", suite="support", status="completed", total=120, parent=parent.id, graders={"quality": better}
        )
        run = storage.save_run(child)
        for number in range(120):
            verdict = number % 2 == 0
            outcome = Outcome.PASS if verdict else Outcome.FAIL
            grade = Grade("model_judge", "f2", outcome, float(verdict), verdict)
            storage.put_grade(GradeKey(run, f"c{number}", 0, "quality"), grade)
    (found,) = answer(tmp_path, "calibrate", run)["calibrations"]
    assert (found["agreement"], found["labels"], found["run"]) == (1.0, 120, run)
    states = [answer(tmp_path, "calibrate", one, "--list")["judges"][0]["state"] for one in (parent.id, run)]
    assert states == ["failed", "calibrated"]


def test_raters_that_disagree_and_replaced_responses_are_left_out(tmp_path: Path) -> None:
    run = store(tmp_path, agreeing(110))
    with SqliteStorage(tmp_path / ".gradeline" / "store.db") as storage:
        put_labels(storage, run, "quality", [("c0", HumanVerdict("fail")), ("c1", HumanVerdict("fail"))], rater="eve")
        record = storage.get_record(ResponseKey(run.id, "c2", 0))
        assert record is not None
        storage.put_response(ResponseKey(run.id, "c2", 0), Response(text="another answer"), record.sample)
    found = answer(tmp_path, "calibrate", "latest")["calibrations"][0]
    assert (found["labels"], found["unresolved"], found["stale"]) == (108, 1, 1)
    text = " ".join(gradeline(tmp_path, "calibrate", "latest").stdout.split())
    assert f"1 result left out: raters disagree; gradeline label {run.id} --grader quality --adjudicate" in text
    assert "1 label left out: the response was replaced" in text
