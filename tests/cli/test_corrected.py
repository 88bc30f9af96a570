"""Corrected rates and differences from the command line: a judge with planted errors, and labels of some results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gradeline.model import GradeKey, ResponseKey, Run, Storage
from gradeline.model.label import HumanVerdict, LabelKey
from gradeline.store import PostgresStorage, SqliteStorage
from gradeline.store.database import SharedStorage
from gradeline.store.labels import create_label_tables, insert_label, label_row
from gradeline.testing.fake_judge import FakeJudge, Truth, with_mark
from gradeline_command import COMMAND, run_command

CASES = 240
SENSITIVITY, SPECIFICITY = 0.95, 0.5
AT = "2026-11-19T10:00:00Z"


def truths(seed: int, share: float) -> dict[str, bool]:
    """Which answers are good."""
    random = Random(seed)
    return {f"case-{n}": random.random() < share for n in range(CASES)}


GOOD = {"old": truths(1, 0.55), "new": truths(2, 0.3)}
"""Of the two versions of the agent; the judge cannot tell them apart."""


class Folder:
    """A folder with the suite, both versions of the agent, and a store."""

    def __init__(self, path: Path, store: str) -> None:
        self.path, self.store = path, store

    def __call__(self, *arguments: str, code: int | None = 0) -> str:
        done = run_command([COMMAND, *arguments, "--store", self.store], cwd=self.path, text=True)
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def data(self, *arguments: str, code: int | None = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))

    def suite(self, version: str, url: str, **keys: Any) -> None:
        answers = [{"id": case, "text": with_mark("An answer.", f"{version}-{case}")} for case in GOOD[version]]
        (self.path / "answers.jsonl").write_text("\n".join(map(json.dumps, answers)))
        (self.path / "cases.jsonl").write_text(
            "\n".join(json.dumps({"id": case, "input": "What now?"}) for case in GOOD[version])
        )
        quality = {"kind": "model_judge", "prompt": "Is it good? {submission}", "model": "fake-judge", "base_url": url}
        suite = {
            "name": "advice",
            "dataset": "cases.jsonl",
            "target": {"kind": "replay", "responses": "answers.jsonl"},
            "graders": {"quality": quality},
            **keys,
        }
        (self.path / "suite.json").write_text(json.dumps(suite))

    def open(self) -> SharedStorage:
        return SqliteStorage(self.path / "runs.db") if self.store.endswith("db") else PostgresStorage(self.store)

    def label(self, name: str, cases: Sequence[str], good: dict[str, bool], probability: float | None) -> None:
        with self.open() as storage:
            put_labels(storage, storage.find_run(name), cases, good, probability)


def put_labels(
    storage: SharedStorage,
    run: Run,
    cases: Sequence[str],
    good: dict[str, bool],
    probability: float | None,
    **more: Any,
) -> None:
    create_label_tables(storage.database)
    rater, comment = more.get("rater", "ann"), more.get("comment", "")
    for case in cases:
        record = storage.get_record(ResponseKey(run.id, case, 0))
        assert record is not None
        verdict = HumanVerdict("pass" if good[case] else "fail", comment, probability=probability)
        key = LabelKey(run.id, case, 0, "quality")
        row = label_row(key, record.sample, record.response, record.grades["quality"], verdict, rater, AT)
        storage.database.transact(lambda transaction, row=row: insert_label(transaction, run.id, row))


def drawn(count: int, seed: int = 5) -> list[str]:
    return Random(seed).sample(sorted(GOOD["old"]), count)


@pytest.fixture(scope="module")
def judge() -> Iterator[FakeJudge]:
    items = {
        f"{version}-{case}": Truth(quality=float(good))
        for version, all_of in GOOD.items()
        for case, good in all_of.items()
    }
    behaviour = f"sens-spec,a={SENSITIVITY},b={SPECIFICITY}"
    with FakeJudge(behaviour, seed=11, items=items).in_thread() as server:
        yield server


@pytest.fixture(scope="module")
def ran(judge: FakeJudge, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A folder with a run of each version, without labels."""
    folder = Folder(tmp_path_factory.mktemp("ran"), "runs.db")
    for version in GOOD:
        folder.suite(version, judge.base_url())
        folder("run", "suite.json", "--name", version, "--quiet")
    return folder


