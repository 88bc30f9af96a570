"""Runs and labels that an import stores."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradeline.cli.commands import run_command
from gradeline.engine.aggregate import summarise
from gradeline.errors import Outcome
from gradeline.importers.grades import imported_grade, imported_grader
from gradeline.importers.output import ImportedLabel, ImportedResult, ImportedRun, ImportOutput
from gradeline.importers.report import ImportReport
from gradeline.model import Response, Run, Sample
from gradeline.service.service import build_service
from gradeline.service.settings import ServeSettings
from gradeline.store import InMemoryStorage, PostgresStorage, SqliteStorage
from gradeline.store.database import SharedStorage
from gradeline.store.labels import LabelRow, has_label_tables, labels_of_run
from gradeline.suite.document import read_document

JUDGE, HUMAN = imported_grader("tool", "judge"), imported_grader("tool", "human")
RUN = ImportedRun(
    name="r", suite="s", target={}, graders={"judge": JUDGE, "human": HUMAN}, label_only=frozenset({"human"})
)
STORES: dict[str, Callable[[pytest.FixtureRequest], SharedStorage]] = {
    "memory": lambda request: InMemoryStorage(),
    "sqlite": lambda request: SqliteStorage(request.getfixturevalue("tmp_path") / "store.db"),
    "postgresql": lambda request: PostgresStorage(request.getfixturevalue("postgres_url")),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[SharedStorage]:
    storage = STORES[request.param](request)
    yield storage
    storage.close()


def result(case: str, **labels: ImportedLabel) -> ImportedResult:
    grades = {"judge": imported_grade(JUDGE, 1.0)}
    return ImportedResult(Sample(case, "hi"), Response(text="ho"), grades, labels=labels)


def store_run(store: SharedStorage, folder: Path, *results: ImportedResult, run: ImportedRun = RUN) -> Run:
    with ImportOutput(folder / "out", ImportReport("x", "k"), lambda: store) as output:
        return output.add_run(run, results)


def seen(label: LabelRow) -> tuple[object, ...]:
    return label.case, label.question, label.verdict, label.score, label.comment, label.rater, label.grade_outcome


def test_labels_are_stored_next_to_grades(store: SharedStorage, tmp_path: Path) -> None:
    said = ImportedLabel("fail", 0.25, "wrong city", "ada", "2026-01-15T10:00:00Z")
    run = store_run(store, tmp_path, result("a", judge=said, human=ImportedLabel("pass")), result("b"))
    labels = labels_of_run(store.database.read, run.id)
    assert [seen(label) for label in labels] == [
        ("a", "judge", "fail", 0.25, "wrong city", "ada", "pass"),
        ("a", "human", "pass", None, "", "", "not_applicable"),
    ]
    assert labels[0].at == "2026-01-15T10:00:00Z"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", labels[1].at)


def test_a_label_is_never_counted_as_a_grade(store: SharedStorage, tmp_path: Path) -> None:
    run = store_run(store, tmp_path, result("a", human=ImportedLabel("fail")), result("b"))
    summary = summarise(run, store.counts(run.id))
    human = summary.graders["human"]
    assert (human.scored, human.total, human.not_applicable, human.mean, human.failed) == (0, 0, 2, None, 0)
    assert (summary.coverage, summary.graders["judge"].scored) == (1.0, 2)
    record = next(store.records(run.id))
    assert record.grades["human"].outcome is Outcome.NOT_APPLICABLE


def test_more_labels_than_are_stored_together(store: SharedStorage, tmp_path: Path) -> None:
    results = [result(f"case-{number}", judge=ImportedLabel("pass")) for number in range(450)]
    run = store_run(store, tmp_path, *results)
    assert len(labels_of_run(store.database.read, run.id)) == 450


def test_a_run_without_labels_adds_no_tables(tmp_path: Path) -> None:
    with InMemoryStorage() as store:
        store_run(store, tmp_path, result("a"))
        assert not has_label_tables(store.database.read)


def test_a_label_names_a_grader_of_the_run(tmp_path: Path) -> None:
    with InMemoryStorage() as store:
        with pytest.raises(ValueError, match="a label of 'jury', which is not a grader of the run"):
            store_run(store, tmp_path, result("a", jury=ImportedLabel("pass")))
        assert store.list_runs() == []


def test_the_command_and_the_service_show_imported_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "store.db")
    with SqliteStorage(Path(file)) as store:
        run = store_run(store, tmp_path, result("a", human=ImportedLabel("pass", reason="fine", author="ada")))
    assert run_command(["show", run.id, "--records", "--store", file]) == 0
    (label,) = json.loads(capsys.readouterr().out)["labels"]
    assert {**label, "at": None} == {
        "grader": "human",
        "verdict": "pass",
        "score": None,
        "category": None,
        "reason": "fine",
        "author": "ada",
        "role": "rater",
        "probability": None,
        "sample": None,
        "at": None,
    }
    service = build_service(ServeSettings(store=file))
    try:
        (shown,) = service.labels.of_result(run.id, "a", 0)
        assert (shown.grader_id, shown.verdict, shown.author, shown.grade_outcome) == (
            "human",
            "pass",
            "ada",
            "not_applicable",
        )
    finally:
        service.stop()


def test_the_report_counts_items_and_names_each_place_once() -> None:
    report = ImportReport("config.yaml", "promptfoo")
    for place in ("a", "a", "b"):
        report.not_mapped(place, "provider", "no such file")
    for number in range(8):
        report.mapped(f"row {number}", "case", "case")
    provider, case = report.items
    assert (provider.count, provider.places, provider.more_places) == (3, ("a", "b"), False)
    assert (case.count, len(case.places), case.more_places) == (8, 5, True)
    assert "| case | 8 | row 0, row 1, row 2, row 3, row 4, … | case |" in report.markdown()


def test_a_suite_with_any_characters_can_be_read(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\x85d\ufeffe\x7f: é 😀 'x' \"y\" # z\n- \t"
    with ImportOutput(tmp_path / "out", ImportReport("x", "k"), InMemoryStorage) as output:
        graders = {text: {"kind": "custom-rules", "rules": [{"condition": "contains", "value": text}]}}
        suite = {"name": text, "dataset": [{"input": text}], "target": {"kind": "replay", "responses": "a"}}
        output.write_suite({**suite, "graders": graders})
    written = read_document(tmp_path / "out" / "suite.yaml").data
    assert written["name"] == text
    assert written["graders"] == graders
