"""Judges that learn from labels, from the command line: weights of a panel, and verdicts that are not sure enough."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gradeline.model import ResponseKey, Run
from gradeline.model.label import HumanVerdict, LabelKey
from gradeline.store import SqliteStorage
from gradeline.store.labels import create_label_tables, insert_label, label_row
from gradeline.testing.fake_judge import Behaviour, FakeJudge, Truth, with_mark
from gradeline_command import COMMAND, run_command

CASES, LABELS = 130, 110
GOOD = {f"case-{n}": Random(n).random() < 0.5 for n in range(CASES)}
AT = "2026-11-19T10:00:00Z"
ACCURACIES = (0.8, 0.5, 0.3)
"""One judge is good, one guesses, and one is usually wrong, which is as informative as being right."""


class Folder:
    """A folder with a suite and a store."""

    def __init__(self, path: Path, panel: list[str], second: str) -> None:
        self.path = path
        self.judges = [{"model": f"judge-{n}", "base_url": url} for n, url in enumerate(panel)]
        self.second = {"model": "second", "base_url": second}
        answers = [{"id": case, "text": with_mark("An answer.", case)} for case in GOOD]
        (path / "answers.jsonl").write_text("\n".join(map(json.dumps, answers)))
        (path / "cases.jsonl").write_text("\n".join(json.dumps({"id": case, "input": "What now?"}) for case in GOOD))

    def __call__(self, *arguments: str, code: int | None = 0) -> tuple[str, str]:
        done = run_command([COMMAND, *arguments, "--store", "runs.db"], cwd=self.path, text=True)
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done.stdout, done.stderr

    def data(self, *arguments: str, code: int | None = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code)[0])

    def suite(self, grader: dict[str, Any], **keys: Any) -> None:
        suite = {
            "name": "advice",
            "dataset": "cases.jsonl",
            "target": {"kind": "replay", "responses": "answers.jsonl"},
            "graders": {"quality": {"prompt": "Is it good? {submission}", **grader}},
            "coverage_floor": 0.2,
            **keys,
        }
        (self.path / "suite.json").write_text(json.dumps(suite))

    def panel(self, **options: Any) -> dict[str, Any]:
        return {"kind": "panel", "judges": self.judges, **options}

    def open(self) -> SqliteStorage:
        return SqliteStorage(self.path / "runs.db")

    def label(self, count: int = LABELS) -> None:
        """Labels of a random sample of the latest run."""
        with self.open() as storage:
            run = storage.find_run("latest")
            create_label_tables(storage.database)
            for case in Random(5).sample(sorted(GOOD), count):
                record = storage.get_record(ResponseKey(run.id, case, 0))
                assert record is not None
                verdict = HumanVerdict("pass" if GOOD[case] else "fail", "", probability=count / CASES)
                key = LabelKey(run.id, case, 0, "quality")
                row = label_row(key, record.sample, record.response, record.grades["quality"], verdict, "ann", AT)
                storage.database.transact(lambda transaction, row=row: insert_label(transaction, run.id, row))

    def latest(self) -> Run:
        with self.open() as storage:
            return storage.find_run("latest")

    def agreement(self) -> tuple[float, int]:
        """How often the latest run's verdicts are right, and of how many."""
        with self.open() as storage:
            run = storage.find_run("latest")
            verdicts = [(one.case, one.grades["quality"].passed) for one in storage.records(run.id)]
        decided = [passed is GOOD[case] for case, passed in verdicts if passed is not None]
        return sum(decided) / len(decided), len(decided)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[list[str], str]]:
    items = {case: Truth(quality=0.9 if good else 0.1) for case, good in GOOD.items()}
    with ExitStack() as stack:
        judges = [
            stack.enter_context(
                FakeJudge(Behaviour(sensitivity=accuracy, specificity=accuracy), seed=seed, items=items).in_thread()
            )
            for seed, accuracy in enumerate((*ACCURACIES, 0.97), 1)
        ]
        urls = [judge.base_url() for judge in judges]
        yield urls[:-1], urls[-1]


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "none-needed")
        yield


GATE = {"metric_key": "quality", "op": "gte", "value": 0.1}


@pytest.fixture(scope="module")
def calibrated(
    tmp_path_factory: pytest.TempPathFactory, servers: tuple[list[str], str], environment: None
) -> tuple[Folder, dict[str, str]]:
    """A folder with a run, labels and a calibration, and what the commands printed."""
    folder = Folder(tmp_path_factory.mktemp("calibrated"), *servers)
    folder.suite(folder.panel(weights="calibrated", agreement=0.85), gate=GATE)
    printed = {"validate": folder("validate", "suite.json")[1], "run": folder("run", "suite.json", code=3)[1]}
    folder.label()
    printed["calibrate"] = folder("calibrate", "latest", "--json")[0]
    return folder, printed


@pytest.fixture
def folder(calibrated: tuple[Folder, dict[str, str]], tmp_path: Path) -> Folder:
    """A copy of it."""
    original, _ = calibrated
    shutil.copytree(original.path, tmp_path / "copy")
    copied = copy(original)
    copied.path = tmp_path / "copy"
    return copied


def words(text: str) -> str:
    """A text without line breaks."""
    return " ".join(text.split())