@pytest.fixture
def folder(ran: Folder, tmp_path: Path) -> Folder:
    """A copy, to label."""
    for file in ran.path.iterdir():
        if not file.name.endswith(("-shm", "-wal")):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return Folder(tmp_path, "runs.db")


def truth_of(judge: FakeJudge, version: str) -> float:
    """The share of good answers of a version, by the judge's own log."""
    logged = {one.items[0]: one.qualities[0] for one in judge.decisions if one.items[0].startswith(f"{version}-")}
    assert len(logged) == CASES
    return sum(logged.values()) / CASES


def test_the_rate_is_corrected_next_to_the_judges(folder: Folder, judge: FakeJudge) -> None:
    folder.label("old", drawn(100), GOOD["old"], 100 / CASES)
    found = folder.data("show", "old")["summary"]["graders"]["quality"]
    corrected, truth = found["corrected"], truth_of(judge, "old")
    assert found["pass_rate"] == corrected["judge"] > truth + 0.1
    assert corrected["low"] <= truth <= corrected["high"]
    assert (corrected["labels"], corrected["method"], corrected["refusal"]) == (100, "ppi++", None)
    assert 0.1 <= corrected["lambda"] <= 1.0
    text = "{judge:.3f} judge → {estimate:.3f} ({low:.3f}–{high:.3f}), 100 labels".format(**corrected)
    assert corrected["sentence"] == text
    assert text in " ".join(folder("show", "old").split())


def test_too_few_labels_say_how_many_are_missing(folder: Folder) -> None:
    assert "corrected" not in folder("show", "old")
    assert folder.data("show", "old")["summary"]["graders"]["quality"]["corrected"] is None
    folder.label("old", drawn(12), GOOD["old"], 0.05)
    found = folder.data("show", "old")["summary"]["graders"]["quality"]["corrected"]
    assert (found["estimate"], found["missing_labels"]) == (None, 18)
    assert found["refusal"].startswith("12 labels, at least 30 are needed: label 18 more: gradeline label ")
    assert "label 18 more" in " ".join(folder("show", "old").split())


def test_labels_of_chosen_results_correct_nothing(folder: Folder) -> None:
    folder.label("old", [case for case, good in GOOD["old"].items() if not good][:60], GOOD["old"], None)
    found = folder.data("show", "old")["summary"]["graders"]["quality"]["corrected"]
    assert found["estimate"] is None
    assert "were not drawn at random: draw them with gradeline label" in found["refusal"]


class TestRoganGladen:
    def test_a_calibration_of_another_run_gives_a_rate_on_request(self, folder: Folder, judge: FakeJudge) -> None:
        everything = list(GOOD["old"])
        folder.label("old", everything, GOOD["old"], None)
        folder("calibrate", "old", code=None)
        assert folder.data("show", "new")["summary"]["graders"]["quality"]["corrected"] is None
        found = folder.data("show", "new", "--rogan-gladen")["summary"]["graders"]["quality"]["corrected"]
        assert (found["method"], found["labels"], found["refusal"]) == ("rogan_gladen", CASES, None)
        assert found["low"] <= truth_of(judge, "new") <= found["high"]
        assert "labels of a calibration; Rogan-Gladen: it assumes that" in found["sentence"]
        # labels of the run itself are better
        of_old = folder.data("show", "old", "--rogan-gladen")["summary"]["graders"]["quality"]["corrected"]
        assert of_old["method"] == "labels"

    def test_without_a_calibration_it_is_refused(self, folder: Folder) -> None:
        found = folder.data("show", "new", "--rogan-gladen")["summary"]["graders"]["quality"]["corrected"]
        assert found["refusal"].startswith("the judge is not calibrated: never compared with labels")

    def test_a_calibration_of_another_prompt_is_refused(self, folder: Folder) -> None:
        folder.label("old", list(GOOD["old"]), GOOD["old"], None)
        folder("calibrate", "old", code=None)
        suite = json.loads((folder.path / "suite.json").read_text())
        suite["graders"]["quality"]["prompt"] = "Is it really good? {submission}"
        (folder.path / "suite.json").write_text(json.dumps(suite))
        folder("regrade", "new", "--suite", "suite.json", "--name", "other")
        found = folder.data("show", "other", "--rogan-gladen")["summary"]["graders"]["quality"]["corrected"]
        assert found["estimate"] is None
        assert found["refusal"].startswith("the calibration does not hold any more (expired: the prompt changed since")


class TestReports:
    @pytest.fixture
    def labelled(self, folder: Folder) -> Folder:
        folder.label("old", drawn(100), GOOD["old"], 100 / CASES)
        return folder

    @pytest.mark.parametrize("form", ["html", "markdown", "junit"])
    def test_every_report_has_the_corrected_rate(self, labelled: Folder, form: str) -> None:
        sentence = labelled.data("show", "old")["summary"]["graders"]["quality"]["corrected"]["sentence"]
        text = labelled("export", "old", "--format", form)
        assert sentence in text
        assert ('<property name="corrected" value="quality: pass rate ' in text) is (form == "junit")

    def test_raters_and_comments_are_in_no_report_unescaped(self, folder: Folder) -> None:
        with folder.open() as storage:
            hostile = "<script>alert(1)</script>\x1b[2J"
            put_labels(storage, storage.find_run("old"), drawn(60), GOOD["old"], 0.25, rater=hostile, comment=hostile)
        for text in (folder("show", "old"), *(folder("export", "old", "--format", form) for form in FORMS)):
            assert "judge → " in text
            assert "\x1b[2J" not in text
            assert "<script>alert" not in text


FORMS = ("html", "markdown", "junit")


class TestGates:
    def verdict(self, folder: Folder, gate: dict[str, Any], code: int) -> dict[str, Any]:
        """The verdict of a regrade, which uses the labels of the responses that it grades again."""
        suite = json.loads((folder.path / "suite.json").read_text())
        (folder.path / "suite.json").write_text(json.dumps({**suite, "gate": gate}))
        report = folder.data("regrade", "new", "--suite", "suite.json", code=code)
        assert report["exit_code"] == code
        verdict: dict[str, Any] = report["verdict"]
        return verdict

    RATE = {"aggregation": "accuracy", "op": "gte", "value": 0.5}

    def test_a_flattering_judge_passes_and_its_labels_fail(self, folder: Folder) -> None:
        folder.label("new", drawn(100), GOOD["new"], 100 / CASES)
        assert self.verdict(folder, self.RATE, 0)["result"] == "pass"
        verdict = self.verdict(folder, {**self.RATE, "corrected": True}, 1)
        (gate,) = verdict["gates"]
        assert (verdict["result"], gate["observed"] < 0.5) == ("fail", True)
        assert gate["observed_ci"][0] < sum(GOOD["new"].values()) / CASES < gate["observed_ci"][1]
        assert verdict["reasons"][0].startswith("quality: corrected accuracy 0.")
        assert verdict["reasons"][1].endswith(", 100 labels")

    def test_it_passes_where_the_labels_do(self, folder: Folder) -> None:
        folder.label("new", drawn(100), GOOD["new"], 100 / CASES)
        assert self.verdict(folder, {**self.RATE, "value": 0.2, "corrected": True}, 0)["result"] == "pass"

    def test_it_is_undecided_with_too_few_labels(self, folder: Folder) -> None:
        folder.label("new", drawn(20), GOOD["new"], 20 / CASES)
        verdict = self.verdict(folder, {**self.RATE, "corrected": True}, 3)
        assert verdict["result"] == "undecided"
        assert "20 labels, at least 30 are needed: label 10 more: gradeline label" in verdict["reasons"][0]

    def test_a_logical_gate_hands_the_setting_to_its_conditions(self, folder: Folder) -> None:
        gate = {"kind": "logical", "operator": "and", "conditions": [self.RATE], "corrected": True}
        verdict = self.verdict(folder, gate, 3)
        assert "no labels; label 30 or more results" in verdict["reasons"][1]