def test_before_a_calibration_nothing_is_promised(calibrated: tuple[Folder, dict[str, str]], folder: Folder) -> None:
    _, printed = calibrated
    for command in ("validate", "run"):
        said = words(printed[command])
        assert "quality: weights: calibrated has no effect yet, all judges count equally: there are no weights" in said
        assert "quality: agreement: 0.85 has no effect yet, every verdict counts and no gate passes by it" in said
        assert "gradeline label latest --sample 100, then gradeline calibrate latest" in said
    assert folder.latest().graders["quality"].weights == "unlearned"
    shown = folder.data("show", "latest")
    assert shown["summary"]["graders"]["quality"]["selective"]["promised"] is False
    assert shown["verdict"]["result"] == "undecided"
    # the run itself was graded without these weights
    state = shown["summary"]["graders"]["quality"]["calibration"]
    assert state["reason"].startswith("graded before its weights were learned: gradeline regrade")
    assert "quality: its judge is not calibrated, which agreement: 0.85 requires" in shown["verdict"]["reasons"]
    assert "weights" not in folder("validate", "suite.json")[1]


def test_a_calibration_learns_weights_and_says_what_each_judge_adds(
    calibrated: tuple[Folder, dict[str, str]], folder: Folder
) -> None:
    (found,) = json.loads(calibrated[1]["calibrate"])["calibrations"]
    before, _ = folder.agreement()
    assert found["state"] == "calibrated"
    assert found["panel"]["members"] == [f"openai:judge-{n}" for n in range(3)]
    assert found["panel"]["labels"] == LABELS
    assert found["panel"]["unweighted_agreement"] == pytest.approx(before, abs=0.1)
    assert found["agreement"] == pytest.approx(found["panel"]["agreement"])
    assert found["agreement"] > before + 0.1
    gains = {one["judge"]: one["gain"] for one in found["panel"]["gains"]}
    assert max(gains, key=gains.__getitem__) == "openai:judge-0"
    shown = words(folder("calibrate", "latest")[0])
    assert f"weights from {LABELS} labels: agreement {found['agreement']:.3f} (cross-validated)" in shown
    assert "could decide, 90 % sure: " in shown


def test_a_regrade_uses_the_weights_and_decides_what_it_is_sure_of(folder: Folder) -> None:
    before, _ = folder.agreement()
    folder("regrade", "latest")
    grader = folder.latest().graders["quality"]
    assert grader.weights == "learned"
    assert grader.judge_fingerprint not in ("", grader.fingerprint)
    column = folder.data("show", "latest")["summary"]["graders"]["quality"]
    assert column["calibration"]["state"] == "calibrated"
    finding = column["selective"]
    agreement, decided = folder.agreement()
    assert agreement > before + 0.1
    assert agreement >= 0.85
    assert (finding["decided"], finding["of"], finding["second"]) == (decided, CASES, 0)
    assert finding["unsure"] == CASES - decided
    assert 0 < decided < CASES
    promise = f"agrees with labels in at least 85 % of decided cases, 90 % sure ({LABELS} labels); decided "
    assert finding["sentence"].startswith(promise)
    assert promise in words(folder("show", "latest")[0])
    with folder.open() as storage:
        errors = [one.grades["quality"].error for one in storage.records(folder.latest().id)]
        assert {error.type for error in errors if error is not None} == {"unsure"}
    # its own verdicts are measured, whether they counted in the run or not
    (again,) = folder.data("calibrate", "latest")["calibrations"]
    assert (again["state"], again["labels"], again["missing"]) == ("calibrated", LABELS, 0)


def test_a_second_judge_decides_the_rest(folder: Folder) -> None:
    folder.suite(folder.panel(weights="calibrated", agreement=0.85, escalate=folder.second))
    folder("regrade", "latest", "--suite", "suite.json")
    finding = folder.data("show", "latest")["summary"]["graders"]["quality"]["selective"]
    agreement, number = folder.agreement()
    assert number == finding["of"] == CASES
    assert finding["second"] == CASES - finding["decided"]
    assert 0 < finding["second"] < CASES
    assert agreement > 0.85
    assert f"{finding['second']} by a second judge" in words(folder("show", "latest")[0])


def test_a_run_continues_with_what_it_began_with(folder: Folder) -> None:
    first = folder.latest()
    with folder.open() as storage:  # as if it had been stopped before its end
        storage.update_run(first.id, status="cancelled", completed_at=None, total=None)
    folder("resume", first.id, code=3)
    assert folder.latest().graders == first.graders


def test_a_hopeless_judge_decides_nothing_and_says_why(folder: Folder) -> None:
    folder.suite({"kind": "model_judge", **folder.judges[1], "agreement": 0.9})
    folder("run", "suite.json")
    folder.label()
    shown, _ = folder("calibrate", "latest", code=1)
    assert "could decide, 90 % sure: 0 % at agreement 0.8" in words(shown)
    why = "its confidence does not tell right from wrong verdicts well enough for an agreement of 0.9: only "
    _, errors = folder("regrade", "latest", code=4)
    assert f"quality: every verdict is unsure: {why}" in words(errors)
    finding = folder.data("show", "latest")["summary"]["graders"]["quality"]["selective"]
    assert (finding["decided"], finding["of"], finding["unsure"]) == (0, CASES, CASES)
    assert finding["sentence"].startswith(
        f"decided 0 % (0 of {CASES}), {CASES} unsure (label them with --unsure): {why}"
    )