class TestComparisons:
    def test_labels_of_both_runs_decide(self, folder: Folder) -> None:
        before = folder.data("compare", "old", "new", code=None)
        assert before["graders"]["quality"]["corrected"] is None
        for version in GOOD:
            folder.label(version, drawn(120), GOOD[version], 0.5)
        found = folder.data("compare", "old", "new", code=1)
        corrected = found["graders"]["quality"]["corrected"]
        truth = (sum(GOOD["new"].values()) - sum(GOOD["old"].values())) / CASES
        assert corrected["low"] <= truth <= corrected["high"] < -0.02
        assert found["decision"] == "worse"
        assert found["sentence"] == "worse (quality; decided on corrected scores, 120 labels)"
        shown = " ".join(folder("compare", "old", "new", code=1).split())
        assert corrected["sentence"] in shown
        assert "decision: worse (quality; decided on corrected scores, 120 labels)" in shown

    def test_one_labelled_run_says_what_is_missing(self, folder: Folder) -> None:
        folder.label("old", drawn(60), GOOD["old"], 0.25)
        before = folder.data("compare", "old", "new", code=None)
        refusal = before["graders"]["quality"]["corrected"]["refusal"]
        assert refusal.startswith("no label of the candidate: gradeline label ")
        assert "not corrected: no label of the candidate" in " ".join(
            folder("compare", "old", "new", code=None).split()
        )

    def test_a_regression_gate_needs_labels_where_it_is_told_so(self, folder: Folder) -> None:
        gate = {"kind": "regression", "baseline": "old", "corrected": True}
        verdict = TestGates().verdict(folder, gate, 3)
        assert "neither run has labels" in verdict["reasons"][0]
        for version in GOOD:
            folder.label(version, drawn(120), GOOD[version], 0.5)
        verdict = TestGates().verdict(folder, gate, 1)
        assert verdict["gates"][0]["observed"] < -0.1


class TestSuiteSetting:
    """``corrected: true`` at the top of the suite is about all gates over judges, those of ``--baseline`` too."""

    def change(self, folder: Folder, **keys: Any) -> None:
        suite = json.loads((folder.path / "suite.json").read_text())
        (folder.path / "suite.json").write_text(json.dumps({**suite, **keys}))

    def test_a_run_cannot_stop_early_before_it_has_labels(self, folder: Folder) -> None:
        self.change(folder, corrected=True)
        report = folder.data("run", "suite.json", "--baseline", "old", "--stop-early", code=3)
        assert report["summary"]["responses"]["success"] == CASES
        reasons = " ".join(report["verdict"]["reasons"])
        assert "without an early stop: a gate on corrected values needs labels" in reasons

    def test_a_comparison_with_the_baseline_waits_for_labels(self, folder: Folder) -> None:
        self.change(folder, corrected=True)
        report = folder.data("run", "suite.json", "--baseline", "old", "--name", "next", code=3)
        assert "not corrected: neither run has labels" in report["verdict"]["reasons"][0]
        folder.label("old", drawn(120), GOOD["old"], 0.5)
        assert "no label of the candidate" in folder.data("show", "next")["verdict"]["reasons"][0]
        folder.label("next", drawn(120), GOOD["new"], 0.5)
        report = folder.data("show", "next")
        assert (report["verdict"]["result"], report["exit_code"]) == ("fail", 1)
        assert "120 cases labelled in both runs" in report["verdict"]["reasons"][0]

    def test_another_value_is_a_problem_of_the_suite(self, folder: Folder) -> None:
        self.change(folder, corrected="maybe")
        (problem,) = folder.data("validate", "suite.json", code=2)["errors"]
        assert (problem["path"], problem["message"]) == ("corrected", "expected true or false, got 'maybe'")
        gate = {"aggregation": "p95", "op": "gte", "value": 0.5, "corrected": True}
        self.change(folder, corrected=None, gate=gate)
        (problem,) = folder.data("validate", "suite.json", code=2)["errors"]
        assert (problem["path"], problem["message"]) == (
            "gate.corrected",
            "labels correct avg_score and accuracy only, not p95",
        )


def test_postgresql_has_the_same_rates(folder: Folder, postgres_url: str) -> None:
    folder.label("old", drawn(100), GOOD["old"], 100 / CASES)
    expected = folder.data("show", "old")["summary"]["graders"]["quality"]["corrected"]
    with folder.open() as source, PostgresStorage(postgres_url) as target:
        copy_run(source, target, source.find_run("old"))
        put_labels(target, target.find_run("old"), drawn(100), GOOD["old"], 100 / CASES)
    other = Folder(folder.path, postgres_url)
    assert other.data("show", "old")["summary"]["graders"]["quality"]["corrected"] == expected


def copy_run(source: Storage, target: Storage, run: Run) -> None:
    target.save_run(run)
    for record in source.records(run.id):
        key = ResponseKey(run.id, record.case, record.repeat)
        target.put_response(key, record.response, record.sample)
        for grader, grade in record.grades.items():
            target.put_grade(GradeKey(*key, grader), grade)
